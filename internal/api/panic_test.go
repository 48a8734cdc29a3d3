package api

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"answerd/internal/event"
	"answerd/internal/mcp/host"
)

// F32: a question to an MCP host is asked on a goroutine that is no request's.
func TestAPanicOverAQuestionToAHostIsLoggedAndNoMore(t *testing.T) {
	var said bytes.Buffer
	call := &toolCall{
		h:    &Handler{Options: Options{Logger: slog.New(slog.NewTextHandler(&said, nil))}},
		call: &host.Call{Forms: true, Streams: true}, // of no request: asking panics
	}
	call.ask(t.Context(), event.Event{RunID: "run_a", Body: event.ApprovalRequired{InterruptID: "int_1"}})
	call.asking.Wait()
	if !strings.Contains(said.String(), "ask an MCP host") {
		t.Errorf("the log: %s", said.String())
	}
}
