//go:build upstream

package upstream

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestInvalidToolHidesNoOther(t *testing.T) {
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		replyJSON(w, m, `{"tools":[{"name":7,"inputSchema":{"type":"object"}},{"name":"good","inputSchema":{"type":"object"}}]}`)
	})
	l, err := openSession(t, s, legacy, nil).ListTools(timeoutContext(t, 10*time.Second), nil)
	if err != nil || len(l.Tools) != 1 {
		t.Errorf("a page with one bad tool and one good: got %v, want the good one", err)
	}
}

func TestUnknownContentIsKept(t *testing.T) {
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		replyJSON(w, m, `{"content":[{"type":"hologram","shape":"x"},{"type":"text","text":"hello"}]}`)
	})
	_, err := openSession(t, s, legacy, nil).CallTool(timeoutContext(t, 10*time.Second), &mcp.CallToolParams{Name: "t"})
	if err != nil {
		t.Errorf("a result with content of an unknown type: got %v, want a result with the text and the unknown content", err)
	}
}

func TestLargeIntegerSurvives(t *testing.T) {
	const n = "9007199254740993" // 2^53 + 1
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		replyJSON(w, m, `{"content":[],"structuredContent":{"id":`+n+`}}`)
	})
	res, err := openSession(t, s, legacy, nil).CallTool(timeoutContext(t, 10*time.Second), &mcp.CallToolParams{Name: "t"})
	skipOnError(t, err)
	got, err := json.Marshal(res.StructuredContent)
	skipOnError(t, err)
	if !strings.Contains(string(got), n) {
		t.Errorf("structuredContent: got %s, want id %s", got, n)
	}
}

// The order of a schema's properties is that of the form or the documentation made of it.
func TestSchemaIsKeptAsReceived(t *testing.T) {
	const schema = `{"type":"object","properties":{"to":{"type":"string"},"from":{"type":"string"}}}`
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		replyJSON(w, m, `{"tools":[{"name":"t","inputSchema":`+schema+`}]}`)
	})
	l, err := openSession(t, s, legacy, nil).ListTools(timeoutContext(t, 10*time.Second), nil)
	skipOnError(t, err)
	got, err := json.Marshal(l.Tools[0].InputSchema)
	skipOnError(t, err)
	if string(got) != schema {
		t.Errorf("inputSchema: got %s, want %s", got, schema)
	}
}
