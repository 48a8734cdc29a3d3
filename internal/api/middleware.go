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
	"answerd/internal/help"
)

// withProblems returns an http.HandlerFunc that answers the errors of f with problem documents. f must
// return an error only as long as it has written nothing; streamRun, which writes the header at once,
// cuts the stream instead.
func (h *Handler) withProblems(f func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := f(w, r); err != nil {
			h.writeProblem(w, r, err)
		}
	}
}

// recoverPanic limits a panic to its request. If the response has not begun, it answers with a
// problem document. Otherwise it cuts the connection, because a stream that ends cleanly looks
// complete. It also writes the access log, without the query, which may contain a question.
func (h *Handler) recoverPanic(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		dw, started := newDeadlineWriter(w, h.WriteTimeout), time.Now()
		dw.Header().Set("X-Content-Type-Options", "nosniff")
		if h.unready.Load() || isOverLimit(r) {
			// The client of a process that is about to end opens its next connection to another one,
			// before the shutdown closes this one in the middle of a request.
			dw.Header().Set("Connection", "close")
		}
		defer func() {
			v := recover()
			if v != nil && v != http.ErrAbortHandler {
				h.Logger.ErrorContext(r.Context(), "panic in a handler", "path", r.URL.Path, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
				if dw.status == 0 {
					h.writeProblem(dw, r, newProblem("internal", "Something went wrong inside the service."))
					v = nil
				}
			}
			if r.ContentLength != 0 {
				// net/http reads a short rest of the body before it sends a short response.
				dw.extendDeadline(ReadTimeout)
			}
			h.Logger.DebugContext(r.Context(), "request", "method", r.Method, "path", r.URL.Path, "status", dw.status, "duration_ms", time.Since(started).Milliseconds())
			if v != nil {
				panic(http.ErrAbortHandler)
			}
		}()
		next.ServeHTTP(dw, r)
	})
}

// logPanic, when deferred, recovers a panic of a goroutine that serves no request itself. The
// panic would otherwise end the process with all its runs. task names in the log what failed.
func (h *Handler) logPanic(ctx context.Context, task string) {
	if v := recover(); v != nil {
		h.Logger.ErrorContext(ctx, "panic", "task", task, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	}
}

// checkHost refuses requests whose Host is not one of AllowedHosts. Otherwise a page of another
// site could reach a service on the loopback interface by DNS rebinding: its own host name would
// resolve to 127.0.0.1. Probes are exempt, because they address the service by IP address.
func (h *Handler) checkHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
		if h.AllowedHosts != nil && !isProbe(r) && !slices.Contains(h.AllowedHosts, host) {
			h.rejections.log(r.Context(), h.Logger, help.Requests, "host "+host, "cause", "unknown host", "setting", "ALLOWED_HOSTS", "host", truncateForLog(host))
			h.writeProblem(w, r, newProblem("misdirected", "This service does not serve this host name. Its operator allows host names with ALLOWED_HOSTS."))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// handleCORS implements the CORS protocol (Fetch standard), for CORSOrigins only. It never allows
// credentials, because callers authenticate with a header.
func (h *Handler) handleCORS(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Add("Vary", "Origin")
		origin := strings.Join(r.Header.Values("Origin"), ", ") // more than one is not allowed
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
			h.rejectOrigin(w, r)
			return
		}
		header.Set("Access-Control-Allow-Methods", "GET, POST, PATCH, DELETE")
		header.Set("Access-Control-Allow-Headers", allowedHeaders(r))
		header.Set("Access-Control-Max-Age", "600")
		w.WriteHeader(http.StatusNoContent)
	})
}

// allowedHeaders returns the headers that pages of other origins may send: those of the API, and
// those with which OpenAI's client describes itself. The latter are matched by prefix, because
// new ones appear with new versions of the client. The clients of OpenAI and of the AI SDK set User-Agent
// too, which Firefox sends and Chrome drops (https://github.com/CopilotKit/aimock/issues/158).
func allowedHeaders(r *http.Request) string {
	allowed := "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Prefer, Traceparent, Tracestate, User-Agent, " +
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

// rejectCrossSite refuses requests that a page of another site makes a browser send. That
// includes GET: a question in the URL of an image would still call tools. Programs that are not
// browsers send neither Sec-Fetch-Site nor Origin.
func (h *Handler) rejectCrossSite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(h.CORSOrigins, r.Header.Get("Origin")) && isCrossSite(r) {
			h.rejectOrigin(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// rejectOrigin answers a request of an origin that is not one of CORSOrigins. A page cannot read
// the answer, so the log has the origin and the setting too.
func (h *Handler) rejectOrigin(w http.ResponseWriter, r *http.Request) {
	origin := r.Header.Get("Origin")
	h.rejections.log(r.Context(), h.Logger, help.Requests, "origin "+origin, "cause", "unknown origin", "setting", "CORS_ORIGINS", "origin", truncateForLog(origin))
	h.writeProblem(w, r, newProblem("forbidden", "This origin may not call the service. Its operator allows origins with CORS_ORIGINS."))
}

// isCrossSite reports whether a browser sent r on behalf of another origin. It falls back to
// Origin for browsers that do not send Sec-Fetch-Site.
func isCrossSite(r *http.Request) bool {
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

// identityKey is the key of the caller's identity in a request's context.
type identityKey struct{}

// authenticate verifies the caller's token and adds the caller's identity to the request's
// context. Without a Verifier it does nothing.
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

// identity returns the identity of the caller. Without authentication that is an anonymous caller
// with their address, so that limits per caller still apply.
func identity(r *http.Request) auth.Identity {
	id, ok := r.Context().Value(identityKey{}).(auth.Identity)
	if !ok {
		id.Address = clientAddress(r)
	}
	return id
}

// singleValueHeaders are headers that a request may have only once, because the service acts on
// their one value. Authorization and Idempotency-Key are checked where they are read.
var singleValueHeaders = []string{"Content-Type", "Content-Encoding", "Origin", "Sec-Fetch-Site", "Last-Event-ID", "Mcp-Session-Id", "Mcp-Protocol-Version"}

// rejectDuplicateHeaders refuses requests that have one of singleValueHeaders twice: a proxy may
// have made its decision by the other value (RFC 9110 section 5.3).
func (h *Handler) rejectDuplicateHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range singleValueHeaders {
			if len(r.Header.Values(name)) > 1 {
				h.writeProblem(w, r, newProblem("invalid_request", "The request has more than one "+name+" header."))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// rejectInvalidQuery refuses queries that cannot be parsed completely. url.URL.Query would ignore
// the invalid parts, as if the caller had not sent them.
func (h *Handler) rejectInvalidQuery(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			h.writeProblem(w, r, newProblem("invalid_request", "The query is malformed."))
			return
		}
		for name, values := range query {
			if text := name + strings.Join(values, ""); !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
				h.writeProblem(w, r, newProblem("invalid_request", "The query must be UTF-8 without NUL characters."))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// basePathOf returns the path of a URL without a slash at its end; "" for none.
func basePathOf(publicURL string) string {
	u, err := url.Parse(publicURL)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(u.EscapedPath(), "/")
}

// stripBasePath serves the routes at the root and below the base path, because a proxy may remove
// the path from requests or leave it. The console needs the slash after the base path: its links
// are relative.
func (h *Handler) stripBasePath(next http.Handler) http.Handler {
	if h.basePath == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.EscapedPath() == h.basePath {
			to := url.URL{Path: h.basePath + "/", RawQuery: r.URL.RawQuery}
			http.Redirect(w, r, to.String(), http.StatusPermanentRedirect)
			return
		}
		path, raw := h.trimBasePath(r.URL.Path), h.trimBasePath(r.URL.RawPath)
		if path != r.URL.Path {
			stripped := *r
			u := *r.URL
			u.Path, u.RawPath = path, raw
			stripped.URL = &u
			r = &stripped
		}
		next.ServeHTTP(w, r)
	})
}

// trimBasePath returns a path without the base path. In the path of resource metadata, the base
// path follows the well-known one (RFC 9728 section 3.1).
func (h *Handler) trimBasePath(path string) string {
	if h.basePath == "" {
		return path
	}
	wellKnown, rest := "", path
	if after, ok := strings.CutPrefix(path, resourceMetadataPath); ok {
		wellKnown, rest = resourceMetadataPath, after
	}
	after, ok := strings.CutPrefix(rest, h.basePath)
	switch {
	case ok && strings.HasPrefix(after, "/"), ok && after == "" && wellKnown != "":
		return wellKnown + after
	}
	return path
}
