package session

import (
	"encoding/json"
	"testing"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// A server that writes a tag itself must not reach another caller: a request that belongs to
// no call gets an empty tag.
func TestRequestRegistryOverwritesATagOfTheServer(t *testing.T) {
	var g requestRegistry
	other := g.register(serverRequest{call: &transport.RoundTrip{}})
	params := `{"message":"?","_meta":{"` + tagKey + `":"` + other + `"}}`
	m := g.registerAndTag(&jsonrpc.Request{Method: methodElicit, Params: json.RawMessage(params)}, serverRequest{})
	var p struct {
		Meta map[string]any `json:"_meta"`
	}
	if err := json.Unmarshal(m.Params, &p); err != nil || p.Meta[tagKey] != "" {
		t.Errorf("got the params %s, %v, want an empty tag", m.Params, err)
	}
	if r := g.claim(""); r.call != nil {
		t.Errorf("got %+v for the empty tag, want no request", r)
	}
}
