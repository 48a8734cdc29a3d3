//go:build upstream

package upstream

import (
	"net/http"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestTaskIsNoEmptyResult(t *testing.T) {
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		replyJSON(w, m, `{"resultType":"task","taskId":"1"}`)
	})
	res, err := openSession(t, s, modern, nil).CallTool(timeoutContext(t, 10*time.Second), &mcp.CallToolParams{Name: "t"})
	if err == nil {
		t.Errorf("a result of type task: got %+v without an error, want an error or the task", *res)
	}
}

// 2026-07-28 basic/utilities/mrtr: a result may have a state alone, to be sent again with.
func TestInputRequiredWithStateAloneIsSentAgain(t *testing.T) {
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		if m.Params.RequestState == "" {
			replyJSON(w, m, `{"resultType":"input_required","requestState":"s"}`)
			return
		}
		replyJSON(w, m, textResult("done"))
	})
	res, err := openSession(t, s, modern, nil).CallTool(timeoutContext(t, 10*time.Second), &mcp.CallToolParams{Name: "t"})
	if err != nil || resultText(res) != "done" {
		t.Errorf("an unfinished result with a state: got %+v, %v, want that it is sent again with the state", res, err)
	}
}
