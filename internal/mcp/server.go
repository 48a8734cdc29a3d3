package mcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
)

// overfullTime is until tools are listed again whose list was too large.
const overfullTime = 10 * time.Minute

// server is one configured server: its session, its permits, its state, and the
// supervisor goroutine that connects, lists its tools, and does so again with
// backoff while it is down.
type server struct {
	c       *Client
	id      int           // in the catalogue; never given to another
	given   config.Server // as configured
	cfg     config.Server // with the defaults filled in
	log     *slog.Logger
	pool    *session.Pool // the sessions of the service itself
	callers *userSessions // instead of them, where callers have their own; else nil
	dialer  dialer
	breaker breaker
	permits chan struct{}
	wake    chan struct{} // of capacity 1: the supervisor is to look again
	gone    chan struct{} // closed when the supervisor has ended
	drain   *callDrain

	life context.Context // ends with the Client's, or when a removed server has drained
	end  context.CancelCauseFunc

	mu      sync.Mutex // protects what follows
	state   State
	reason  string
	since   time.Time
	version string           // protocol version of the session listed last
	listed  *session.Session // that session; nil while down
	renewal listExpiry       // when its tools are listed again
	waiters []refreshWaiter  // whom the next round answers

	away     bool // it could not be reached when it was tried last
	overfull bool // its list of tools was too large when it was asked for last
}

// refreshWaiter waits for the supervisor to list the tools.
type refreshWaiter struct {
	done  chan error // of capacity 1
	fresh bool       // and for a new list, even where there is one
}

// newServer is a server as configured. One that is disabled, or of a type that this
// build doesn't speak, is only ever reported.
func newServer(c *Client, id int, cfg config.Server) *server {
	given := cfg
	cfg.Type = cfg.TransportType()
	cfg.MaxConcurrentCalls = orElse(cfg.MaxConcurrentCalls, c.opts.MaxConcurrentCalls)
	cfg.Timeout = orElse(cfg.Timeout, c.opts.Timeout)
	cfg.MaxTime = orElse(cfg.MaxTime, min(10*cfg.Timeout, config.MaxTimeout))
	s := &server{
		c: c, id: id, given: given, cfg: cfg,
		log:     c.log.With("mcp_server", cfg.Name),
		permits: make(chan struct{}, cfg.MaxConcurrentCalls),
		wake:    make(chan struct{}, 1),
		gone:    make(chan struct{}),
		drain:   newCallDrain(),
		state:   Connecting,
		since:   time.Now(),
	}
	s.life, s.end = context.WithCancelCause(c.life)
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
	var err error
	if s.dialer, err = dial(cfg, c.opts); err != nil {
		s.state, s.reason = Failed, "its configuration cannot be used"
		return s
	}
	s.pool = session.New(session.Options{
		Life: s.life, Logger: s.log, Connect: s.dialer.connect, HandshakeTimeout: orElse(s.dialer.time, session.HandshakeTimeout),
		CacheResources: len(cfg.Resources) > 0, Subscribe: true, OverHTTP: cfg.Type == config.TypeHTTP,
		OnConnected: s.wakeSupervisor, OnLost: func(f *transport.Failure) { s.setFailed(f) }, OnNotification: s.handleListChanged,
	})
	if s.dialer.delegation != nil {
		s.callers = newUserSessions(s, *s.dialer.delegation)
		s.reason = awaitCaller
		if s.callers.consents != nil {
			s.reason = awaitConsent
		}
	}
	return s
}

// orElse is v, or other where v isn't set.
func orElse[T int | time.Duration](v, other T) T {
	if v > 0 {
		return v
	}
	return other
}

// isLive reports whether the server is enabled and its type supported.
func (s *server) isLive() bool { return s.pool != nil }

// superviseLoop connects the server and keeps its list of tools fresh. It returns when the
// server's life ends.
func (s *server) superviseLoop() {
	defer close(s.gone)
	defer transport.Recover(s.log, func(f *transport.Failure) { s.setFailed(f) }) // calls go on without it
	if s.callers != nil {
		s.c.markTried() // nobody is here yet
		s.callers.expireLoop()
		return
	}
	// The first round connects, so that tools are there before the first question.
	first := true
	for failures := 0; ; {
		waiters, fresh := s.takeWaiters()
		err := s.refreshTools(fresh)
		s.answerWaiters(waiters, err)
		if first {
			s.c.markTried()
			first = false
		}
		wait, asleep := s.nextRenewal()
		switch left, resting := s.pool.ReconnectDelay(); {
		case err != nil:
			f, _ := errors.AsType[*transport.Failure](err)
			wait, asleep = max(transport.Backoff(failures), f.RetryAfter()), false
			failures++
		case resting:
			wait, asleep = left, false
		default:
			failures = 0
		}
		s.waitForWork(wait, asleep)
		if s.life.Err() != nil {
			return
		}
	}
}

// waitForWork returns when wait is over, unless the server sleeps until somebody asks:
// one that is up, and gave its list for good, is not polled.
func (s *server) waitForWork(wait time.Duration, untilAsked bool) {
	var over <-chan time.Time
	if !untilAsked {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-s.life.Done():
	case <-s.wake:
	case <-over:
	}
}

// refreshTools lists the tools, connecting first if need be, and sets the state.
func (s *server) refreshTools(fresh bool) (err error) {
	defer transport.Recover(s.log, func(f *transport.Failure) {
		s.listFailed(f)
		err = &ServerError{Server: s.cfg.Name, Reason: f.Public, Err: f}
	})
	due, changes := s.isRenewalDue()
	// Woken by a handshake whose session has been listed already, or by the loss of
	// one that was made a moment ago.
	if _, resting := s.pool.ReconnectDelay(); !fresh && (!due && s.isUpToDate() || resting) {
		return nil
	}
	l, used, f := s.listTools(s.pool)
	if s.life.Err() != nil {
		return context.Cause(s.life)
	}
	if f != nil {
		s.listFailed(f)
		return &ServerError{Server: s.cfg.Name, Reason: f.Public, Err: f}
	}
	s.setConnected(l, used.Protocol(), used, changes)
	return nil
}

// setConnected notes the list that a session gave after so many announced changes; listed is that
// session, and nil where each principal has sessions of his own.
func (s *server) setConnected(l toolList, version string, listed *session.Session, changes int) {
	n := s.c.catalog.SetTools(s.id, &s.cfg, l.tools)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != Connected {
		s.log.Info("MCP server connected", "protocol", version, "tools", n)
		s.state, s.reason, s.since = Connected, "", time.Now()
	}
	s.version, s.listed, s.away, s.overfull = version, listed, false, false
	s.renewal.recordList(l.ttl, s.cfg.Pin, changes)
}

// listFailed notes that the tools could not be listed. A list that is too large says
// nothing about the server's calls, which go on with the tools that are known; and to
// ask again soon would get the same, over a connection of messages at the price of that
// connection.
func (s *server) listFailed(f *transport.Failure) {
	s.setFailed(f)
	if f.Kind == TooLarge {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.overfull = true
		s.renewal.due = time.Now().Add(overfullTime)
	}
}

// isUpToDate reports whether the tools of the current session are known, or cannot be.
func (s *server) isUpToDate() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.overfull && !s.cfg.Pin {
		return true
	}
	return s.state == Connected && s.listed == s.pool.CurrentSession()
}

// setFailed records that the server cannot be used now, and reports whether it could before.
func (s *server) setFailed(f *transport.Failure) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed, s.away = nil, f.Kind == Unavailable
	state := Failed
	if s.version != "" {
		state = Degraded
	}
	reason := f.StateReason()
	if s.state == state && s.reason == reason {
		return false
	}
	news := s.state != state
	if news {
		s.since = time.Now()
	}
	s.state, s.reason = state, reason
	s.log.Warn("MCP server is down", "state", state, "reason", reason)
	return news
}

// isUnreachable reports whether the server could not be reached when it was tried last. A call
// that gets through all the same shows that it is back before the supervisor looks.
func (s *server) isUnreachable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}

// wakeSupervisor makes superviseLoop check what there is to do.
func (s *server) wakeSupervisor() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// takeWaiters is whom a round that begins now answers, and whether one of them wants a new
// list. Who comes later waits for the next: he must not get a list from before he
// asked.
func (s *server) takeWaiters() (w []refreshWaiter, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, s.waiters = s.waiters, nil
	return w, slices.ContainsFunc(w, func(w refreshWaiter) bool { return w.fresh })
}

// answerWaiters sends err to the waiters. Their channels hold one value, so it never blocks.
func (s *server) answerWaiters(waiters []refreshWaiter, err error) {
	for _, w := range waiters {
		w.done <- err
	}
}

// refreshNow asks the supervisor for a new list and waits for it. A server that is used
// on behalf of its callers is asked on behalf of who.
func (s *server) refreshNow(ctx context.Context, who auth.Identity) error {
	if !s.isLive() {
		st := s.currentStatus()
		return &ServerError{Server: s.cfg.Name, Reason: "it is " + string(st.State)}
	}
	if s.callers != nil {
		return s.callers.listTools(ctx, who, true)
	}
	return s.waitForRefresh(ctx, true)
}

// waitForRefresh waits for the next round of the supervisor; fresh makes it list the tools
// even if it has.
func (s *server) waitForRefresh(ctx context.Context, fresh bool) error {
	done := make(chan error, 1)
	s.mu.Lock()
	s.waiters = append(s.waiters, refreshWaiter{done, fresh})
	s.mu.Unlock()
	s.wakeSupervisor()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.life.Done():
		return context.Cause(s.life)
	}
}

// currentStatus returns the status for GET /servers.
func (s *server) currentStatus() ServerStatus {
	tools, disabled := s.c.catalog.Counts(s.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := ServerStatus{
		Name: s.cfg.Name, Type: s.cfg.Type, State: s.state, Reason: s.reason,
		Since: s.since, Protocol: s.version, Tools: tools, DisabledTools: disabled,
	}
	// Once it has listed its tools again it is as good as any, until a call says
	// otherwise.
	opened, reason, halfOpen := s.breaker.currentState()
	if known := halfOpen && s.renewal.listed.After(opened); s.state == Connected && !opened.IsZero() && !known {
		st.State, st.Since, st.Reason = Degraded, opened, reason
	}
	if n := len(disabled); n > 0 && st.State == Connected {
		st.Reason = fmt.Sprintf("tools disabled until their definitions are accepted (answerd check): %d", n)
	}
	return st
}

// closeServer waits for the supervisor, then ends the session. The server's life must be
// over.
func (s *server) closeServer() {
	<-s.gone
	if s.callers != nil {
		s.callers.closeAll()
	}
	recoverFunc(s.log, func() {
		if err := s.pool.Close(); err != nil {
			s.log.Debug("end MCP session", "error", err)
		}
	})
	s.dialer.close()
}

// listOutdated is the failure of a call that was not sent since the session is newer than the list of
// tools.
var listOutdated = &transport.Failure{Kind: Unavailable, Public: "its tools are being listed again", NotRun: true, Lost: true}

// waitForPinnedTools waits, where tools are pinned, until those of the current session are known:
// a server that came back may be another.
func (s *server) waitForPinnedTools(ctx context.Context, deadline time.Time) *transport.Failure {
	if !s.cfg.Pin || s.isUpToDate() {
		return nil
	}
	ctx, stop := context.WithDeadlineCause(ctx, deadline, transport.ErrTimeout)
	defer stop()
	err := s.waitForRefresh(ctx, false)
	var down *ServerError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return contextFailure(ctx)
	case errors.As(err, &down):
		return &transport.Failure{Kind: Unavailable, Public: down.Reason, NotRun: true, Err: err}
	}
	return &transport.Failure{Kind: Cancelled, Public: "answerd is shutting down", NotRun: true, Err: err}
}

// isListedFrom reports whether the known tools were listed in this session.
func (s *server) isListedFrom(used *session.Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listed == used
}
