package api_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent"
	"answerd/internal/event/memory"
)

// The write deadline applies to writes only: an answer may take longer, and a stream may be silent for longer.
func TestSlowRunIsAnsweredOverHTTP2(t *testing.T) {
	for path, body := range map[string]string{
		"/answer":              question,
		"/answer/stream":       question,
		"/v1/chat/completions": `{"stream":true,"model":"slow","messages":[{"role":"user","content":"?"}]}`,
		"/mcp":                 `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + callParams(question, "") + `}`,
	} {
		t.Run(path, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { askOverHTTP2(t, path, body) }) })
	}
}

// askOverHTTP2 asks slowModel at path, and expects its whole answer.
func askOverHTTP2(t *testing.T, path, body string) {
	t.Helper()
	h := newHandler(t, agent.Options{Model: slowModel{time.Minute}, Log: memory.New(memory.Options{}), DefaultModel: "slow"})
	dial := serveOverPipes(t, h)
	var http2 http.Protocols
	http2.SetUnencryptedHTTP2(true)
	transport := &http.Transport{
		Protocols:   &http2,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return dial(), nil },
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequest("POST", "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {"tools/call"}, "Mcp-Name": {"answer"},
	}
	resp, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatalf("got the error %v, want a response", err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(got), "ed.") {
		t.Errorf("got %s and the error %v, want an answer that ends with ed.", got, err)
	}
}
