package mcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"answerd/internal/auth"
	"answerd/internal/help"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/limiter"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
)

// tooLargeDelay is the time after which tools are listed again if their list was too large.
const tooLargeDelay = 10 * time.Minute

// newServer returns a server with the defaults filled in. If it is disabled or cannot be used, it
// has no session pool (isLive is false) and only its status is reported.
func newServer(client *Client, id int, cfg config.Server) *server {
	given := cfg
	cfg.Type = cfg.TransportType()
	cfg.MaxConcurrentCalls = orElse(cfg.MaxConcurrentCalls, client.opts.MaxConcurrentCalls) // 0: adaptive
	cfg.Timeout = orElse(cfg.Timeout, client.opts.Timeout)
	cfg.MaxTime = orElse(cfg.MaxTime, min(10*cfg.Timeout, config.MaxTimeout))

	srv := &server{
		c: client, id: id, given: given, cfg: cfg,
		log:   client.log.With("mcp_server", cfg.Name),
		calls: limiter.New(cfg.MaxConcurrentCalls),
		wake:  make(chan struct{}, 1),
		gone:  make(chan struct{}),
		drain: newCallDrain(),
		state: Connecting,
		since: time.Now(),
	}
	srv.life, srv.end = context.WithCancelCause(client.life)

	dial := dialers[cfg.Type]
	switch {
	case cfg.Disabled:
		srv.state = Disabled
		return srv
	case dial == nil:
		srv.state, srv.reason = Failed, "type "+cfg.Type+" is not supported by this build"
		srv.log.Warn("MCP server cannot be used", "reason", srv.reason, help.Servers.Attr())
		return srv
	}

	var err error
	if srv.dialer, err = dial(cfg, client.opts); err != nil {
		srv.state, srv.reason = Failed, "its configuration cannot be used"
		return srv
	}

	srv.pool = session.New(session.Options{
		Life: srv.life, Logger: srv.log, Connect: srv.dialer.connect, HandshakeTimeout: orElse(srv.dialer.time, session.HandshakeTimeout),
		CacheResources: len(cfg.Resources) > 0, Subscribe: true, OverHTTP: cfg.Type == config.TypeHTTP,
		OnConnected: srv.wakeSupervisor, OnLost: func(f *transport.Failure) { srv.setFailed(f) }, OnNotification: srv.handleListChanged,
	})

	if srv.dialer.delegation != nil {
		srv.callers = newUserSessions(srv, *srv.dialer.delegation)
		srv.reason = awaitCaller
		if srv.callers.consents != nil {
			srv.reason = awaitConsent
		}
	}
	return srv
}

// isLive reports whether the server is enabled and its type supported.
func (s *server) isLive() bool { return s.pool != nil }

// superviseLoop connects the server and keeps its list of tools fresh. It returns when the
// server's life ends.
func (s *server) superviseLoop() {
	defer close(s.gone)
	defer transport.Recover(s.log, func(f *transport.Failure) { s.setFailed(f) }) // calls still work without the supervisor

	if s.callers != nil {
		s.c.markTried() // no caller has come yet
		s.callers.expireLoop()
		return
	}

	// The first round connects, so that the tools are known before the first question.
	first := true
	for failures := 0; ; {
		waiters, fresh := s.takeWaiters()
		err := s.refreshTools(fresh)
		s.answerWaiters(waiters, err)
		if first {
			s.c.markTried()
			first = false
		}
		wait, untilWoken := s.nextRenewal()
		remaining, delayed := s.pool.ReconnectDelay()
		switch {
		case err != nil:
			f, _ := errors.AsType[*transport.Failure](err)
			wait, untilWoken = max(transport.Backoff(failures), f.RetryAfter()), false
			failures++
		case delayed:
			wait, untilWoken = remaining, false
		default:
			failures = 0
		}
		s.waitForWork(wait, untilWoken)
		if s.life.Err() != nil {
			return
		}
	}
}

// waitForWork returns after wait, or when the supervisor is woken or the server's life ends. With
// untilWoken it ignores wait: a connected server whose list does not expire is not polled.
func (s *server) waitForWork(wait time.Duration, untilWoken bool) {
	var over <-chan time.Time
	if !untilWoken {
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

// refreshTools lists the tools and sets the state; it connects first if needed. Without fresh it
// does nothing if the list is up to date.
func (s *server) refreshTools(fresh bool) (err error) {
	defer transport.Recover(s.log, func(f *transport.Failure) {
		s.listFailed(f)
		err = &ServerError{Server: s.cfg.Name, Reason: f.Public, Err: f}
	})
	due, changes := s.isRenewalDue()
	// The wake-up came from a handshake whose session has been listed already, or from the loss of
	// a session that is too young to be replaced yet.
	_, delayed := s.pool.ReconnectDelay()
	hasList := !due && s.isUpToDate()
	if !fresh && (hasList || delayed) {
		return nil
	}
	list, used, f := s.listTools(s.pool)
	if s.life.Err() != nil {
		return context.Cause(s.life)
	}
	if f != nil {
		s.listFailed(f)
		return &ServerError{Server: s.cfg.Name, Reason: f.Public, Err: f}
	}
	s.setConnected(list, used.Protocol(), used, changes)
	return nil
}

// setConnected records the list of tools from the session listed (nil if each user has sessions of
// their own). changes is the number of change notifications when the list was requested.
func (s *server) setConnected(list toolList, version string, listed *session.Session, changes int) {
	n := s.c.catalog.SetTools(s.id, &s.cfg, list.tools)
	defer s.storeToolNames(list.tools) // after the state has changed
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != Connected {
		s.log.Info("MCP server connected", "protocol", version, "tools", n)
		s.state = Connected
		s.reason = ""
		s.since = time.Now()
	}
	if listed != nil {
		s.instructions = listed.Instructions()
	}
	s.omitted, s.cut = list.omitted, list.cut
	s.version = version
	s.listed = listed
	s.away = false
	s.tooLarge = false
	s.down = false
	s.renewal.recordList(list.ttl, s.cfg.Pin, changes)
}

// listFailed records that the tools could not be listed. If the list was too large, calls of the
// known tools still work, so listing is retried only after tooLargeDelay. An earlier retry would
// get the same list, and over stdio or WebSocket an oversized message costs the connection.
func (s *server) listFailed(f *transport.Failure) {
	s.setDown(f)
	if f.Kind == TooLarge {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tooLarge = true
		s.renewal.due = time.Now().Add(tooLargeDelay)
	}
}

// setDown records that an attempt to connect and to list the tools failed. A lost session alone
// does not make a server unavailable, since the next call replaces it.
func (s *server) setDown(f *transport.Failure) {
	s.setFailed(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = f.Kind != TooLarge
}

// isUnavailable reports whether questions cannot use the server at present. With waited, a server
// that has never been connected is unavailable; one that is used on behalf of its callers is not,
// since its tools come with the first caller.
func (s *server) isUnavailable(waited bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.state {
	case Disabled:
		return false
	case Connecting:
		return s.callers == nil && waited
	}
	return s.down || !s.isLive()
}

// isUpToDate reports whether the tools of the current session are known, or cannot be.
func (s *server) isUpToDate() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tooLarge && !s.cfg.Pin {
		return true
	}
	return s.state == Connected && s.listed == s.pool.CurrentSession()
}

// setFailed records that the server cannot be used now. It reports whether the state changed.
func (s *server) setFailed(failure *transport.Failure) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed, s.away = nil, failure.Kind == Unavailable
	state := Failed
	if s.version != "" {
		state = Degraded
	}
	reason := failure.StateReason()
	if s.state == state && s.reason == reason {
		return false
	}
	news := s.state != state
	if news {
		s.since = time.Now()
	}
	s.state, s.reason = state, reason
	s.log.Warn("MCP server is down", "state", state, "reason", reason, help.Servers.Attr())
	return news
}

// isUnreachable reports whether the latest attempt could not reach the server. If a call succeeds
// nevertheless, the server is back and the supervisor can be woken early.
func (s *server) isUnreachable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}

// wakeSupervisor makes superviseLoop start its next round now.
func (s *server) wakeSupervisor() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// takeWaiters returns the waiters that the round starting now answers, and whether one of them
// wants a new list. Later waiters are left to the next round, because they must not get a list that
// was requested before they asked.
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

// refreshNow asks the supervisor for a new list and waits for it. For a server that is used on
// behalf of its callers, it lists the tools with the token of the user.
func (s *server) refreshNow(ctx context.Context, user auth.Identity) error {
	if !s.isLive() {
		st := s.currentStatus()
		return &ServerError{Server: s.cfg.Name, Reason: "it is " + string(st.State)}
	}
	if s.callers != nil {
		return s.callers.listTools(ctx, user, true)
	}
	return s.waitForRefresh(ctx, true)
}

// waitForRefresh waits for the next round of the supervisor. With fresh, that round lists the tools
// even if they are up to date.
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
	tools, disabled := s.c.catalog.ToolCounts(s.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := ServerStatus{
		Name: s.cfg.Name, Type: s.cfg.Type, State: s.state, Reason: s.reason,
		Since: s.since, Protocol: s.version, Tools: tools, DisabledTools: disabled, ConcurrencyLimit: s.calls.Limit(),
		OmittedTools: s.omitted,
	}
	// A half-open breaker does not make the server degraded if its tools were listed after the
	// breaker opened, since that shows that the server works again.
	opened, reason, halfOpen := s.breaker.currentState()
	if known := halfOpen && s.renewal.listed.After(opened); s.state == Connected && !opened.IsZero() && !known {
		st.State = Degraded
		st.Since = opened
		st.Reason = reason
	}
	if n := len(disabled); n > 0 && st.State == Connected {
		st.Reason = fmt.Sprintf("tools disabled until their definitions are accepted (answerd check): %d", n)
	}
	if st.State == Connected && (s.omitted > 0 || s.cut) {
		omitted := fmt.Sprintf("tools left out, because they are not valid or the list is too large: %d", s.omitted)
		if s.cut {
			st.OmittedTools = max(s.omitted, 1)
			omitted = fmt.Sprintf("the list of tools is too large; left out: %d or more", st.OmittedTools)
		}
		st.Reason = strings.Join(slices.DeleteFunc([]string{st.Reason, omitted}, func(s string) bool { return s == "" }), "; ")
	}
	return st
}

// closeServer waits for the supervisor, then ends the sessions. The server's life must have ended.
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

// listOutdated is the failure of a call that was not sent because the session is newer than the
// list of tools.
var listOutdated = &transport.Failure{Kind: Unavailable, Public: "its tools are being listed again", NotRun: true, Lost: true}

// waitForPinnedTools waits until the tools of the current session are known if they are pinned. A
// server that was restarted may have changed its tools, so the accepted definitions must be
// compared with the new list.
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
