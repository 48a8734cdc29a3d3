package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// maxWrite is the number of bytes that a client must accept within WriteTimeout. A stream writes as soon as it has
// collected this many, so that a client who joins a long run does not make the service hold a copy of the whole run.
const maxWrite = 64 << 10

// deadlineWriter is the ResponseWriter of every request. It sets the write deadlines, and records whether the response
// has begun.
//
// http.Server.WriteTimeout cannot be used instead, because it would end streams. A large response is written in chunks,
// each with its own deadline, so that a slow client is not mistaken for a stalled one.
//
// It has no deadline between writes: over HTTP/2, net/http resets a stream when its deadline passes, even if nothing
// is being written, for example because the model is silent.
type deadlineWriter struct {
	http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration // for one chunk
	status  int           // 0 until the response begins
}

// newDeadlineWriter returns a writer without a deadline. Over HTTP/1.1, the connection still had that of its last
// response.
func newDeadlineWriter(w http.ResponseWriter, timeout time.Duration) *deadlineWriter {
	d := &deadlineWriter{ResponseWriter: w, rc: http.NewResponseController(w), timeout: timeout}
	d.clearDeadline()
	return d
}

// extendDeadline sets the deadline of the next write to now plus wait plus the timeout. wait is how long net/http may
// do something else before it writes. Errors are ignored: only the connections of tests support no deadlines, and they
// need none.
func (d *deadlineWriter) extendDeadline(wait time.Duration) {
	_ = d.rc.SetWriteDeadline(time.Now().Add(wait + d.timeout))
}

// clearDeadline removes the deadline after a write.
func (d *deadlineWriter) clearDeadline() { _ = d.rc.SetWriteDeadline(time.Time{}) }

// WriteHeader implements http.ResponseWriter.
func (d *deadlineWriter) WriteHeader(status int) {
	if d.status == 0 {
		d.status = status
	}
	d.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter. It writes chunks of maxWrite bytes, each with its own
// deadline.
func (d *deadlineWriter) Write(buf []byte) (written int, err error) {
	if d.status == 0 {
		d.status = http.StatusOK
	}
	defer d.clearDeadline()
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

// FlushError lets http.ResponseController flush the response, with a deadline of its own.
func (d *deadlineWriter) FlushError() error {
	d.extendDeadline(0)
	defer d.clearDeadline()
	return d.rc.Flush()
}

// Unwrap returns the wrapped ResponseWriter to http.ResponseController.
func (d *deadlineWriter) Unwrap() http.ResponseWriter { return d.ResponseWriter }

// writeJSON writes v as the whole response, which no cache may store. v must be a value that encoding/json can encode.
// Errors of the connection are ignored, because a client that has disconnected needs no answer.
func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	writeHeader(w, status, contentType)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}

// answerJSON answers with v and status 200 (writeJSON). It always returns nil, so that a handler can return its result.
func answerJSON(w http.ResponseWriter, v any) error {
	writeJSON(w, http.StatusOK, "application/json", v)
	return nil
}

// writeBody writes body, which is already encoded, as the whole response with status 200. No cache may store it.
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

// writeNoContent answers 204. Without Cache-Control, a cache could store the response (RFC 9110 section 15.3.5) and
// repeat it for a later request, when the stream has events again.
func writeNoContent(w http.ResponseWriter) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

// statusFilter wraps the ResponseWriter for a handler of another package whose error responses are to be problem
// documents. It drops a response if drops returns true for its status. The caller must check dropped afterwards, and
// then write a response itself. Header fields of a dropped response remain set, unless that response replaces them. A
// statusFilter is not safe for concurrent use.
type statusFilter struct {
	http.ResponseWriter
	drops   func(status int) bool
	dropped bool // WriteHeader was called with a status to drop
}

// Unwrap lets http.ResponseController reach the wrapped writer.
func (f *statusFilter) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// WriteHeader implements http.ResponseWriter. It writes nothing if the response is dropped.
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
