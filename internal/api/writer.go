package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// maxWrite is how many bytes of a response a reader must take in WriteTimeout. It is also
// how many a stream gathers before it writes, so that a late reader of a long run does not
// cost a copy of it.
const maxWrite = 64 << 10

// tracked is the response to any request. It knows whether that has begun, and it is where
// all responses get their time: the server has no WriteTimeout, which would cut streams, and
// a deadline that was set for an earlier response of the connection would still hold.
//
// What is large goes in pieces, each with a time of its own: slow is not stalled. It
// unwraps, so that a stream can flush through it, in the time of its last write.
type tracked struct {
	http.ResponseWriter
	rc       *http.ResponseController
	patience time.Duration
	status   int
}

func (h *Handler) tracked(w http.ResponseWriter) *tracked {
	t := &tracked{ResponseWriter: w, rc: http.NewResponseController(w), patience: h.WriteTimeout}
	t.extend()
	return t
}

// extend gives what is written next its time, counted from now: the run before it may have
// taken any. An error is that of a connection without deadlines, in a test; the write says
// what matters.
func (t *tracked) extend() { _ = t.rc.SetWriteDeadline(time.Now().Add(t.patience)) }

// WriteHeader implements http.ResponseWriter, as Write does.
func (t *tracked) WriteHeader(status int) {
	if t.status == 0 {
		t.status = status
	}
	t.extend()
	t.ResponseWriter.WriteHeader(status)
}

func (t *tracked) Write(b []byte) (n int, err error) {
	if t.status == 0 {
		t.status = http.StatusOK
	}
	for {
		t.extend()
		var m int
		m, err = t.ResponseWriter.Write(b[n:min(n+maxWrite, len(b))])
		if n += m; err != nil || n == len(b) {
			return n, err
		}
	}
}

func (t *tracked) Unwrap() http.ResponseWriter { return t.ResponseWriter }

func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	begin(w, status, contentType)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	// An error here is a caller that left; there is nobody to tell.
	_ = enc.Encode(v)
}

// writeBody is writeJSON for what is JSON already.
func writeBody(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	begin(w, status, contentType)
	_, _ = w.Write(body) // as above
}

func begin(w http.ResponseWriter, status int, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
}
