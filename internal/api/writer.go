package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// maxWrite is the number of bytes that a reader must accept within WriteTimeout. A stream also
// writes when it has collected this many, so that a reader that joins a long run late does not
// cost a copy of the run.
const maxWrite = 64 << 10

// deadlineWriter is the ResponseWriter of every request. It sets the write deadlines and knows
// whether the response has begun.
//
// The deadlines are here because http.Server.WriteTimeout would end streams, and because a
// deadline set for an earlier response of the connection would still hold. A large response is
// written in chunks, each with a deadline of its own: a slow reader is not a stalled one. Unwrap
// lets a stream flush, within the deadline of its last write.
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

// extendDeadline sets the deadline of the next write, counted from now, because the run may have
// taken any time since the last write. wait is how long net/http may do something else before it writes.
// extendDeadline ignores errors, which come from connections without deadlines (in tests); the write
// itself reports what matters.
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

// writeJSON writes a value as the whole response. It ignores errors of the connection: a caller that
// has left needs no answer.
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
	_, _ = w.Write(body) // as in writeJSON
}

// writeHeader writes the header of a response that no cache may store.
func writeHeader(w http.ResponseWriter, status int, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
}

// writeNoContent answers 204, which caches may store without a header that says otherwise (RFC 9110
// section 15.3.5). A stream with nothing more to read now may have more later.
func writeNoContent(w http.ResponseWriter) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

// statusFilter drops responses of a handler that is not ours and has a status for which drops is
// true. The caller then answers with a problem document. Only one goroutine uses it. The header fields
// that the handler has set stay set, unless the problem document replaces them.
type statusFilter struct {
	http.ResponseWriter
	drops   func(status int) bool
	dropped bool
}

// Unwrap lets http.ResponseController reach the wrapped writer.
func (f *statusFilter) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (f *statusFilter) WriteHeader(status int) {
	f.dropped = f.dropped || f.drops(status)
	if !f.dropped {
		f.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (f *statusFilter) Write(b []byte) (int, error) {
	if f.dropped {
		return len(b), nil
	}
	return f.ResponseWriter.Write(b)
}
