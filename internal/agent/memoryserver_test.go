package agent_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"answerd/internal/mcp"
	"answerd/internal/mcp/config"
)

// memoryServer is an MCP server behind a RoundTripper, by the names of its tools: for
// fake time, where real sockets cannot be, and for answers that no SDK would give. A
// tool returns the body of its answer, in which %s is the request's id.
type memoryServer map[string]func(*http.Request) (string, error)

func (s memoryServer) RoundTrip(r *http.Request) (*http.Response, error) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct{ Name string }
	}
	if r.Body != nil {
		_ = json.NewDecoder(r.Body).Decode(&m)
		_ = r.Body.Close()
	}

	resp := &http.Response{
		StatusCode: http.StatusOK, Request: r, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: http.NoBody,
	}

	body, err := "", error(nil)
	switch {
	case m.Method == "server/discover":
		resp.StatusCode = http.StatusBadRequest // an older protocol
		return resp, nil
	case m.Method == "initialize":
		body = `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"memory","version":"1"}}}`
	case m.Method == "tools/list":
		tools := ""
		for _, name := range slices.Sorted(maps.Keys(s)) {
			tools += fmt.Sprintf(`,{"name":%q,"inputSchema":{"type":"object"}}`, name)
		}
		body = `{"jsonrpc":"2.0","id":%s,"result":{"tools":[` + strings.TrimPrefix(tools, ",") + `]}}`
	case m.Method == "tools/call":
		body, err = s[m.Params.Name](r)
	default:
		resp.StatusCode = http.StatusAccepted
		return resp, nil
	}
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(strings.NewReader(strings.Replace(body, "%s", string(m.ID), 1)))
	return resp, nil
}

// client returns a client of the server, under each of the configurations given.
func (s memoryServer) client(t *testing.T, configs ...config.Server) *mcp.Client {
	t.Helper()
	for i := range configs {
		configs[i].URL = "http://localhost/" + configs[i].Name
	}
	c, err := mcp.New(configs, mcp.Options{
		Logger: slog.New(slog.DiscardHandler), StartWait: time.Minute, Transport: func(http.RoundTripper) http.RoundTripper { return s },
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// textReply returns the reply of a tool whose result is the text s.
func textReply(s string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%%s,"result":{"content":[{"type":"text","text":%q}]}}`, s)
}

// neverReply waits until the caller gives up.
func neverReply(r *http.Request) (string, error) {
	<-r.Context().Done()
	return "", r.Context().Err()
}
