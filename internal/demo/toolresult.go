package demo

import sdk "github.com/modelcontextprotocol/go-sdk/mcp"

// said is a result whose text is for people. The structured result goes beside it;
// the SDK adds that one from the handler's second value.
func said(text string) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}
}

// readOnly are the annotations of a tool that changes nothing and, like all tools
// here, reaches nothing outside this process.
func readOnly() *sdk.ToolAnnotations {
	return &sdk.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, DestructiveHint: new(false), OpenWorldHint: new(false)}
}
