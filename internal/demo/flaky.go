package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// flakyArgs are the arguments; their bounds stand in the tool's schema.
type flakyArgs struct {
	Reason string `json:"reason"`
}

// addFlaky adds flaky_service, whose failure is a result with isError, as a tool's
// own failures are in MCP, and not a protocol error.
func addFlaky(s *sdk.Server) {
	sdk.AddTool(s, &sdk.Tool{
		Name: "flaky_service", Title: "Flaky service", Annotations: readOnly(),
		Description: "Calls a service that is down and always fails, to show what happens on a failure or error.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{
			"reason":{"type":"string","description":"Why it is called; repeated in the error","maxLength":200}
		},"additionalProperties":false}`),
	}, func(_ context.Context, _ *sdk.CallToolRequest, in flakyArgs) (*sdk.CallToolResult, any, error) {
		if in.Reason == "" {
			return nil, nil, errors.New("the flaky service failed, as it always does: this is a simulated outage, so trying again will not help")
		}
		return nil, nil, fmt.Errorf("the flaky service failed, as it always does (called for %q): this is a simulated outage, so trying again will not help", in.Reason)
	})
}
