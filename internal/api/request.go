package api

import (
	"crypto/sha256"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"answerd/internal/agent"
)

// isJSON refuses bodies of another type, which also keeps HTML forms out.
func isJSON(r *http.Request) error {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	charset := params["charset"]
	if err != nil || kind != "application/json" || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return newProblem("unsupported_media", "The body must be application/json in UTF-8.")
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return newProblem("unsupported_media", "The body must not be encoded.")
	}
	return nil
}

// accepts refuses a caller that says it cannot read what it would get (RFC 9110
// section 12.5.1).
func accepts(r *http.Request, offered string) error {
	values := r.Header.Values("Accept")
	if len(values) == 0 {
		return nil
	}
	major, _, _ := strings.Cut(offered, "/")
	for _, v := range strings.Split(strings.Join(values, ","), ",") {
		kind, params, err := mime.ParseMediaType(v)
		if err != nil {
			continue
		}
		q, err := strconv.ParseFloat(params["q"], 64)
		wanted := params["q"] == "" || err == nil && q > 0
		if wanted && (kind == offered || kind == major+"/*" || kind == "*/*") {
			return nil
		}
	}
	return newProblem("not_acceptable", "The response would be "+offered+".")
}

// maxKey bounds an Idempotency-Key, in bytes.
const maxKey = 255

// decode reads a question and what its headers add, by one face's decode.
func (h *Handler) decode(r *http.Request, decode func([]byte) (agent.Request, error)) (agent.Request, error) {
	body, err := h.body(r)
	if err != nil {
		return agent.Request{}, err
	}
	req, err := decode(body)
	if err != nil {
		return agent.Request{}, err
	}
	return keyed(r, body, req)
}

// keyed is req with the key of the request that asks for it by body, if it has one.
func keyed(r *http.Request, body []byte, req agent.Request) (agent.Request, error) {
	keys := r.Header.Values("Idempotency-Key")
	if len(keys) == 0 {
		return req, nil
	}
	key := keys[0]
	if len(keys) > 1 || key == "" || len(key) > maxKey || strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c > '~' }) {
		return agent.Request{}, newProblem("invalid_request", "Idempotency-Key must be one value of 1 to 255 ASCII characters.")
	}
	req.IdempotencyKey, req.Fingerprint = key, sha256.Sum256(append([]byte(r.URL.Path+"\n"), body...))
	return req, nil
}

// body reads the whole JSON body. It is read to its end before anything starts: a
// server that has not read the body does not notice when the caller leaves.
func (h *Handler) body(r *http.Request) ([]byte, error) {
	if err := isJSON(r); err != nil {
		return nil, err
	}
	limit := &http.MaxBytesError{Limit: h.MaxBody}
	if r.ContentLength > h.MaxBody {
		return nil, limit // and is not asked for (RFC 9110 section 10.1.1)
	}
	b, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, h.MaxBody))
	if err == nil || errors.As(err, &limit) {
		return b, err
	}
	// Only the server's ReadTimeout is a timeout. Clients send again what got 408.
	if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() {
		return nil, newProblem("timeout", "The body did not arrive in time.")
	}
	return nil, newProblem("invalid_request", "The body did not arrive whole, or its chunks are not well formed.")
}

// longestWait bounds a caller's wait for a person.
const longestWait = time.Hour

// preferredWait is how long the caller would rather wait than be told that the answer
// takes longer (RFC 7240 section 4.3), as preferred says it in Preference-Applied. What
// cannot be understood is as if it were not there (section 2).
func preferredWait(r *http.Request) (wait time.Duration, preferred string) {
	for _, line := range r.Header.Values("Prefer") {
		for _, p := range strings.Split(line, ",") {
			p, _, _ = strings.Cut(p, ";") // its parameters
			name, value, _ := strings.Cut(p, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			value = strings.Trim(strings.TrimSpace(value), `"`)
			// Of two the first counts (section 2).
			if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
				return min(time.Duration(seconds)*time.Second, longestWait), "wait=" + value
			}
			return 0, ""
		}
	}
	return 0, ""
}
