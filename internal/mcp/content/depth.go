package content

import "fmt"

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
