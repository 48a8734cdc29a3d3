package mcp

//lint:file-ignore SA1019 2026-07-28 deprecates logging (SEP-2577); servers still send it.

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/content"
)

// newPipedServerClient returns a connected client of a real server at the other end of a pipe.
func newPipedServerClient(t *testing.T, cfg config.Server, s *sdk.Server) *Client {
	c := newPipedClient(t, Options{}, cfg, func(conn net.Conn) {
		_ = s.Run(context.Background(), &sdk.IOTransport{Reader: conn, Writer: conn})
	})
	for !c.Ready() { // Tools waits for Options.StartWait only
		c.waitForFirstAttempts(t.Context(), auth.Identity{})
	}
	return c
}

// answeringUser answers elicitations as a person would, and counts them.
type answeringUser struct {
	asked int // without a lock: the race detector sees late ones
	logs  int
}

func (q *answeringUser) call(ctx context.Context, c *Client, tool string) (*content.Result, error) {
	return c.Call(ctx, Call{Tool: tool,
		Log: func(LogMessage) { q.logs++ },
		Elicit: func(context.Context, Elicitation) (ElicitationResult, error) {
			q.asked++
			return ElicitationResult{Action: Accept, Content: json.RawMessage(`{"people":4}`)}, nil
		}})
}

// S0.6: over a connection that all calls share, a question reaches the person behind the only call
// in flight. It reaches nobody if there are two calls, or one that was given up and that the server
// may still work on, for however long. In fake time.
func TestElicitationOverStreamConnNeedsOneCallInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		c := newPipedServerClient(t, config.Server{ProtocolVersion: "2025-11-25"}, newToolServer(func(s *sdk.Server) {
			addRawTool(s, "hold", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				<-release // whether it is cancelled or not
				return &sdk.CallToolResult{}, nil
			})
			addRawTool(s, "ask", func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				_ = r.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "error", Data: "on it"})
				res, err := r.Session.Elicit(ctx, &sdk.ElicitParams{
					Meta: sdk.Meta{"answerd/request": "1"}, Message: "?", RequestedSchema: json.RawMessage(bookingForm),
				})
				if err != nil {
					return nil, err
				}
				return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: res.Action}}}, nil
			})
		}))
		checkAsks := func(want string, times int) {
			t.Helper()
			var q answeringUser
			res, err := q.call(t.Context(), c, "ask")
			if got := mustResult(t, res, err).Text(); got != want || q.asked != times || q.logs != times {
				t.Errorf("%s, asked %d times, %d log messages; want %s", got, q.asked, q.logs, want)
			}
		}
		checkAsks(Accept, 1)

		ctx, leave := context.WithCancel(t.Context())
		var held answeringUser
		done := make(chan error, 1)
		go func() { _, err := held.call(ctx, c, "hold"); done <- err }()
		synctest.Wait()
		checkAsks(Decline, 0)
		leave()
		if k := mustFail(t, <-done); k.Kind != Cancelled || held != (answeringUser{}) {
			t.Errorf("%v, %+v, want Cancelled and no questions", k, held)
		}
		<-time.After(time.Hour)
		checkAsks(Decline, 0)
		close(release)
		synctest.Wait()
		checkAsks(Accept, 1)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// S3.8: a list that changed is listed again, also where no call is under way. So is
// that of resources, for servers whose resources are offered.
func TestStreamConnHandlesListChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newToolServer(func(s *sdk.Server) {
			s.AddResource(&sdk.Resource{URI: "x:1", Name: "1"}, nil)
		})
		c := newPipedServerClient(t, config.Server{ProtocolVersion: "2025-11-25", Resources: []string{"x:*"}}, server)
		addRawTool(server, "new", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{}, nil
		})
		<-time.After(time.Minute)
		if _, ok := c.Tool("new"); !ok {
			t.Errorf("tools %+v, want new among them", c.Tools(t.Context()))
		}
		server.AddResource(&sdk.Resource{URI: "x:2", Name: "2"}, nil)
		<-time.After(time.Minute)
		if r, ok := c.Tool(readTool); !ok || !strings.Contains(r.Description, "x:2") {
			t.Errorf("tool %+v, want Description containing x:2", r)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}
