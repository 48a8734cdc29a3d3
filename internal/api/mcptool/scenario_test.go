package mcptool_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"answerd/internal/api/mcptool"
	"answerd/internal/api/native"
	"answerd/internal/api/scenario"
	"answerd/internal/event"
)

// TestScenarios compares what the client of each run gets with a golden file: progress messages with
// the numbers of their events, log messages, elicitations and the result. The client supports elicitation.
func TestScenarios(t *testing.T) {
	for _, s := range scenario.All(t) {
		t.Run(s.Name, func(t *testing.T) {
			var out bytes.Buffer
			reporter := mcptool.NewProgressReporter()
			for _, e := range s.Events {
				writeReport(t, &out, reporter, e)
			}
			s.Golden(t, "mcp.golden", out.Bytes())
		})
	}
}

func writeReport(t *testing.T, out *bytes.Buffer, reporter *mcptool.ProgressReporter, e event.Event) {
	if message := reporter.MessageFor(e); message != "" {
		fmt.Fprintf(out, "progress %d %q\n", e.Seq, message)
	}
	run := event.Run{ID: e.RunID, ThreadID: scenario.ThreadID}
	switch b := e.Body.(type) {
	case event.LogMessage:
		level, logger := mcptool.LogSource(b)
		fmt.Fprintf(out, "log %s %s %s\n", level, logger, b.Data)
	case event.Suspended:
		for _, i := range b.Interrupts {
			fmt.Fprintf(out, "elicit %s\n", encodeJSON(t, mcptool.ElicitationOf(i)))
		}
		run.Last = e
		fmt.Fprintf(out, "or result %s\n", encodeJSON(t, mcptool.SuspendedResult(native.NewStatus(run, nil))))
	case event.FinalAnswer:
		fmt.Fprintf(out, "result %s\n", encodeJSON(t, mcptool.CompletedResult(run, b)))
	case event.RunError:
		fmt.Fprintf(out, "result %s\n", encodeJSON(t, mcptool.FailedResult(run, map[string]string{"code": b.Code, "detail": b.Message}, b.Message)))
	case event.Cancelled:
		fmt.Fprintf(out, "result %s\n", encodeJSON(t, mcptool.FailedResult(run, map[string]string{"code": "conflict"}, "The run was cancelled.")))
	}
}

func encodeJSON(t *testing.T, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSpace(b.Bytes())
}
