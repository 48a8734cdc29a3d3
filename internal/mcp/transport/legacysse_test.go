package transport

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Over HTTP+SSE, too, the answer to a question of the server is sent again if it did not get through.
func TestLegacySSESendsAnAnswerUntilItGetsThrough(t *testing.T) {
	for name, tc := range map[string]struct {
		status int // of the first two replies; 0: there is no connection
		posts  int
	}{"busy": {http.StatusServiceUnavailable, 3}, "no connection": {0, 3}, "refused": {http.StatusBadRequest, 1}} {
		synctest.Test(t, func(t *testing.T) {
			posts := 0
			answerPost := acceptThirdPost(tc.status, &posts)
			stream, server := io.Pipe()
			way := roundTripFunc(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodGet {
					resp := newStreamReply(r, "")
					resp.Body = stream
					go func() { _, _ = io.WriteString(server, "event: endpoint\ndata: /messages\n\n") }()
					return resp, nil
				}
				return answerPost(r)
			})
			e := NewLegacySSE(LegacySSEConfig{URL: &url.URL{Scheme: "http", Host: "server.test"}, RoundTripper: way, Logger: slog.New(slog.DiscardHandler)})
			x := startRoundTrip(t)
			defer x.Finish()
			c, err := e.NewTransport().Connect(x.ctx)
			if err != nil {
				t.Fatal(err)
			}
			id, _ := jsonrpc.MakeID("q") // strings always are ids
			if err := c.Write(x.ctx, &jsonrpc.Response{ID: id, Result: json.RawMessage(`{}`)}); err != nil {
				t.Errorf("%s: got %v, want no error", name, err)
			}
			Pause(t.Context(), answerTimeout)
			synctest.Wait()
			if posts != tc.posts {
				t.Errorf("%s: got %d POSTs, want %d", name, posts, tc.posts)
			}
			_ = c.Close()
			e.Close()
		})
	}
}
