package content

import (
	"bytes"
	"fmt"

	"answerd/internal/mcp/wire"
)

// MaxDepth bounds the nesting of a content block and of structured content. JSON parsers of
// clients refuse deeper values, some at 1,000 levels, and then the client loses the whole event or
// answer.
const MaxDepth = 128

// maxDepthPreview bounds the preview of a result that is nested too deeply, in bytes.
const maxDepthPreview = 1 << 10

// DepthError is the error for a result with a value that is nested deeper than MaxDepth.
type DepthError struct {
	Preview string // the beginning of that value, for the model
}

// Error returns a text for the caller, which names the limit and does not quote the result.
func (e *DepthError) Error() string {
	return fmt.Sprintf("its result is nested deeper than %d levels", MaxDepth)
}

// isDeeper reports whether a valid JSON value is nested deeper than limit. It counts opening brackets
// first: few values have more than limit of them, and counting is much cheaper than wire.Depth.
func isDeeper(value []byte, limit int) bool {
	return bytes.Count(value, []byte("["))+bytes.Count(value, []byte("{")) > limit && wire.Depth(value) > limit
}
