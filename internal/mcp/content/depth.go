package content

import (
	"bytes"
	"fmt"

	"answerd/internal/mcp/wire"
)

// MaxDepth limits the nesting of a content block and of structured content. Some clients' JSON parsers reject values
// nested deeper, a few of them at 1,000 levels, and the client then loses the whole event or answer.
const MaxDepth = 128

// maxDepthPreview is the maximum size in bytes of DepthError.Preview.
const maxDepthPreview = 1 << 10

// DepthError is the error for a result with a value that is nested deeper than MaxDepth.
type DepthError struct {
	Preview string // the beginning of the value, for the model
}

// Error returns a text that names the limit. It does not quote the result.
func (e *DepthError) Error() string {
	return fmt.Sprintf("its result is nested deeper than %d levels", MaxDepth)
}

// isDeeper reports whether a valid JSON value is nested deeper than limit. It counts the opening brackets first,
// because few values have more than limit of them, and counting is much cheaper than wire.Depth.
func isDeeper(value []byte, limit int) bool {
	return bytes.Count(value, []byte("["))+bytes.Count(value, []byte("{")) > limit && wire.Depth(value) > limit
}
