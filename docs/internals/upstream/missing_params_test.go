//go:build upstream

package upstream

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The server's messages have no params. The client runs in a process of its own.
func TestMessagesWithoutParamsCannotEndTheProcess(t *testing.T) {
	if os.Getenv("UPSTREAM_CHILD") != "" {
		receiveWithoutParams(t, os.Getenv("UPSTREAM_CHILD"))
		return
	}
	for _, start := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"elicitation/create"`,
		`{"jsonrpc":"2.0","method":"notifications/elicitation/complete"`,
	} {
		for _, params := range []string{"", `,"params":null`} {
			cmd := exec.Command(os.Args[0], "-test.run=^TestMessagesWithoutParamsCannotEndTheProcess$")
			cmd.Env = append(os.Environ(), "UPSTREAM_CHILD="+start+params+"}")
			out, err := cmd.CombinedOutput()
			if strings.Contains(string(out), "nil pointer dereference") {
				t.Errorf("%s%s} ended the client's process (%v): nil pointer dereference; want an error for the server", start, params, err)
			} else {
				skipOnError(t, err)
			}
		}
	}
}

func receiveWithoutParams(t *testing.T, received string) {
	s := newServer(t, func(w http.ResponseWriter, r *http.Request, m message) {
		if m.Method != "tools/call" {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		send := startEventStream(w)
		send(received)
		send(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + textResult("done") + `}`)
	})
	cs := openSession(t, s, legacy, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "cancel"}, nil
		},
		ElicitationCompleteHandler: func(context.Context, *mcp.ElicitationCompleteNotificationRequest) {},
	})
	_, err := cs.CallTool(timeoutContext(t, time.Minute), &mcp.CallToolParams{Name: "t"})
	skipOnError(t, err)
	_ = cs.Close() // waits until the messages before it are handled
}
