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

// withProblems returns a handler that answers f's errors with problem documents. f must not return an error after it
// has begun the response. streamRun, which sends the header at once, aborts its stream instead.
func (h *Handler) withProblems(f func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := f(w, r); err != nil {
			h.writeProblem(w, r, err)
		}
	}
}

// prepareResponse gives the request a deadlineWriter, and sets the headers of every response. After the request it
// writes the access log. It leaves the query out of the log, because it may contain a question.
func (h *Handler) prepareResponse(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		dw := newDeadlineWriter(w, h.WriteTimeout)
		dw.Header().Set("X-Content-Type-Options", "nosniff")
		if id := h.TraceID(r.Context()); id != "" && strings.HasPrefix(r.URL.Path, "/v1/") {
			// OpenAI's formats have no member for the trace id. Their clients show this header with a response or an
			// error.
			dw.Header().Set("X-Request-Id", id)
		}
		if h.unready.Load() || isOverLimit(r) {
			// Make the client open its next connection to another process, before the shutdown of this one closes the
			// connection in the middle of a request.
			dw.Header().Set("Connection", "close")
		}
		defer func() { // deferred, so that it also runs if recoverPanic panics to abort the connection
			// net/http sends what it has buffered after this. Before that, it reads the rest of a short body.
			var wait time.Duration
			if r.ContentLength != 0 {
				wait = ReadTimeout
			}
			dw.extendDeadline(wait)
			h.Logger.DebugContext(r.Context(), "request", "method", r.Method, "path", r.URL.Path,
				"status", dw.status, "duration_ms", time.Since(started).Milliseconds())
		}()
		next.ServeHTTP(dw, r)
	})
}

// recoverPanic confines a panic to its request, and logs it. If the response has not begun, it answers with a problem
// document. Otherwise it aborts the connection with http.ErrAbortHandler, because a stream that ends cleanly looks
// complete. It must run after prepareResponse, whose deadlineWriter it uses.
func (h *Handler) recoverPanic(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			reason := recover()
			switch reason {
			case nil:
				return
			case http.ErrAbortHandler:
				panic(http.ErrAbortHandler)
			}
			h.Logger.ErrorContext(r.Context(), "panic in a handler", "path", r.URL.Path,
				"panic", fmt.Sprint(reason), "stack", string(debug.Stack()))
			if w.(*deadlineWriter).status != 0 {
				panic(http.ErrAbortHandler)
			}
			h.writeProblem(w, r, newProblem("internal", "Something went wrong inside the service."))
		}()
		next.ServeHTTP(w, r)
	})
}

// logPanic, when deferred, recovers a panic and logs it. A goroutine that a request starts needs it, because a panic
// there would end the process with all its runs. task says in the log what the goroutine was doing.
func (h *Handler) logPanic(ctx context.Context, task string) {
	if v := recover(); v != nil {
		h.Logger.ErrorContext(ctx, "panic", "task", task, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	}
}

// checkHost refuses requests whose Host is not one of AllowedHosts. Otherwise a page of another site could reach a
// service on the loopback interface by DNS rebinding, where the site's host name resolves to 127.0.0.1. Probes are
// exempt, because they address the service by IP address.
func (h *Handler) checkHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
		if h.AllowedHosts != nil && !isProbe(r) && !slices.Contains(h.AllowedHosts, host) {
			h.rejections.log(r.Context(), h.Logger, help.Requests, "host "+host,
				"cause", "unknown host", "setting", "ALLOWED_HOSTS", "host", truncateForLog(host))
			h.writeProblem(w, r, newProblem("misdirected", "This service does not serve this host name. Its operator allows host names with ALLOWED_HOSTS."))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// handleCORS implements the CORS protocol (Fetch standard) for the origins in CORSOrigins. It answers preflight
// requests itself, and refuses those of any other origin. It never allows credentials, because callers authenticate
// with a header.
func (h *Handler) handleCORS(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Add("Vary", "Origin")
		origin := strings.Join(r.Header.Values("Origin"), ", ") // a list of several is not in CORSOrigins
		allowed := origin != "" && slices.Contains(h.CORSOrigins, origin)
		if allowed {
			header.Set("Access-Control-Allow-Origin", origin)
			header.Set("Access-Control-Expose-Headers", "Location, Mcp-Session-Id, Preference-Applied, Retry-After, WWW-Authenticate, X-Request-Id, X-Should-Retry")
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

// allowedHeaders returns the headers that pages of other origins may send, as the Access-Control-Allow-Headers of the
// preflight r: the API's headers, and the headers in r with which OpenAI's client describes itself. Those of the client
// are matched by prefix, because new versions of the client add some. The clients of OpenAI and of the AI SDK also set
// User-Agent, which Firefox sends and Chrome drops (https://github.com/CopilotKit/aimock/issues/158). OpenTelemetry in a
// page sends Baggage with Traceparent; the service ignores it.
func allowedHeaders(r *http.Request) string {
	allowed := "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Prefer, Traceparent, Tracestate, Baggage, User-Agent, " +
		"Mcp-Method, Mcp-Name, Mcp-Protocol-Version, Mcp-Session-Id"
	for _, name := range strings.Split(r.Header.Get("Access-Control-Request-Headers"), ",") {
		name = strings.ToLower(strings.TrimSpace(name))
		isOpenAI := strings.HasPrefix(name, "x-stainless-") || strings.HasPrefix(name, "openai-")
		// The name is from the request and is copied into the response, so it must be a plain name.
		isPlain := !strings.ContainsFunc(name, func(c rune) bool { return c != '-' && (c < 'a' || c > 'z') })
		if isOpenAI && isPlain {
			allowed += ", " + name
		}
	}
	return allowed
}

// rejectCrossSite refuses requests that a browser sends for a page whose origin is not in CORSOrigins. It refuses GET
// too: an image whose URL contains a question would start a run, which calls tools. Programs other than browsers send
// neither Sec-Fetch-Site nor Origin, so their requests pass.
func (h *Handler) rejectCrossSite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(h.CORSOrigins, r.Header.Get("Origin")) && isCrossSite(r) {
			h.rejectOrigin(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// rejectOrigin answers 403 to a request from an origin that is not in CORSOrigins. The page cannot read this response,
// so the log also has the origin, and the setting that would allow it.
func (h *Handler) rejectOrigin(w http.ResponseWriter, r *http.Request) {
	origin := r.Header.Get("Origin")
	h.rejections.log(r.Context(), h.Logger, help.Requests, "origin "+origin,
		"cause", "unknown origin", "setting", "CORS_ORIGINS", "origin", truncateForLog(origin))
	h.writeProblem(w, r, newProblem("forbidden", "This origin may not call the service. Its operator allows origins with CORS_ORIGINS."))
}

// isCrossSite reports whether a browser sent r on behalf of another origin. For browsers that do not send
// Sec-Fetch-Site, it compares Origin with Host.
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

// authenticate verifies the caller's token and adds the caller's identity, which includes the token, to the request's
// context. It refuses a request whose token is missing or invalid. Without a Verifier, every caller is anonymous.
func (h *Handler) authenticate(next http.Handler) http.Handler {
	if h.Verifier == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := h.verifyToken(r)
		if err != nil {
			h.OnAuthFailure(r.Context(), auth.Reason(err))
			h.Logger.InfoContext(r.Context(), "request not authenticated", "path", r.URL.Path, "error", err)
			h.writeProblem(w, r, authProblem(err, h.metadataURL(r)))
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), identityKey{}, id)))
	})
}

// verifyToken returns the identity that the request's token proves, with the token.
func (h *Handler) verifyToken(r *http.Request) (auth.Identity, error) {
	token, err := auth.FromRequest(r)
	if err != nil {
		return auth.Identity{}, err
	}
	id, err := h.Verifier.Verify(r.Context(), token)
	id.Token = auth.NewSecret(token)
	return id, err
}

// identity returns the caller's identity, which authenticate has put into the request's context. Without authentication
// it returns an anonymous caller who is identified by their address, so that limits per caller still apply.
func identity(r *http.Request) auth.Identity {
	id, ok := r.Context().Value(identityKey{}).(auth.Identity)
	if !ok {
		id.Address = clientAddress(r)
	}
	return id
}

// singleValueHeaders are headers that a request may have only once, because the service acts on one value.
// Authorization and Idempotency-Key are checked where they are read.
var singleValueHeaders = []string{"Content-Type", "Content-Encoding", "Origin", "Sec-Fetch-Site", "Last-Event-ID", "Mcp-Session-Id", "Mcp-Protocol-Version"}

// rejectDuplicateHeaders refuses requests that have one of singleValueHeaders twice. A proxy may have accepted the
// request because of one value, while the service would act on the other (RFC 9110 section 5.3).
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

// rejectInvalidQuery refuses a query that cannot be parsed completely, or that has invalid UTF-8 or NUL characters.
// url.URL.Query would ignore the parts that it cannot parse, as if the client had not sent them.
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

// basePathOf returns the escaped path of publicURL without a trailing slash. It returns "" if the URL is invalid or has
// no path.
func basePathOf(publicURL string) string {
	u, err := url.Parse(publicURL)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(u.EscapedPath(), "/")
}

// stripBasePath removes the base path from the request's URL if the URL has it. So the routes are served both at the
// root and below the base path, because a proxy may keep the base path or remove it. A request for the base path itself
// is redirected to the path with a trailing slash, because the console's links are relative.
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
		if path := h.trimBasePath(r.URL.Path); path != r.URL.Path {
			u := *r.URL
			u.Path = path
			u.RawPath = h.trimBasePath(r.URL.RawPath)
			stripped := *r // a handler must not change its request
			stripped.URL = &u
			r = &stripped
		}
		next.ServeHTTP(w, r)
	})
}

// trimBasePath returns path without the base path, or unchanged if path does not have it. In a path of resource
// metadata, the base path follows resourceMetadataPath (RFC 9728 section 3.1).
func (h *Handler) trimBasePath(path string) string {
	if h.basePath == "" {
		return path
	}
	wellKnown, rest := "", path
	if after, ok := strings.CutPrefix(path, resourceMetadataPath); ok {
		wellKnown, rest = resourceMetadataPath, after
	}
	after, ok := strings.CutPrefix(rest, h.basePath)
	isBelow := strings.HasPrefix(after, "/") // and not a path such as /answerd2
	isMetadata := after == "" && wellKnown != ""
	if ok && (isBelow || isMetadata) {
		return wellKnown + after
	}
	return path
}
