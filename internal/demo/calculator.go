package demo

import (
	"context"
	"encoding/json"
	"fmt"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// calculateArgs are the arguments; their bounds stand in the tool's schema.
type calculateArgs struct {
	Expression string `json:"expression"`
}

// calculation is the structured result.
type calculation struct {
	Expression string  `json:"expression"`
	Result     float64 `json:"result" jsonschema:"rounded to 12 significant digits"`
	Summary    string  `json:"summary" jsonschema:"expression and result as an equation"`
}

// addCalculator adds calculate.
func addCalculator(s *sdk.Server) {
	sdk.AddTool(s, &sdk.Tool{
		Name: "calculate", Title: "Calculator", Annotations: readOnly(),
		Description: "Computes an arithmetic expression exactly as written. Use it for any sum, difference, product, quotient, percentage or power of numbers.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{
			"expression":{"type":"string","description":"Arithmetic expression of numbers, + - * / % (remainder) ^ (power) and brackets, such as (12.5 + 3) * 8","minLength":1,"maxLength":200}
		},"required":["expression"],"additionalProperties":false}`),
	}, func(_ context.Context, _ *sdk.CallToolRequest, in calculateArgs) (*sdk.CallToolResult, *calculation, error) {
		x, err := evaluate(in.Expression)
		if err != nil {
			return nil, nil, fmt.Errorf("cannot compute the expression: %w", err)
		}
		c := &calculation{in.Expression, x, fmt.Sprintf("%s = %s", in.Expression, formatNumber(x))}
		return said(c.Summary), c, nil
	})
}
