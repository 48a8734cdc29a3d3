package mcp

import (
	"regexp"

	"answerd/internal/mcp/content"
	"answerd/internal/mcp/wire"
)

// maxRejection is how much of an error's text is looked at, in bytes.
const maxRejection = 2 << 10

// How servers say, in a result that is an error, that the arguments are no good. MCP has
// no code for it there, so it is the wording of the SDKs that they are built with (S0.3).
// A tool's own words about its own data ("validation error in row 3") are not among them.
var (
	rejection = regexp.MustCompile(`(?i)` +
		`^validating "?arguments"?` + // go-sdk
		`|^(mcp error -32602: )?(input validation error|invalid (arguments|params|parameters) for tool\b)` + // TypeScript; Python, low level
		`|^(error (calling|executing) tool .{1,300}: )?\d+ validation errors? for (\w+arguments|call\[.{1,300}\])` + // Python: pydantic
		`|unexpected_keyword_argument|got an unexpected keyword argument` + // FastMCP
		`|^(mcp error |error )?-32602\b` +
		`|^(invalid|bad) (arguments?|params|parameters)\b` +
		`|^failed to deserialize parameters\b`) // Rust: rmcp
	// The same code says this (2025-11-25 server/tools, error handling).
	noSuchTool = regexp.MustCompile(`(?i)^(mcp error -32602: )?(unknown tool\b|tool .{1,300} (not found|does not exist|disabled)\b)`)
)

// ResultErrorKind returns why a tool reports failure, as far as the result's text says:
// InvalidArguments or UnknownTool in the wordings of the SDKs, else Execution.
func ResultErrorKind(r *content.Result) ErrorKind {
	switch text := wire.Truncate(r.Text(), maxRejection); {
	case noSuchTool.MatchString(text):
		return UnknownTool
	case rejection.MatchString(text):
		return InvalidArguments
	}
	return Execution
}
