//go:build upstream

package upstream

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestProgressIsHandledBeforeTheResult(t *testing.T) {
	const reports = 5
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		send := startEventStream(w)
		for i := range reports {
			send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":%d}}`, i+1))
		}
		send(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + textResult("done") + `}`)
	})
	var handled atomic.Int64
	returned := make(chan struct{})
	cs := openSession(t, s, legacy, &mcp.ClientOptions{ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) {
		select { // it writes to a slow reader
		case <-returned:
		case <-time.After(200 * time.Millisecond):
		}
		handled.Add(1)
	}})
	p := &mcp.CallToolParams{Name: "t"}
	p.SetProgressToken("p")
	_, err := cs.CallTool(timeoutContext(t, 10*time.Second), p)
	n := handled.Load()
	close(returned)
	skipOnError(t, err)
	if n != reports {
		t.Errorf("when the call returned %d of %d progress notifications that came before its result were handled, want all", n, reports)
	}
}

func TestNotificationsWaitAtTheServer(t *testing.T) {
	const floods, size = 20_000, 1 << 10
	var sent atomic.Int64
	release := make(chan struct{})
	defer close(release)
	transport := newLineTransport(t, func(m message, out io.Writer) {
		switch m.Method {
		case "initialize":
			writeLine(out, m, handshakeResult(m))
		case "ping":
			line := `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"x":"` + strings.Repeat("x", size) + `"}}}` + "\n"
			for range floods {
				if _, err := io.WriteString(out, line); err != nil {
					return
				}
				sent.Add(1)
			}
		}
	})
	cs := dialSession(t, transport, legacy, &mcp.ClientOptions{ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { <-release }})
	go func() { _ = cs.Ping(timeoutContext(t, time.Minute), nil) }()
	for last := int64(-1); last != sent.Load(); <-time.After(2 * time.Second) { // until the server is stalled, or done
		last = sent.Load()
	}
	if n := sent.Load(); n == floods {
		t.Errorf("the client took %d notifications of %d bytes while its handler was busy with the first; want that it stops reading", n, size)
	}
}
