package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"answerd/internal/mcp/transport"
	"answerd/internal/mcp/wire"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Names of headers, as http.Header keeps them.
const (
	versionHeader = "Mcp-Protocol-Version"
	methodHeader  = "Mcp-Method"
	nameHeader    = "Mcp-Name" // of the tool, prompt or resource that a request is about
)

// Values that all requests share. Nobody appends to them: they are full.
var (
	jsonOnly     = []string{"application/json"}
	jsonOrStream = []string{"application/json, text/event-stream"}
	streamOnly   = []string{"text/event-stream"}
)

// request is a request of this session's under ctx, with m as its body if there is one. It
// is for one trip, on which it may be changed.
func (c *streamable) request(ctx context.Context, method string, m jsonrpc.Message) (*http.Request, error) {
	var body io.Reader
	if m != nil {
		data, err := jsonrpc.EncodeMessage(m)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data) // which net/http can read again, for a new token
	}
	r, err := http.NewRequestWithContext(ctx, method, c.url, body)
	if err != nil {
		return nil, fmt.Errorf("make a %s: %w", method, err)
	}
	switch method {
	case http.MethodPost:
		r.Header["Content-Type"], r.Header["Accept"] = jsonOnly, jsonOrStream
	case http.MethodGet:
		r.Header["Accept"] = streamOnly
	}
	c.mu.Lock()
	id, version := c.id, c.version
	c.mu.Unlock()
	if id != "" {
		r.Header[sessionHeader] = []string{id}
	}
	ours, _ := m.(*jsonrpc.Request)
	switch {
	case ours != nil && ours.Method == discover:
		version = discovers(ours.Params)
	case version == "" && isClosed(c.of.ready) && c.of.cs != nil:
		version = c.of.protocol()
	}
	if version != "" {
		r.Header[versionHeader] = []string{version}
	}
	if ours != nil && version >= transport.StatelessVersion {
		describe(r.Header, ours, exchangeOf(ctx))
	}
	return r, nil
}

// discovers is the version that a server/discover is in.
func discovers(params json.RawMessage) string {
	var w struct {
		Meta struct {
			Version string `json:"io.modelcontextprotocol/protocolVersion"`
		} `json:"_meta"`
	}
	_ = json.Unmarshal(params, &w) // the SDK's own writing
	return w.Meta.Version
}

// describe puts into headers what proxies route by (2026-07-28 basic/transports, SEP-2243).
func describe(h http.Header, m *jsonrpc.Request, x *exchange) {
	h[methodHeader] = []string{m.Method}
	if name := subject(m); name != "" {
		h[nameHeader] = []string{headerValue(name)}
	}
	if m.Method == methodCall {
		for name, value := range x.headers {
			h.Set(name, value)
		}
	}
}

// subject is the name of the tool or prompt, or the URI of the resource, that m is about;
// "" for other methods.
func subject(m *jsonrpc.Request) string {
	key := "name"
	switch m.Method {
	case methodCall, methodPrompt:
	case methodRead:
		key = "uri"
	default:
		return ""
	}
	var text string
	_ = wire.Members(m.Params, func(name string, value json.RawMessage) { // of the SDK's own writing
		if name == key {
			text, _ = wire.Text(value)
		}
	})
	return text
}
