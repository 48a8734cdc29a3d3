package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"answerd/internal/agent"
)

// maxReaders bounds those who read one run at a time.
const maxReaders = 4096

// crowd counts the requests that are open and the readers of each run.
type crowd struct {
	mu      sync.Mutex // protects what follows
	open    int
	callers map[string]int // open requests, by caller
	readers map[string]int // by run
}

func newCrowd() *crowd {
	return &crowd{callers: make(map[string]int), readers: make(map[string]int)}
}

// enter counts a request of caller in, of at most max, and perCaller of one; 0 means any
// number. leave must be called unless there is a problem.
func (c *crowd) enter(caller string, max, perCaller int) (leave func(), _ *problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case perCaller > 0 && c.callers[caller] >= perCaller:
		return nil, newProblem("rate_limited", "As many requests as one caller may have are open.").retryAfter()
	case c.open >= max:
		return nil, newProblem("overloaded", "As many requests as this service allows are open.").retryAfter()
	}
	c.open++
	c.callers[caller]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.open--
		less(c.callers, caller)
	}, nil
}

// read counts a reader of a run in. leave must be called unless there is a problem.
func (c *crowd) read(run string) (leave func(), _ *problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readers[run] >= maxReaders {
		return nil, newProblem("rate_limited", "As many streams as one run may have are open.").retryAfter()
	}
	c.readers[run]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		less(c.readers, run)
	}, nil
}

func less(counts map[string]int, name string) {
	if counts[name]--; counts[name] == 0 {
		delete(counts, name)
	}
}

// bounded refuses requests of which too many are open already, before they cost more.
// Streams are why: most others are over before they are counted.
func (h *Handler) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leave, full := h.crowd.enter(identity(r).Key(), h.MaxStreams, h.MaxStreamsPerCaller)
		if full != nil {
			h.writeProblem(w, r, full)
			return
		}
		defer leave()
		next.ServeHTTP(w, r)
	})
}

type overLimitKey struct{}

// OverLimit marks the connection of ctx, http.Server's ConnContext, as one too many: it gets
// probes answered, and to everything else a refusal.
func OverLimit(ctx context.Context) context.Context {
	return context.WithValue(ctx, overLimitKey{}, true)
}

// rejectOverLimit answers on connections that are too many, and closes them.
func (h *Handler) rejectOverLimit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(overLimitKey{}) == nil {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "close")
		if probe(r) {
			next.ServeHTTP(w, r)
			return
		}
		h.writeProblem(w, r, newProblem("overloaded", "As many connections as this service allows are open.").retryAfter())
	})
}

// probe reports whether the request is of those who watch the service, and by address.
func probe(r *http.Request) bool {
	return r.URL.Path == "/healthz" || r.URL.Path == "/readyz" || r.URL.Path == "/metrics"
}

// placeProblem tells somebody who was not let in whether it is he who asks for too much,
// or all together, and when to come back.
func placeProblem(r *agent.Refusal) *problem {
	var p *problem
	switch {
	case errors.Is(r, agent.ErrTooMany):
		p = newProblem("rate_limited", "As many runs as one caller may have are going on.")
	case errors.Is(r, agent.ErrTooFast):
		p = newProblem("rate_limited", "Runs are started faster than one caller may.")
	case errors.Is(r, agent.ErrMemoryShort):
		p = newProblem("overloaded", "The service has no memory to spare at the moment.")
	default:
		p = newProblem("overloaded", "As many runs as this service allows are going on.")
	}
	p.header.Set("Retry-After", strconv.Itoa(int(r.RetryAfter/time.Second)))
	return p
}

// addressOf is by what anonymous callers are told apart: the address of their connection,
// of IPv6 the network that one subscriber has. What a header says of it anybody could
// write, so behind a proxy all of them are one.
func addressOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return ""
	}
	if ip = ip.Unmap().WithZone(""); ip.Is6() {
		network, _ := ip.Prefix(64)
		return network.String()
	}
	return ip.String()
}
