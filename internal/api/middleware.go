package api

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"answerd/internal/auth"
)

// handle makes a handler of a function that may fail.
func (h *Handler) handle(f func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := f(w, r); err != nil {
			h.writeProblem(w, r, err)
		}
	}
}

// contain keeps a panic to its request: a problem if nothing was sent yet, else a cut
// connection, because a stream that ends cleanly looks complete. It also writes the
// access log, without the query, which may hold a question.
func (h *Handler) contain(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t, started := h.tracked(w), time.Now()
		t.Header().Set("X-Content-Type-Options", "nosniff")
		if h.unready.Load() {
			// Whoever has the connection opens the next one elsewhere, before this one is
			// closed under a request.
			t.Header().Set("Connection", "close")
		}
		defer func() {
			v := recover()
			if v != nil && v != http.ErrAbortHandler {
				h.Logger.ErrorContext(r.Context(), "panic in a handler", "path", r.URL.Path, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
				if t.status == 0 {
					h.writeProblem(t, r, newProblem("internal", "Something went wrong inside the service."))
					v = nil
				}
			}
			h.Logger.DebugContext(r.Context(), "request", "method", r.Method, "path", r.URL.Path, "status", t.status, "duration_ms", time.Since(started).Milliseconds())
			if v != nil {
				panic(http.ErrAbortHandler)
			}
		}()
		next.ServeHTTP(t, r)
	})
}

// survived, deferred, ends a panic on a goroutine that is no request's: a question that is
// not asked is given up with its run's time, and all runs would go with the process.
func (h *Handler) survived(ctx context.Context, doing string) {
	if v := recover(); v != nil {
		h.Logger.ErrorContext(ctx, "panic", "doing", doing, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	}
}

// checkHost refuses requests for a host that we are not, which is how a page of
// another site reaches a service on loopback (DNS rebinding). Probes come by address
// and are let through.
func (h *Handler) checkHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
		if h.AllowedHosts != nil && !probe(r) && !slices.Contains(h.AllowedHosts, host) {
			h.writeProblem(w, r, newProblem("misdirected", "This service does not answer for this host."))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// crossOrigin answers what the CORS protocol asks, for the configured origins only
// and never with credentials: callers authenticate with a header.
func (h *Handler) crossOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Add("Vary", "Origin")
		origin := r.Header.Get("Origin")
		allowed := origin != "" && slices.Contains(h.CORSOrigins, origin)
		if allowed {
			header.Set("Access-Control-Allow-Origin", origin)
			header.Set("Access-Control-Expose-Headers", "Location, Mcp-Session-Id, Preference-Applied, Retry-After, WWW-Authenticate, X-Should-Retry")
		}
		if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
			next.ServeHTTP(w, r)
			return
		}
		if !allowed {
			h.writeProblem(w, r, newProblem("forbidden", "This origin may not call the service."))
			return
		}
		header.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
		header.Set("Access-Control-Allow-Headers", allowedHeaders(r))
		header.Set("Access-Control-Max-Age", "600")
		w.WriteHeader(http.StatusNoContent)
	})
}

// allowedHeaders are the headers that pages may send: ours, and those by which OpenAI's
// client tells about itself, whose list grows.
func allowedHeaders(r *http.Request) string {
	allowed := "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Prefer, Traceparent, Tracestate, " +
		"Mcp-Method, Mcp-Name, Mcp-Protocol-Version, Mcp-Session-Id"
	for _, name := range strings.Split(r.Header.Get("Access-Control-Request-Headers"), ",") {
		name = strings.ToLower(strings.TrimSpace(name))
		ofOpenAI := strings.HasPrefix(name, "x-stainless-") || strings.HasPrefix(name, "openai-")
		if ofOpenAI && !strings.ContainsFunc(name, func(c rune) bool { return c != '-' && (c < 'a' || c > 'z') }) {
			allowed += ", " + name
		}
	}
	return allowed
}

// sameOrigin refuses what a page of another site makes a browser send, GET included:
// a question asked by an image's address would still run tools. Programs that are
// not browsers send neither header.
func (h *Handler) sameOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(h.CORSOrigins, r.Header.Get("Origin")) && foreign(r) {
			h.writeProblem(w, r, newProblem("forbidden", "This origin may not call the service."))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func foreign(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return false
	case "":
		origin := r.Header.Get("Origin")
		if origin == "" {
			return false
		}
		u, err := url.Parse(origin)
		return err != nil || !strings.EqualFold(u.Host, r.Host)
	default:
		return true
	}
}

type identityKey struct{}

// authenticate verifies the caller's token, where a verifier is configured.
func (h *Handler) authenticate(next http.Handler) http.Handler {
	if h.Verifier == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := auth.FromRequest(r)
		var id auth.Identity
		if err == nil {
			id, err = h.Verifier.Verify(r.Context(), token)
			id.Token = auth.NewSecret(token)
		}
		if err != nil {
			h.OnAuthFailure(r.Context(), auth.Reason(err))
			h.Logger.InfoContext(r.Context(), "request not authenticated", "path", r.URL.Path, "error", err)
			h.writeProblem(w, r, authProblem(err, h.metadataURL(r)))
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), identityKey{}, id)))
	})
}

// identity is who calls; without authentication, the anonymous caller of an address.
func identity(r *http.Request) auth.Identity {
	id, ok := r.Context().Value(identityKey{}).(auth.Identity)
	if !ok {
		id.Address = addressOf(r)
	}
	return id
}

// singular are the headers of which a request may have one at most, because we act on
// their one value. Authorization and Idempotency-Key are checked where they are read.
var singular = []string{"Content-Type", "Content-Encoding", "Origin", "Sec-Fetch-Site", "Last-Event-ID", "Mcp-Session-Id", "Mcp-Protocol-Version"}

// onceEach refuses a request with two of them: whoever stands in front of us may have
// judged by the other one (RFC 9110 section 5.3).
func (h *Handler) onceEach(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range singular {
			if len(r.Header.Values(name)) > 1 {
				h.writeProblem(w, r, newProblem("invalid_request", "The header "+name+" is given more than once."))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// readableQuery refuses a query that cannot be read whole: net/url leaves such parts out,
// as if nobody had asked for them.
func (h *Handler) readableQuery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			h.writeProblem(w, r, newProblem("invalid_request", "The query is not well formed."))
			return
		}
		for name, values := range query {
			if text := name + strings.Join(values, ""); !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
				h.writeProblem(w, r, newProblem("invalid_request", "The query is not UTF-8 without NUL."))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}
