package mcp

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"answerd/internal/mcp/config"
)

// A server that wants the person to go to a page first (-32042) gets its call again when they
// have agreed, once, and not before.
func TestURLElicitationPrecedesTheCallThatIsSentAgain(t *testing.T) {
	page := `{"mode":"url","elicitationId":"e","url":"https://bank.example/consent","message":"Please agree."}`
	agree := func(context.Context, Elicitation) (ElicitationResult, error) {
		return ElicitationResult{Action: Accept}, nil
	}
	for name, test := range map[string]struct {
		data   string
		times  int64 // that the server asks for it
		elicit func(context.Context, Elicitation) (ElicitationResult, error)
		asked  int64
		calls  int64
		ok     bool
		says   string // of the error
	}{
		"agreed":        {page, 1, agree, 1, 2, true, ""},
		"two pages":     {page + "," + page, 1, agree, 2, 2, true, ""},
		"without end":   {page, 100, agree, 1, 2, false, "go there"},
		"nobody there":  {page, 1, nil, 0, 1, false, "only in a run"},
		"a bad address": {strings.Replace(page, "https", "ftp", 1), 1, agree, 0, 1, false, "go there"},
		"no address":    {`{"mode":"form"}`, 1, agree, 0, 1, false, "go there"},
		"nothing":       {"", 1, agree, 0, 1, false, "go there"},
		"declined": {page + "," + page, 1, func(context.Context, Elicitation) (ElicitationResult, error) {
			return ElicitationResult{Action: Decline}, nil
		}, 1, 1, false, "the user did not agree"},
	} {
		t.Run(name, func(t *testing.T) {
			var calls, asked atomic.Int64
			s := &scriptedServer{call: func(w http.ResponseWriter, _ *http.Request, m message) {
				if calls.Add(1) > test.times {
					replyJSON(w, m.ID, textResult("done"))
					return
				}
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32042,"message":"go there","data":{"elicitations":[%s]}}}`, m.ID, test.data)
			}}

			c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL})
			call := Call{Tool: "t"}
			if test.elicit != nil {
				call.Elicit = func(ctx context.Context, e Elicitation) (ElicitationResult, error) {
					asked.Add(1)
					if e.Mode != ElicitURL || e.URL != "https://bank.example/consent" || e.Message != "Please agree." {
						t.Errorf("got the elicitation %+v, want that of the error", e)
					}
					return test.elicit(ctx, e)
				}
			}

			_, err := c.Call(t.Context(), call)
			if (err == nil) != test.ok || asked.Load() != test.asked || calls.Load() != test.calls {
				t.Errorf("got the error %v after %d elicitations and %d calls, want success %t after %d and %d", err, asked.Load(), calls.Load(), test.ok, test.asked, test.calls)
			}
			if err == nil {
				return
			}
			if e := mustFail(t, err); e.Kind != Execution || !strings.Contains(e.Message, test.says) {
				t.Errorf("got %s: %s, want %s with %q", e.Kind, e.Message, Execution, test.says)
			}
		})
	}
}
