//go:build upstream

package upstream

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A client sends "arguments": null to a tool with a default in its schema. The server
// runs in a process of its own.
func TestNullArgumentsCannotEndTheServer(t *testing.T) {
	if os.Getenv("UPSTREAM_CHILD") != "" {
		callWithNull(t)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestNullArgumentsCannotEndTheServer$")
	cmd.Env = append(os.Environ(), "UPSTREAM_CHILD=1")
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "panic: ") {
		_, why, _ := strings.Cut(string(out), "panic: ")
		why, _, _ = strings.Cut(why, "\n")
		t.Errorf("one request ended the server's process (%v): %s; want an error or a result", err, why)
	} else {
		skipOnError(t, err)
	}
}

func callWithNull(t *testing.T) {
	type in struct {
		City string `json:"city"`
	}
	srv := mcp.NewServer(impl, nil)
	mcp.AddTool(srv, &mcp.Tool{Name: "t", InputSchema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string","default":"Bonn"}}}`)},
		func(context.Context, *mcp.CallToolRequest, in) (*mcp.CallToolResult, any, error) {
			return nil, nil, nil
		})
	ours, theirs := mcp.NewInMemoryTransports()
	_, err := srv.Connect(timeoutContext(t, 10*time.Second), theirs, nil)
	skipOnError(t, err)
	cs := dialSession(t, ours, legacy, nil)
	_, err = cs.CallTool(timeoutContext(t, 10*time.Second), &mcp.CallToolParams{Name: "t", Arguments: json.RawMessage("null")})
	t.Log(err)
}
