package mcp

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
)

// S0.6 over one connection for all calls: a call that is alone is asked and gets its
// log messages; from 2026-07-28 on so is any.
func TestElicitationOverStreamConnReachesTheOnlyCall(t *testing.T) {
	for _, version := range []string{"", "2025-11-25"} {
		server := newToolServer(func(s *sdk.Server) {
			addRawTool(s, "ask", func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				given := r.Params.InputResponses["q"]
				if given == nil {
					return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"q": &sdk.ElicitParams{
						Mode: "form", Message: "How many?", RequestedSchema: json.RawMessage(bookingForm),
					}}}, nil
				}
				said, err := json.Marshal(given)
				return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: string(said)}}}, err
			})
		})
		c := newPipedClient(t, Options{}, config.Server{ProtocolVersion: version}, func(conn net.Conn) {
			_ = server.Run(t.Context(), &sdk.IOTransport{Reader: conn, Writer: conn})
		})
		res, err := c.Call(t.Context(), Call{Tool: "ask", Elicit: func(_ context.Context, e Elicitation) (ElicitationResult, error) {
			if e.Message != "How many?" || string(e.Schema) != bookingForm {
				t.Errorf(`asked %+v, want Message "How many?", Schema %q`, e, bookingForm)
			}
			return ElicitationResult{Action: Accept, Content: json.RawMessage(`{"people":3}`)}, nil
		}})
		if got := mustResult(t, res, err).Text(); !strings.Contains(got, `{"people":3}`) {
			t.Errorf(`%q: %s, want it to contain {"people":3}`, version, got)
		}
	}
}

const errorLogMessage = `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"here"}}`

// countLogs counts the log messages that a call gets.
func countLogs(ctx context.Context, c *Client) (logs int, err error) {
	_, err = c.Call(ctx, Call{Tool: "t", Log: func(LogMessage) { logs++ }})
	return logs, err
}

func TestLogMessagesOverStreamConnBelongToTheOnlyCall(t *testing.T) {
	held := make(chan message, 1)
	together := false
	entered := make(chan struct{}, 2)
	c := newPipedClient(t, Options{}, config.Server{}, scriptedPeer(func(m message, say func(string)) {
		if !together {
			say(errorLogMessage)
			say(resultFor(m, textResult("ok")))
			return
		}
		entered <- struct{}{}
		select {
		case one := <-held: // two are here
			say(errorLogMessage)
			say(resultFor(one, textResult("ok")))
			say(resultFor(m, textResult("ok")))
		default:
			held <- m
		}
	}))

	if logs, err := countLogs(t.Context(), c); err != nil || logs != 1 {
		t.Errorf("alone: %d messages, %v, want 1 and no error", logs, err)
	}
	together = true

	done := make(chan struct{})
	go func() {
		defer close(done)
		if logs, err := countLogs(t.Context(), c); err != nil || logs != 0 {
			t.Errorf("the first of two: %d messages, %v, want 0 and no error", logs, err)
		}
	}()

	<-entered
	if logs, err := countLogs(t.Context(), c); err != nil || logs != 0 {
		t.Errorf("the second of two: %d messages, %v, want 0 and no error", logs, err)
	}
	<-done
}

// A message that may belong to a call that was given up is given to no call.
func TestServerMessagesAreNotAttributedAfterAnAbandonedCall(t *testing.T) {
	entered, first := make(chan struct{}), true
	c := newPipedClient(t, Options{}, config.Server{}, scriptedPeer(func(m message, say func(string)) {
		if first {
			first = false
			close(entered)
			return // never answered
		}
		say(errorLogMessage)
		say(resultFor(m, textResult("ok")))
	}))

	ctx, leave := context.WithCancel(t.Context())
	go func() { <-entered; leave() }()
	if _, err := countLogs(ctx, c); mustFail(t, err).Kind != Cancelled {
		t.Errorf("error %v, want Kind Cancelled", err)
	}
	if logs, err := countLogs(t.Context(), c); err != nil || logs != 0 {
		t.Errorf("%d messages, %v, want 0 and no error", logs, err)
	}
}
