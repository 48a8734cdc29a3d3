package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// maxWrite is the number of bytes that a reader must accept within WriteTimeout. A stream writes when it has collected
// that many bytes, so that a reader who joins a long run does not cost a copy of the whole run.
const maxWrite = 64 << 10

// deadlineWriter is the ResponseWriter of every request. It sets the write deadlines and knows
// whether the response has begun.
//
// http.Server.WriteTimeout cannot be used instead, because it would end streams. A deadline stays set on the connection
// after its response, so each response must set its own. A large response is written in chunks, each with a deadline of
// its own, so that a slow reader is not taken for a stalled reader. Unwrap lets a stream flush, within the deadline of
// its last write.
type deadlineWriter struct {
	http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration // for one chunk
	status  int           // 0 until the response begins
}

// newDeadlineWriter returns a writer whose first deadline begins now.
func newDeadlineWriter(w http.ResponseWriter, timeout time.Duration) *deadlineWriter {
	d := &deadlineWriter{ResponseWriter: w, rc: http.NewResponseController(w), timeout: timeout}
	d.extendDeadline(0)
	return d
}

// extendDeadline sets the deadline of the next write to wait and the timeout from now. wait is how long net/http may do
// something else before it writes. The deadline counts from now because the last write may be any time ago.
// extendDeadline ignores errors, because the connections that have no deadlines (in tests) need none.
func (d *deadlineWriter) extendDeadline(wait time.Duration) {
	_ = d.rc.SetWriteDeadline(time.Now().Add(wait + d.timeout))
}

// WriteHeader implements http.ResponseWriter.
func (d *deadlineWriter) WriteHeader(status int) {
	if d.status == 0 {
		d.status = status
	}
	d.extendDeadline(0)
	d.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter. It writes chunks of maxWrite bytes, each with its own
// deadline.
func (d *deadlineWriter) Write(buf []byte) (written int, err error) {
	if d.status == 0 {
		d.status = http.StatusOK
	}
	for {
		d.extendDeadline(0)
		chunk := buf[written:min(written+maxWrite, len(buf))]
		n, err := d.ResponseWriter.Write(chunk)
		written += n
		if err != nil || written == len(buf) {
			return written, err
		}
	}
}

// Unwrap returns the wrapped ResponseWriter to http.ResponseController.
func (d *deadlineWriter) Unwrap() http.ResponseWriter { return d.ResponseWriter }

// writeJSON writes a value as the whole response, which no cache may store. It ignores errors of the connection: a
// caller who has left needs no answer. v must be a value that encoding/json can encode.
func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	writeHeader(w, status, contentType)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}

// writeBody writes body, which is encoded already, as the whole response with status 200.
func writeBody(w http.ResponseWriter, contentType string, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	writeHeader(w, http.StatusOK, contentType)
	_, _ = w.Write(body) // fails only if the caller has left
}

// writeHeader writes the header of a response that no cache may store.
func writeHeader(w http.ResponseWriter, status int, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
}

// writeNoContent answers 204. Without Cache-Control a cache could store it (RFC 9110 section 15.3.5), and would then
// give it to a later request for a stream that has events again.
func writeNoContent(w http.ResponseWriter) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

// statusFilter is the ResponseWriter for a handler of another package, whose error responses are to be problem
// documents. It drops a response with a status for which drops is true. The caller must then answer instead (dropped).
// Header fields that the handler has set stay set, unless that answer replaces them. Only one goroutine may use a
// statusFilter.
type statusFilter struct {
	http.ResponseWriter
	drops   func(status int) bool
	dropped bool // WriteHeader was called with a status to drop
}

// Unwrap lets http.ResponseController reach the wrapped writer.
func (f *statusFilter) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// WriteHeader implements http.ResponseWriter. It writes nothing if the response is to be dropped.
func (f *statusFilter) WriteHeader(status int) {
	f.dropped = f.dropped || f.drops(status)
	if !f.dropped {
		f.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter. The bytes of a dropped response count as written.
func (f *statusFilter) Write(b []byte) (int, error) {
	if f.dropped {
		return len(b), nil
	}
	return f.ResponseWriter.Write(b)
}
