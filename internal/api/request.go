package api

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"answerd/internal/agent"
	"answerd/internal/api/native"
)

const (
	// maxIdempotencyKey bounds an Idempotency-Key, in bytes.
	maxIdempotencyKey = 255
	// maxReserved bounds the memory, in bytes, that a Content-Length reserves before the body arrives.
	maxReserved = 128 << 10
	// maxWait bounds how long a caller can wait for a person's input.
	maxWait = time.Hour
)

// routePath returns the path that chi matches with the routes: URL.RawPath if it is set, and URL.Path otherwise.
// net/url sets RawPath only if the request's path is not in the default escaping.
func routePath(r *http.Request) string { return cmp.Or(r.URL.RawPath, r.URL.Path) }

// pathParam returns the path parameter name, unescaped. chi takes parameters from routePath, so they may be escaped.
// Clients escape characters such as a slash in the ids of models, threads, chats and calls, and in names of servers.
func pathParam(r *http.Request, name string) string {
	value := chi.URLParam(r, name)
	if r.URL.RawPath != "" {
		value, _ = url.PathUnescape(value) // cannot fail: net/http refuses a path with a wrong escape
	}
	return value
}

// readBody reads the whole JSON body, at most MaxBody bytes. A handler must call it before it starts anything: net/http
// cancels the request's context when the client disconnects, but only once the body has been read. The error is a
// *problem, an *http.MaxBytesError or an *agent.Refusal.
func (h *Handler) readBody(r *http.Request) ([]byte, error) {
	if err := requireJSON(r); err != nil {
		return nil, err
	}
	if r.ContentLength > h.MaxBody {
		// Leave the body unread, so that net/http sends no 100 Continue (RFC 9110 section 10.1.1).
		return nil, &http.MaxBytesError{Limit: h.MaxBody}
	}
	// ReadFrom needs MinRead bytes at the end. Without them it would double the buffer.
	declared := min(max(r.ContentLength, 0), maxReserved)
	body := bytes.NewBuffer(make([]byte, 0, declared+bytes.MinRead))
	_, err := body.ReadFrom(http.MaxBytesReader(nil, r.Body, h.MaxBody))
	if err == nil {
		return body.Bytes(), nil
	}
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLarge
	}
	if refusal, ok := errors.AsType[*agent.Refusal](err); ok { // from countedBody
		return nil, refusal
	}
	// Clients retry after 408, so only a body that exceeds the server's ReadTimeout gets this status.
	if netErr, ok := errors.AsType[net.Error](err); ok && netErr.Timeout() {
		return nil, newProblem("timeout", "The body did not arrive in time.")
	}
	return nil, newProblem("invalid_request", "The body is incomplete, or its chunks are malformed.")
}

// readIdempotencyKey sets in req r's Idempotency-Key and a fingerprint of path and body. It does nothing if r has no such
// header. The agent refuses a repeated key with another fingerprint. The native routes count as one path, because they
// all take the same question. Their bodies are compared in the canonical form of RFC 8785, so that a client may send a
// question once as a query and once as a body. The error is a *problem about the key.
func readIdempotencyKey(r *http.Request, body []byte, req *agent.Request) error {
	keys := r.Header.Values("Idempotency-Key")
	if len(keys) == 0 {
		return nil
	}
	key := keys[0]
	notASCII := strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' })
	if len(keys) > 1 || key == "" || len(key) > maxIdempotencyKey || notASCII {
		return newProblem("invalid_request", "Idempotency-Key must be one value of 1 to 255 ASCII characters.")
	}
	path := r.URL.Path
	if path == "/answer/stream" || path == "/answer" {
		path = "/answer"
		body = native.CanonicalBody(body)
	}
	req.IdempotencyKey = key
	req.Fingerprint = sha256.Sum256(body)
	pathDigest := sha256.Sum256([]byte(path))
	copy(req.Fingerprint[:agent.FingerprintPathBytes], pathDigest[:])
	return nil
}

// requireJSON returns a problem unless the request's Content-Type is JSON in UTF-8 and it has no Content-Encoding. This
// also refuses HTML forms, which a browser sends to other origins without a CORS preflight.
func requireJSON(r *http.Request) error {
	mediaType, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset := strings.ToLower(params["charset"])
	if err != nil || mediaType != "application/json" || !slices.Contains([]string{"", "utf-8", "utf8"}, charset) {
		return newProblem("unsupported_media", "The body must be application/json in UTF-8.")
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		p := newProblem("unsupported_media", "The body must not have a Content-Encoding.")
		p.header.Set("Accept-Encoding", "identity") // RFC 9110 section 15.5.16
		return p
	}
	return nil
}

// accepting wraps f, whose response has the media type mediaType. Requests that do not accept this type get the problem
// of requireAcceptable, and f is not called.
func accepting(mediaType string, f func(http.ResponseWriter, *http.Request) error) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := requireAcceptable(r, mediaType); err != nil {
			return err
		}
		return f(w, r)
	}
}

// requireAcceptable returns a problem if the Accept header excludes offered, the response's media type. If several
// media ranges match offered, the most specific one decides (RFC 9110 section 12.5.1). A request without Accept, or
// with an empty one, accepts any media type.
func requireAcceptable(r *http.Request, offered string) error {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if strings.Trim(accept, ", \t") == "" {
		return nil
	}
	mainType, _, _ := strings.Cut(offered, "/")
	matching := []string{"*/*", mainType + "/*", offered} // the media ranges that match, the most specific one last
	acceptable := false
	best := 0 // the highest index in matching so far
	for _, item := range strings.Split(accept, ",") {
		mediaRange, params, err := mime.ParseMediaType(item)
		if err != nil {
			continue
		}
		i := slices.Index(matching, mediaRange)
		if i < best {
			continue // it does not match (-1), or a more specific media range was found before
		}
		weight, err := strconv.ParseFloat(params["q"], 64)
		accepts := params["q"] == "" || err == nil && weight > 0
		acceptable = accepts || acceptable && i == best // of two equal media ranges, one must accept
		best = i
	}
	if acceptable {
		return nil
	}
	return newProblem("not_acceptable", "The response would be "+offered+".")
}

// preferredWait returns how long the client wants to wait for a person's input before it gets 202 (Prefer: wait, RFC
// 7240 section 4.3), at most maxWait, and the value of the Preference-Applied header. Both are zero if the preference
// is missing or invalid. If it is given twice, the first one counts (section 2).
func preferredWait(r *http.Request) (wait time.Duration, applied string) {
	for _, line := range r.Header.Values("Prefer") {
		for _, preference := range strings.Split(line, ",") {
			preference, _, _ = strings.Cut(preference, ";") // without its parameters
			name, value, _ := strings.Cut(preference, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			value = strings.Trim(strings.TrimSpace(value), `"`)
			if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
				return min(time.Duration(seconds)*time.Second, maxWait), "wait=" + value
			}
			return 0, ""
		}
	}
	return 0, ""
}
