package mcp

//lint:file-ignore SA1019 2026-07-28 deprecates logging (SEP-2577); servers still use it.

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
)

// logLevels are the levels of RFC 5424.
var logLevels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// The log messages of a call reach its caller and no other, in order with progress and before
// the result.
func TestLogMessagesBelongToTheirCall(t *testing.T) {
	for _, name := range []string{"stateful sse", "stateless sse"} {
		t.Run(name, func(t *testing.T) {
			w := serveHTTP(t, streamableHandler(t, newToolServer(func(s *sdk.Server) {
				addRawTool(s, "work", func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
					for i, level := range logLevels {
						_ = r.Session.Log(ctx, &sdk.LoggingMessageParams{Level: sdk.LoggingLevel(level), Logger: "work", Data: string(r.Params.Arguments)})
						_ = r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i + 1)})
					}
					return &sdk.CallToolResult{}, nil
				})
			}), flavours[name]))

			c := newClient(t, Options{MaxConcurrentCalls: 20}, config.Server{Name: "a", URL: w.URL})
			c.Tools(t.Context())

			var want []string
			for _, level := range logLevels {
				if level != "debug" { // not asked for
					want = append(want, level)
				}
			}

			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					args := fmt.Sprintf(`{"n":%d}`, i)
					quoted, _ := json.Marshal(args)
					// Without a lock: the race detector sees late ones.
					var got []string
					progress := 0.0
					_, err := c.Call(t.Context(), Call{Tool: "work", Args: json.RawMessage(args),
						Progress: func(p Progress) { progress = p.Progress },
						Log: func(m LogMessage) {
							got = append(got, m.Level)
							if string(m.Data) != string(quoted) || m.Logger != "work" || m.Omitted != 0 {
								t.Errorf("got %+v with the data %s, want the logger work and %s", m, m.Data, quoted)
							}
						}})
					if err != nil || !slices.Equal(got, want) || progress != float64(len(logLevels)) {
						t.Errorf("got %v, progress %v, %v, want %v and %d", got, progress, err, want, len(logLevels))
					}
				})
			}
			wg.Wait()
		})
	}
}

// logEvent returns a log message as a server-sent event.
func logEvent(level, data string) string {
	return fmt.Sprintf("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":%q,\"data\":%s}}\n\n", level, data)
}

// A server that logs without end costs a bounded queue, and the reader learns how many messages
// were left out.
func TestLogMessagesThatAreLeftOutAreCounted(t *testing.T) {
	t.Parallel()
	const sent = 3000
	s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) {
		send := startEventStream(w)
		for range sent {
			send(logEvent("error", `"again"`))
		}
		send("data: {\"jsonrpc\":\"2.0\",\"id\":" + string(m.ID) + ",\"result\":" + textResult("ok") + "}\n\n")
	}}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	got, omitted := 0, 0
	_, err := c.Call(t.Context(), Call{Tool: "t", Log: func(m LogMessage) {
		omitted += m.Omitted
		if m.Data != nil {
			got++
		}
	}})
	if err != nil || got+omitted != sent || got < 64 || got > 1000 {
		t.Errorf("got %d messages and %d left out, %v, want %d in all", got, omitted, err, sent)
	}
}

// A level that MCP does not have becomes notice. A server without the capability is not asked
// to set its level.
func TestLogMessagesOfUnknownLevelsAreNotices(t *testing.T) {
	asked := false
	s := &scriptedServer{
		before: func(_ http.ResponseWriter, r *http.Request) bool {
			asked = asked || strings.Contains(peekBody(r), "logging/setLevel")
			return false
		},
		call: func(w http.ResponseWriter, _ *http.Request, m message) {
			send := startEventStream(w)
			send(logEvent("loud", `1`))
			send("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":[]}\n\n")
			send("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}\n\n")
			send("data: {\"jsonrpc\":\"2.0\",\"id\":" + string(m.ID) + ",\"result\":" + textResult("ok") + "}\n\n")
		},
	}

	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	var got []string
	_, err := c.Call(t.Context(), Call{Tool: "t", Log: func(m LogMessage) { got = append(got, m.Level+string(m.Data)) }})
	if err != nil || !slices.Equal(got, []string{"notice1"}) || asked {
		t.Errorf("got %v, %v, and asked %t, want notice1 and false", got, err, asked)
	}
}

// A JSON-RPC error is an answer too: the log messages before it, which may say why, reach the reader.
func TestLogMessagesBeforeAnErrorAreDelivered(t *testing.T) {
	answered := make(chan struct{}, 1)
	s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) {
		send := startEventStream(w)
		for _, text := range []string{`"1"`, `"2"`, `"3"`} {
			send(logEvent("error", text))
		}
		send("data: {\"jsonrpc\":\"2.0\",\"id\":" + string(m.ID) + ",\"error\":{\"code\":-32603,\"message\":\"broken\"}}\n\n")
		answered <- struct{}{}
	}}
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
	for range 20 {
		var got []string
		_, err := c.Call(t.Context(), Call{Tool: "t", Log: func(m LogMessage) {
			got = append(got, string(m.Data))
			if len(got) == 1 {
				waitUntil(t, "the answer", answered)
			}
		}})
		if e := mustFail(t, err); e.Kind != Execution || !slices.Equal(got, []string{`"1"`, `"2"`, `"3"`}) {
			t.Fatalf("got %v and %v, want %s and all three messages", got, e, Execution)
		}
	}
}
