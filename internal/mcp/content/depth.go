package content

import (
	"bytes"
	"encoding/json"
	"fmt"

	"answerd/internal/mcp/wire"
)

// MaxDepth is how deep a content block or structured content may be nested. Parsers of clients
// refuse deeper values, some at 1,000 levels, and with them the whole event or answer.
const MaxDepth = 128

// maxDepthPreview bounds the preview of a result that is nested too deep, in bytes.
const maxDepthPreview = 1 << 10

// DepthError is the error of a result that is nested deeper than MaxDepth.
type DepthError struct {
	Preview string // the beginning of the value that is nested too deep
}

func (e *DepthError) Error() string {
	return fmt.Sprintf("its result is nested deeper than %d levels", MaxDepth)
}

// checkDepth returns a *DepthError if a value of r is nested too deep.
func (r *Result) checkDepth() error {
	for _, value := range append([]json.RawMessage{r.Structured}, r.Content...) {
		if isDeeper(value, MaxDepth) {
			preview, _ := TruncateText(string(value), maxDepthPreview, "")
			return &DepthError{preview}
		}
	}
	return nil
}

// isDeeper reports whether a valid JSON value is nested deeper than limit. Few values have enough
// brackets for that, and counting them is much cheaper than scanning.
func isDeeper(value []byte, limit int) bool {
	return bytes.Count(value, []byte("["))+bytes.Count(value, []byte("{")) > limit && wire.Depth(value) > limit
}
