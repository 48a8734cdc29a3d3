//go:build upstream

package upstream

import (
	"net/http"
	"testing"
	"time"
)

// The server names the same page as the next one forever.
func TestListThatNeverEndsIsAnError(t *testing.T) {
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		replyJSON(w, m, `{"tools":[{"name":"t","inputSchema":{"type":"object"}}],"nextCursor":"a"}`)
	})
	n := 0
	for _, err := range openSession(t, s, legacy, nil).Tools(timeoutContext(t, 20*time.Second), nil) {
		if err != nil {
			return
		}
		if n++; n == 1000 {
			t.Errorf("Tools has followed the same cursor %d times; want an error when a cursor comes again", n)
			return
		}
	}
}
