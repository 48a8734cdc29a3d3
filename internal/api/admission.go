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

// streamLimiter counts the open requests and the readers of each run. Each of them holds a
// goroutine and buffers for as long as the client likes, so their number must be bounded.
type streamLimiter struct {
	mu      sync.Mutex // protects all fields
	open    int
	callers map[string]int // open requests of each caller
	readers map[string]int // readers of each run
}

// newStreamLimiter returns a limiter without open requests.
func newStreamLimiter() *streamLimiter {
	return &streamLimiter{callers: make(map[string]int), readers: make(map[string]int)}
}

// acquireRequest counts a request of caller. limit bounds all open requests, and perCaller those
// of one caller unless it is 0. Without a problem, the caller of acquireRequest must call release
// once the request has ended.
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

// acquireReader counts a reader of a run. Without a problem, the caller must call release once the
// stream has ended.
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

// decrement subtracts 1 from the count of name, and removes a count of 0.
func decrement(counts map[string]int, name string) {
	counts[name]--
	if counts[name] == 0 {
		delete(counts, name)
	}
}

// limitOpenRequests refuses requests beyond the limits on open requests. It runs before handlers,
// so that a refused request costs little. In practice it bounds streams: other requests end within
// moments.
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
	// smallBody is how many bytes of a request body are not counted: to cancel a run must be possible
	// while memory is short.
	smallBody = 64 << 10
	// bodyCopies is how many times a body is in memory until it is decoded: as it was read, and its
	// values.
	bodyCopies = 2
)

// countBody counts large request bodies towards the memory of runs while they are read and used.
// Otherwise the bodies of requests that are not admitted yet could fill the memory.
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

// countedBody is a request body that fails with an agent.Refusal if not enough memory is left.
type countedBody struct {
	io.ReadCloser
	hold func(bytes int64) bool
	read int // bytes
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read += n
	if b.read > smallBody && !b.hold(bodyCopies*int64(min(n, b.read-smallBody))) {
		return 0, shortOfMemory()
	}
	return n, err
}

// shortOfMemory returns the refusal of a request whose body does not fit: 503 with Retry-After.
func shortOfMemory() *agent.Refusal {
	return &agent.Refusal{Reason: agent.ErrMemoryShort, RetryAfter: 2 * time.Second}
}

// overLimitKey is the key of the mark that OverLimit sets.
type overLimitKey struct{}

// OverLimit marks ctx as that of a connection over the limit; http.Server.ConnContext returns it.
// On such a connection, probes are answered and everything else is refused, so that monitoring
// does not take a busy process for a dead one.
func OverLimit(ctx context.Context) context.Context {
	return context.WithValue(ctx, overLimitKey{}, true)
}

// isOverLimit reports whether the request came on a connection over the limit. recoverPanic closes it after the response.
func isOverLimit(r *http.Request) bool { return r.Context().Value(overLimitKey{}) != nil }

// rejectOverLimit refuses requests on connections over the limit.
func (h *Handler) rejectOverLimit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isOverLimit(r) || isProbe(r) {
			next.ServeHTTP(w, r)
			return
		}
		h.writeProblem(w, r, newProblem("overloaded", "The service has too many open connections.").withRetryAfter())
	})
}

// isProbe reports whether the request comes from monitoring, which addresses the service by IP address and
// must get an answer from an overloaded service too.
func isProbe(r *http.Request) bool {
	return r.URL.Path == "/healthz" || r.URL.Path == "/readyz" || r.URL.Path == "/metrics"
}

// refusalProblem returns the problem of a run that the agent did not admit. It says whether this
// caller or all callers together exceed a limit, and when to try again.
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

// spentProblem returns the problem of a run whose caller has used up a budget.
func spentProblem(e *usage.SpentError) *problem {
	p := newProblem("rate_limited", fmt.Sprintf("The budget of this caller is used up (%s). The period ends at %s.", e.Limit, e.Until.UTC().Format(time.RFC3339)))
	p.header.Set("Retry-After", strconv.Itoa(int(e.RetryAfter/time.Second)))
	p.header.Set("X-Should-Retry", "false") // OpenAI's clients would retry at once: the period may last for days
	return p
}

// clientAddress returns the address that identifies an anonymous caller: the IPv4 address of the
// connection, or its IPv6 /64 network, which one subscriber has. It ignores headers such as
// X-Forwarded-For, because any client can set them. So all callers behind a proxy count as one.
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
	// rejectionInterval is the time in which a rejectionLog writes at most maxRejections lines,
	// so that callers cannot fill the log.
	rejectionInterval = 10 * time.Second
	maxRejections     = 20
)

// rejectionLog logs rejected requests within bounds. Of those with the same key it logs the first
// one in each rejectionInterval, and counts the others. The zero value is ready to use.
type rejectionLog struct {
	mu      sync.Mutex      // protects all fields
	since   time.Time       // beginning of the current interval
	keys    map[string]bool // those logged in the current interval
	omitted int             // rejections without a line since the last line
}

// log writes one line, unless the key was logged in this interval or the interval has
// maxRejections lines. The line says how many were left out before it. It is written without the
// mutex, because a slow log must not block other requests. page says what to do.
func (l *rejectionLog) log(ctx context.Context, logger *slog.Logger, page help.Page, key string, attrs ...any) {
	l.mu.Lock()
	if now := time.Now(); l.keys == nil || now.Sub(l.since) >= rejectionInterval {
		l.since, l.keys = now, make(map[string]bool)
	}
	if l.keys[key] || len(l.keys) == maxRejections {
		l.omitted++
		l.mu.Unlock()
		return
	}
	l.keys[key] = true
	omitted := l.omitted
	l.omitted = 0
	l.mu.Unlock()
	attrs = append(attrs, page.Attr())
	if omitted > 0 {
		attrs = append(attrs, "omitted_lines", omitted)
	}
	logger.WarnContext(ctx, "request rejected", attrs...)
}

// logRateLimited logs who was refused with rate_limited, so that operators can find the caller
// that exceeds a limit. It ignores other problems.
func (h *Handler) logRateLimited(ctx context.Context, p *problem, caller auth.Identity) {
	if p.Code != "rate_limited" {
		return
	}
	h.refusals.log(ctx, h.Logger, help.RefusedRuns, p.Detail+caller.Key(), "cause", p.Detail, "subject", caller.Subject, "address", caller.Address)
}

// truncateForLog returns at most 200 bytes of s, because callers choose what is logged.
func truncateForLog(s string) string { return s[:min(len(s), 200)] }
