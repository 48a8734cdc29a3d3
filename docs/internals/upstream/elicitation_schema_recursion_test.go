//go:build upstream

package upstream

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The server's schema refers to itself. The client runs in a process of its own.
func TestElicitationSchemaCannotEndTheProcess(t *testing.T) {
	if os.Getenv("UPSTREAM_CHILD") != "" {
		answerRecursiveSchema(t)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestElicitationSchemaCannotEndTheProcess$")
	cmd.Env = append(os.Environ(), "UPSTREAM_CHILD=1")
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "stack overflow") {
		t.Errorf("a schema that refers to itself ended the client's process (%v): stack overflow; want an error for the server", err)
	} else {
		skipOnError(t, err)
	}
}

func answerRecursiveSchema(t *testing.T) {
	debug.SetMaxStack(64 << 20) // the default is 1 GB: the same end, later
	answered := make(chan struct{}, 1)
	s := newServer(t, func(w http.ResponseWriter, r *http.Request, m message) {
		if m.Method != "tools/call" {
			w.WriteHeader(http.StatusAccepted)
			answered <- struct{}{}
			return
		}
		send := startEventStream(w)
		send(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","$ref":"#"}}}`)
		<-answered
		send(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + textResult("done") + `}`)
	})
	cs := openSession(t, s, legacy, &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"a": "b"}}, nil
	}})
	_, err := cs.CallTool(timeoutContext(t, time.Minute), &mcp.CallToolParams{Name: "t"})
	skipOnError(t, err)
}
