package mcp

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	minBackoff = time.Second
	maxBackoff = time.Minute
)

// server is one configured server: its session, its permits, its state, and the
// supervisor goroutine that connects, lists its tools, and does so again with
// backoff while it is down.
type server struct {
	c       *Client
	index   int // in the configuration's order
	cfg     ServerConfig
	log     *slog.Logger
	pool    *pool
	dialer  dialer
	permits chan struct{}
	wake    chan struct{} // of capacity 1: the supervisor is to look again
	gone    chan struct{} // closed when the supervisor has ended

	mu      sync.Mutex // protects what follows
	state   State
	reason  string
	since   time.Time
	version string       // protocol version of the session listed last
	listed  *session     // that session; nil while down
	tools   int          // how many were offered by it
	waiters []chan error // Refresh calls that the next round answers
}

// newServer is a server as configured. One that is disabled, or of a type that this
// build doesn't speak, is only ever reported.
func newServer(c *Client, index int, cfg ServerConfig) *server {
	if cfg.Type == "" {
		cfg.Type = TypeHTTP
	}
	cfg.MaxConcurrentCalls = orElse(cfg.MaxConcurrentCalls, c.opts.MaxConcurrentCalls)
	cfg.Timeout = orElse(cfg.Timeout, c.opts.Timeout)
	s := &server{
		c: c, index: index, cfg: cfg,
		log:     c.log.With("mcp_server", cfg.Name),
		permits: make(chan struct{}, cfg.MaxConcurrentCalls),
		wake:    make(chan struct{}, 1),
		gone:    make(chan struct{}),
		state:   Connecting,
		since:   time.Now(),
	}
	dial := dialers[cfg.Type]
	switch {
	case cfg.Disabled:
		s.state = Disabled
		return s
	case dial == nil:
		s.state, s.reason = Failed, "type "+cfg.Type+" is not supported by this build"
		s.log.Warn("MCP server cannot be used", "reason", s.reason)
		return s
	}
	if len(cfg.Resources) > 0 {
		s.log.Warn("resources are not offered by this build", "resources", len(cfg.Resources))
	}
	var err error
	if s.dialer, err = dial(cfg, c.opts); err != nil {
		s.state, s.reason = Failed, "its configuration cannot be used"
		return s
	}
	s.pool = &pool{life: c.life, dial: s.dialer.connect, made: s.poke}
	return s
}

// orElse is v, or other where v isn't set.
func orElse[T int | time.Duration](v, other T) T {
	if v > 0 {
		return v
	}
	return other
}

// live reports whether the server is connected to at all.
func (s *server) live() bool { return s.pool != nil }

// run is the supervisor. It ends with the Client's life.
func (s *server) run() {
	defer close(s.gone)
	// The first round connects, so that tools are there before the first question.
	first := true
	for failures := 0; ; {
		waiters := s.take()
		err := s.round(len(waiters) > 0)
		s.answer(waiters, err)
		if first {
			s.c.tried()
			first = false
		}
		var again <-chan time.Time
		var timer *time.Timer
		if err == nil {
			failures = 0
		} else {
			timer = time.NewTimer(backoff(failures))
			again = timer.C
			failures++
		}
		// Asleep until somebody asks: a server that is up is not polled.
		select {
		case <-s.c.life.Done():
		case <-s.wake:
		case <-again:
		}
		if timer != nil {
			timer.Stop()
		}
		if s.c.life.Err() != nil {
			return
		}
	}
}

// backoff is the wait after so many failures in a row: doubling, with full jitter
// above half of it so that servers that went down together don't come back together.
func backoff(failures int) time.Duration {
	d := min(minBackoff<<min(failures, 10), maxBackoff)
	return d/2 + rand.N(d/2)
}

// round lists the tools, connecting first if need be, and sets the state.
func (s *server) round(asked bool) error {
	// Woken by a handshake whose session has been listed already.
	if !asked && s.settled() {
		return nil
	}
	if asked {
		s.renewSession()
	}
	tools, used, f := s.list()
	if s.c.life.Err() != nil {
		return errClosed
	}
	if f != nil {
		s.down(f)
		return &ServerError{Server: s.cfg.Name, Reason: f.public, Err: f}
	}
	n := s.c.names.set(s.index, &s.cfg, tools)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != Connected {
		s.log.Info("MCP server connected", "protocol", used.protocol(), "tools", n)
		s.state, s.reason, s.since = Connected, "", time.Now()
	}
	s.version, s.listed, s.tools = used.protocol(), used, n
	return nil
}

// settled reports whether the tools of the current session are known.
func (s *server) settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == Connected && s.listed == s.pool.current()
}

// down notes that the server cannot be used now, and reports whether that is news.
func (s *server) down(f *failure) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed = nil
	state := Failed
	if s.version != "" {
		state = Degraded
	}
	if s.state == state && s.reason == f.public {
		return false
	}
	news := s.state != state
	if news {
		s.since = time.Now()
	}
	s.state, s.reason = state, f.public
	s.log.Warn("MCP server is down", "state", state, "reason", f.public)
	// The cause may quote the server, so it is not for the normal log.
	s.log.Debug("MCP server is down", "cause", f)
	return news
}

// poke makes the supervisor look again.
func (s *server) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take is the Refresh calls to be answered by a round that begins now. One that comes
// later waits for the next: it must not get a list from before it asked.
func (s *server) take() []chan error {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiters
	s.waiters = nil
	return w
}

// answer tells them what came of it. Their channels hold one value, so it never waits.
func (s *server) answer(waiters []chan error, err error) {
	for _, w := range waiters {
		w <- err
	}
}

// refresh asks the supervisor for a new list and waits for it.
func (s *server) refresh(ctx context.Context) error {
	if !s.live() {
		st := s.status()
		return &ServerError{Server: s.cfg.Name, Reason: "it is " + string(st.State)}
	}
	done := make(chan error, 1)
	s.mu.Lock()
	s.waiters = append(s.waiters, done)
	s.mu.Unlock()
	s.poke()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.c.life.Done():
		return errClosed
	}
}

// status is the server as GET /servers reports it.
func (s *server) status() ServerStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ServerStatus{
		Name: s.cfg.Name, Type: s.cfg.Type, State: s.state, Reason: s.reason,
		Since: s.since, Protocol: s.version, Tools: s.tools,
	}
}

// close waits for the supervisor, then ends the session. The Client's life must be
// over.
func (s *server) close() {
	<-s.gone
	if err := s.pool.close(); err != nil {
		s.log.Debug("end MCP session", "error", err)
	}
	s.dialer.close()
}
