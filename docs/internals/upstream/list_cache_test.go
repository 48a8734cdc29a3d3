//go:build upstream

package upstream

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// If an option to pass the cache comes, the second list is to use it.
func TestListToolsCanReachTheServer(t *testing.T) {
	var lists atomic.Int64
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, m message) {
		lists.Add(1)
		replyJSON(w, m, `{"resultType":"complete","ttlMs":3600000,"tools":[{"name":"t","inputSchema":{"type":"object"}}]}`)
	})
	cs := openSession(t, s, modern, nil)
	for range 2 {
		_, err := cs.ListTools(timeoutContext(t, 10*time.Second), nil)
		skipOnError(t, err)
	}
	if n := lists.Load(); n != 2 {
		t.Errorf("ListTools was called twice, and the server was asked %d times; want a way to ask it again within ttlMs", n)
	}
}
