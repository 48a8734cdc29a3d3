package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/usage"
	"answerd/internal/auth"
	"answerd/internal/help"
)

// maxReaders bounds the streams that read one run at a time.
const maxReaders = 4096

// streamLimiter counts open requests and the readers of each run, in order to limit them: each of them holds a
// goroutine and buffers for as long as its client likes.
type streamLimiter struct {
	mu      sync.Mutex     // protects all fields
	open    int            // open requests of all callers
	callers map[string]int // open requests by caller
	readers map[string]int // readers by run id
}

// newStreamLimiter returns a limiter without open requests.
func newStreamLimiter() *streamLimiter {
	return &streamLimiter{callers: make(map[string]int), readers: make(map[string]int)}
}

// acquireRequest counts an open request of caller. It returns a problem instead if all callers together have limit open
// requests, or this caller has perCaller; a perCaller of 0 means no limit. Call release once, when the request has
// ended. It is nil if there is a problem.
func (l *streamLimiter) acquireRequest(caller string, limit, perCaller int) (release func(), _ *problem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case perCaller > 0 && l.callers[caller] >= perCaller:
		return nil, newProblem("rate_limited", "This caller has too many open requests.").withRetryAfter()
	case l.open >= limit:
		return nil, newProblem("overloaded", "The service has too many open requests.").withRetryAfter()
	}
	l.open++
	l.callers[caller]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open--
		decrement(l.callers, caller)
	}, nil
}

// acquireReader counts a reader of the run. It returns a problem instead if the run has maxReaders. Call release once,
// when the stream has ended. It is nil if there is a problem.
func (l *streamLimiter) acquireReader(run string) (release func(), _ *problem) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.readers[run] >= maxReaders {
		return nil, newProblem("rate_limited", "This run has too many open streams.").withRetryAfter()
	}
	l.readers[run]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		decrement(l.readers, run)
	}, nil
}

// decrement subtracts 1 from counts[name], and deletes the entry at 0 so that the map does not grow.
func decrement(counts map[string]int, name string) {
	counts[name]--
	if counts[name] == 0 {
		delete(counts, name)
	}
}

// limitOpenRequests refuses requests beyond MaxStreams and MaxStreamsPerCaller before they reach a handler, so that a
// refused request costs little. It counts all requests, although only those that stream or wait for a run stay open
// long.
func (h *Handler) limitOpenRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		release, refused := h.limiter.acquireRequest(identity(r).Key(), h.MaxStreams, h.MaxStreamsPerCaller)
		if refused != nil {
			h.writeProblem(w, r, refused)
			return
		}
		defer release()
		next.ServeHTTP(w, r)
	})
}

const (
	// smallBody is the number of bytes at the start of each body that countBody does not count. So the service accepts
	// a small request, such as an answer to an interrupt, even while memory is short.
	smallBody = 64 << 10
	// bodyCopies is how many times a body is in memory while it is decoded: as bytes and as values.
	bodyCopies = 2
)

// countBody counts large request bodies towards the memory of runs (Agent.Memory) until the request has ended.
// Otherwise the bodies of requests that are not admitted yet could fill the memory. It refuses a request whose
// Content-Length does not fit. Bytes are counted as they are read (countedBody).
func (h *Handler) countBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.Agent.Memory == nil {
			next.ServeHTTP(w, r)
			return
		}
		memory, ok := h.Agent.Memory.Open(bodyCopies * max(r.ContentLength-smallBody, 0))
		if !ok {
			h.writeProblem(w, r, refusalProblem(shortOfMemory()))
			return
		}
		defer memory.Release()
		r.Body = &countedBody{ReadCloser: r.Body, hold: memory.Hold}
		next.ServeHTTP(w, r)
	})
}

// countedBody is a request body whose bytes beyond smallBody count as memory.
type countedBody struct {
	io.ReadCloser
	hold func(bytes int64) bool // counts bytes; returns false if not enough memory is left
	read int                    // bytes read so far
}

// Read implements io.Reader. If not enough memory is left, it returns no bytes and an *agent.Refusal.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read += n
	if b.read > smallBody {
		counted := min(n, b.read-smallBody) // the read that passes smallBody is counted in part
		if !b.hold(bodyCopies * int64(counted)) {
			return 0, shortOfMemory()
		}
	}
	return n, err
}

// shortOfMemory returns the refusal of a request whose body does not fit into the free memory. The client gets 503 with
// Retry-After.
func shortOfMemory() *agent.Refusal {
	return &agent.Refusal{Reason: agent.ErrMemoryShort, RetryAfter: 2 * time.Second}
}

// overLimitKey is the context key with which OverLimit marks a connection.
type overLimitKey struct{}

// OverLimit returns a copy of ctx, the context of a connection over the connection limit, with a mark that says so. It
// is for http.Server.ConnContext. On such a connection, probes are answered and all other requests are refused, so that
// monitoring can tell a busy process from a dead one.
func OverLimit(ctx context.Context) context.Context {
	return context.WithValue(ctx, overLimitKey{}, true)
}

// isOverLimit reports whether the request came on a connection that OverLimit has marked.
func isOverLimit(r *http.Request) bool { return r.Context().Value(overLimitKey{}) != nil }

// rejectOverLimit refuses requests on connections over the limit, except for probes.
func (h *Handler) rejectOverLimit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isOverLimit(r) || isProbe(r) {
			next.ServeHTTP(w, r)
			return
		}
		h.writeProblem(w, r, newProblem("overloaded", "The service has too many open connections.").withRetryAfter())
	})
}

// isProbe reports whether r has a path that monitoring requests. Monitoring addresses the service by IP address and
// must get an answer even from an overloaded service, so checkHost and rejectOverLimit exempt probes.
func isProbe(r *http.Request) bool {
	return r.URL.Path == "/healthz" || r.URL.Path == "/readyz" || r.URL.Path == "/metrics"
}

// refusalProblem returns the problem for a request that was not admitted. Its code says which limit was reached: this
// caller's (rate_limited) or the service's (overloaded). Retry-After says when to try again.
func refusalProblem(refusal *agent.Refusal) *problem {
	var p *problem
	switch {
	case errors.Is(refusal, agent.ErrTooMany):
		p = newProblem("rate_limited", "This caller has too many runs in progress.")
	case errors.Is(refusal, agent.ErrTooFast):
		p = newProblem("rate_limited", "This caller starts runs too fast.")
	case errors.Is(refusal, agent.ErrMemoryShort):
		p = newProblem("overloaded", "The service is short of memory at the moment.")
	default:
		p = newProblem("overloaded", "The service has too many runs in progress.")
	}
	p.header.Set("Retry-After", strconv.Itoa(int(refusal.RetryAfter/time.Second)))
	return p
}

// spentProblem returns the problem for a caller who has used up their budget for the current period.
func spentProblem(e *usage.SpentError) *problem {
	p := newProblem("rate_limited", fmt.Sprintf("The budget of this caller is used up (%s). The period ends at %s.",
		e.Limit, e.Until.UTC().Format(time.RFC3339)))
	p.header.Set("Retry-After", strconv.Itoa(int(e.RetryAfter/time.Second)))
	p.header.Set("X-Should-Retry", "false") // OpenAI's clients would retry at once: the period may last for days
	return p
}

// clientAddress returns the address that identifies an anonymous caller: the connection's IPv4 address, or its IPv6 /64
// network, because one subscriber usually has a whole /64. It ignores headers such as X-Forwarded-For, because any
// client can set them, so all callers behind a proxy count as one. It returns "" if RemoteAddr has no IP address.
func clientAddress(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return ""
	}
	ip = ip.Unmap().WithZone("")
	if ip.Is6() {
		network, _ := ip.Prefix(64)
		return network.String()
	}
	return ip.String()
}

const (
	// A rejectionLog writes at most maxRejections lines in rejectionInterval, so that callers cannot fill the log.
	rejectionInterval = 10 * time.Second
	maxRejections     = 20
)

// rejectionLog logs rejected requests and limits the lines: in each rejectionInterval, it logs only the first request
// with each key, and at most maxRejections requests in total. It counts the others. The zero value is ready to use.
type rejectionLog struct {
	mu      sync.Mutex      // protects all fields
	since   time.Time       // beginning of the current interval
	keys    map[string]bool // keys with a line in the current interval
	omitted int             // rejections since the last line that were counted but not logged
}

// log writes a warning with attrs about a rejected request, unless the current interval already has a line for key or
// maxRejections lines. The line says how many rejections before it were not logged, and refers to page, the document
// that explains what to do. l.mu is not held while the line is written, because a slow log must not block other
// requests.
func (l *rejectionLog) log(ctx context.Context, logger *slog.Logger, page help.Page, key string, attrs ...any) {
	omitted, ok := l.admit(key)
	if !ok {
		return
	}
	attrs = append(attrs, page.Attr())
	if omitted > 0 {
		attrs = append(attrs, "omitted_lines", omitted)
	}
	logger.WarnContext(ctx, "request rejected", attrs...)
}

// admit counts a rejection and reports whether a line for key may be written now. If so, omitted is the number of
// rejections since the last line.
func (l *rejectionLog) admit(key string) (omitted int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.keys == nil || now.Sub(l.since) >= rejectionInterval {
		l.since, l.keys = now, make(map[string]bool)
	}
	if l.keys[key] || len(l.keys) == maxRejections {
		l.omitted++
		return 0, false
	}
	l.keys[key] = true
	omitted, l.omitted = l.omitted, 0
	return omitted, true
}

// logRateLimited logs the caller of a request that was refused with p, so that operators can find out who exceeds a
// limit. It does nothing if p has another code than rate_limited.
func (h *Handler) logRateLimited(ctx context.Context, p *problem, caller auth.Identity) {
	if p.Code != "rate_limited" {
		return
	}
	h.refusals.log(ctx, h.Logger, help.RefusedRuns, p.Detail+caller.Key(),
		"cause", p.Detail, "subject", caller.Subject, "address", caller.Address)
}

// truncateForLog returns at most the first 200 bytes of s, because clients choose its length.
func truncateForLog(s string) string { return s[:min(len(s), 200)] }
