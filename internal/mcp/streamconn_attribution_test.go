package mcp

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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

// A server need not answer a call that was cancelled (2025-11-25 basic/utilities/cancellation). So a question that
// could be about such a call is declined, and a new connection makes questions attributable again, once no call is in
// flight that the change would end. In fake time.
func TestElicitationAfterAnAbandonedCallWorksOverANewConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end, release := make(chan struct{}), make(chan struct{})
		server := newToolServer(func(s *sdk.Server) {
			for name, ended := range map[string]chan struct{}{"hang": end, "hold": release} {
				addRawTool(s, name, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
					<-ended // whether it is cancelled or not
					return &sdk.CallToolResult{}, nil
				})
			}
			addRawTool(s, "ask", func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				res, err := r.Session.Elicit(ctx, &sdk.ElicitParams{Message: "?", RequestedSchema: json.RawMessage(bookingForm)})
				if err != nil {
					return nil, err
				}
				return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: res.Action}}}, nil
			})
		})
		var connections atomic.Int64
		c := newPipedClient(t, Options{}, config.Server{ProtocolVersion: "2025-11-25"}, func(conn net.Conn) {
			connections.Add(1)
			_ = server.Run(context.Background(), &sdk.IOTransport{Reader: conn, Writer: conn})
		})
		checkAsks := func(want string, wantConnections int64) {
			t.Helper()
			var q answeringUser
			res, err := q.call(t.Context(), c, "ask")
			if got := mustResult(t, res, err).Text(); got != want || connections.Load() != wantConnections {
				t.Errorf("got %s over connection %d, want %s over connection %d", got, connections.Load(), want, wantConnections)
			}
		}
		<-time.After(time.Hour)
		checkAsks(Accept, 1)

		var q answeringUser
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if _, err := q.call(ctx, c, "hang"); err == nil {
			t.Error("got no error of a call that was cancelled, want one")
		}
		held := make(chan error, 1)
		go func() { _, err := q.call(t.Context(), c, "hold"); held <- err }()
		synctest.Wait()
		checkAsks(Decline, 1)
		close(release)
		if err := <-held; err != nil { // it was in flight beside a question that was declined
			t.Errorf("got %v of a call in flight, want no error", err)
		}
		checkAsks(Decline, 1)
		checkAsks(Accept, 2)
		close(end)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}
