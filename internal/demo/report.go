package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// reportArgs are the arguments; their bounds and defaults stand in the tool's schema.
type reportArgs struct {
	Topic  string `json:"topic"`
	Steps  int    `json:"steps"`
	StepMS int    `json:"step_ms"`
}

// report is the structured result.
type report struct {
	Topic   string `json:"topic"`
	Steps   int    `json:"steps"`
	Summary string `json:"summary" jsonschema:"the report itself"`
}

// stages are what the report claims to be doing, one a step.
var stages = []string{
	"gathering sources", "reading them", "taking notes", "comparing figures", "looking for gaps",
	"drafting", "checking the draft", "shortening it", "adding a title", "reading it once more",
}

// addReport adds slow_report, which exists to be watched and to be cancelled.
func addReport(s *sdk.Server) {
	sdk.AddTool(s, &sdk.Tool{
		Name: "slow_report", Title: "Slow report", Annotations: readOnly(),
		Description: "Writes a short made-up report about a topic, slowly and in steps. It reports progress after each step and stops when it is cancelled.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{
			"topic":{"type":"string","description":"What the report is about","minLength":1,"maxLength":100},
			"steps":{"type":"integer","description":"How many steps it takes","minimum":1,"maximum":10,"default":5},
			"step_ms":{"type":"integer","description":"How long one step takes, in milliseconds","minimum":0,"maximum":2000,"default":300}
		},"required":["topic"],"additionalProperties":false}`),
	}, writeReport)
}

// writeReport takes its steps, telling the caller of each if it asked to be told.
func writeReport(ctx context.Context, req *sdk.CallToolRequest, in reportArgs) (*sdk.CallToolResult, *report, error) {
	token := req.Params.GetProgressToken()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for i := range in.Steps {
		timer.Reset(time.Duration(in.StepMS) * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("the report was stopped after %d of %d steps: %w", i, in.Steps, context.Cause(ctx))
		}
		if token == nil {
			continue
		}
		err := req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
			ProgressToken: token, Progress: float64(i + 1), Total: float64(in.Steps), Message: stages[i],
		})
		if err != nil {
			return nil, nil, fmt.Errorf("report progress: %w", err)
		}
	}
	r := &report{in.Topic, in.Steps, fmt.Sprintf("Report about %s: after %d careful steps there is nothing to report, because this report is a demonstration of progress.", in.Topic, in.Steps)}
	return said(r.Summary), r, nil
}
