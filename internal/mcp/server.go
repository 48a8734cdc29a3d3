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

// newServer returns a server with the defaults filled in. It connects to nothing; superviseLoop does. A server that is
// disabled or cannot be used has no session pool: isLive is false, and only its status is reported.
func newServer(client *Client, id int, cfg config.Server) *server {
	configured := cfg
	cfg.Type = cfg.TransportType()
	cfg.MaxConcurrentCalls = orElse(cfg.MaxConcurrentCalls, client.opts.MaxConcurrentCalls) // 0: adaptive
	cfg.Timeout = orElse(cfg.Timeout, client.opts.Timeout)
	cfg.MaxTime = orElse(cfg.MaxTime, min(10*cfg.Timeout, config.MaxTimeout))

	srv := &server{
		client:         client,
		id:             id,
		configured:     configured,
		cfg:            cfg,
		log:            client.log.With("mcp_server", cfg.Name),
		callLimiter:    limiter.New(cfg.MaxConcurrentCalls),
		wake:           make(chan struct{}, 1),
		supervisorDone: make(chan struct{}),
		drain:          newCallDrain(),
		state:          Connecting,
		since:          time.Now(),
	}
	srv.life, srv.endLife = context.WithCancelCause(client.life)

	dial := dialers[cfg.Type]
	switch {
	case cfg.Disabled:
		srv.state = Disabled
		return srv
	case dial == nil:
		srv.state = Failed
		srv.reason = "type " + cfg.Type + " is not supported by this build"
		srv.log.Warn("MCP server cannot be used", "reason", srv.reason, help.Servers.Attr())
		return srv
	}

	var err error
	if srv.dialer, err = dial(cfg, client.opts); err != nil {
		srv.state = Failed
		srv.reason = "its configuration cannot be used"
		srv.log.Warn("MCP server cannot be used", "reason", srv.reason, "error", err, help.Servers.Attr())
		return srv
	}

	srv.pool = srv.newPool()
	if srv.dialer.delegation != nil {
		srv.userSessions = newUserSessions(srv, *srv.dialer.delegation)
		srv.reason = awaitCaller
		if srv.userSessions.signInClient != nil {
			srv.reason = awaitConsent
		}
	}
	return srv
}

// newPool returns the pool of the session that all callers share.
func (s *server) newPool() *session.Pool {
	return session.New(session.Options{
		Life:             s.life,
		Logger:           s.log,
		Connect:          s.dialer.connect,
		HandshakeTimeout: orElse(s.dialer.handshakeTimeout, session.HandshakeTimeout),
		CacheResources:   len(s.cfg.Resources) > 0,
		Subscribe:        true,
		OverHTTP:         s.cfg.Type == config.TypeHTTP,
		OnConnected:      s.wakeSupervisor,
		OnLost:           func(f *transport.Failure) { s.markFailed(f) },
		OnNotification:   s.handleListChanged,
	})
}

// isLive reports whether the server is enabled, and its type and its configuration can be used.
func (s *server) isLive() bool { return s.pool != nil }

// superviseLoop is the supervisor. It connects the server, lists its tools, and repeats that whenever the list may be
// out of date, the connection was lost, or refreshWaiters ask for it. For a server with user sessions it only closes
// idle sessions. It returns when the server's life ends.
func (s *server) superviseLoop() {
	defer close(s.supervisorDone)
	defer transport.Recover(s.log, func(f *transport.Failure) { s.markFailed(f) }) // calls still work without the supervisor

	if s.userSessions != nil {
		s.client.markTried() // nothing is attempted before the first caller
		s.userSessions.expireLoop()
		return
	}

	// The first round connects, so that the tools are known before the first question.
	first := true
	failures := 0 // rounds in a row that failed
	for {
		waiters, fresh := s.takeWaiters()
		err := s.refreshTools(fresh)
		s.answerWaiters(waiters, err)
		if first {
			s.client.markTried()
			first = false
		}
		wait, untilWoken := s.timeToRenewal()
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
	var timeout <-chan time.Time // nil blocks
	if !untilWoken {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-s.life.Done():
	case <-s.wake:
	case <-timeout:
	}
}

// refreshTools lists the tools, which connects the server if needed, and sets the server's state. Without fresh it
// does nothing while the known list is up to date, or while the pool delays connecting again. The error is a
// *ServerError with the *transport.Failure in its chain, or the cause of the end of the server's life. A panic
// becomes an error.
func (s *server) refreshTools(fresh bool) (err error) {
	defer transport.Recover(s.log, func(f *transport.Failure) {
		s.recordFailedListing(f)
		err = &ServerError{Server: s.cfg.Name, Reason: f.Public, Err: f}
	})
	due, changes := s.isRenewalDue()
	isCurrent := !due && s.isUpToDate()   // the supervisor was woken by the handshake of a session that is listed
	_, delayed := s.pool.ReconnectDelay() // it was woken by the loss of a session that is too young to be replaced
	if !fresh && (isCurrent || delayed) {
		return nil
	}
	list, used, f := s.listTools(s.pool)
	if s.life.Err() != nil {
		return context.Cause(s.life)
	}
	if f != nil {
		s.recordFailedListing(f)
		return &ServerError{Server: s.cfg.Name, Reason: f.Public, Err: f}
	}
	s.recordList(list, used.Protocol(), used, changes)
	return nil
}

// recordList puts a list of tools into the catalog, makes the server Connected, and stores the names of the tools.
// listed is the session that the list came from, or nil if each user has sessions of their own. protocol is that
// session's protocol version. changes is what isRenewalDue returned when the list was requested.
func (s *server) recordList(list toolList, protocol string, listed *session.Session, changes int) {
	usable := s.client.catalog.SetTools(s.id, &s.cfg, list.tools)
	defer s.storeToolNames(list.tools) // deferred until s.mu is unlocked, because it waits for the store
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != Connected {
		s.log.Info("MCP server connected", "protocol", protocol, "tools", usable)
		s.state = Connected
		s.reason = ""
		s.since = time.Now()
	}
	if listed != nil {
		s.instructions = listed.Instructions()
	}
	s.omittedTools = list.omitted
	s.truncated = list.truncated
	s.resourcesCut = list.resourcesCut
	s.protocol = protocol
	s.listedSession = listed
	s.unreachable = false
	s.listTooLarge = false
	s.listingFailed = false
	s.renewal.schedule(list.ttl, s.cfg.Pin, changes)
}

// recordFailedListing records that the supervisor could not list the tools. If the list was too large, calls of the
// known tools still work, so the supervisor tries again only after tooLargeDelay. An earlier attempt would get the
// same list, and over stdio or WebSocket an oversized message costs the connection.
func (s *server) recordFailedListing(f *transport.Failure) {
	s.recordFailedAttempt(f)
	if f.Kind == TooLarge {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.listTooLarge = true
		s.renewal.dueAt = time.Now().Add(tooLargeDelay)
	}
}

// recordFailedAttempt records that an attempt to connect and to list the tools failed. The server is then unavailable
// (isUnavailable), unless its list was too large. markFailed alone does not make it unavailable: after a lost
// session, the next call makes a new one.
func (s *server) recordFailedAttempt(f *transport.Failure) {
	s.markFailed(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listingFailed = f.Kind != TooLarge
}

// isUnavailable reports whether the server is enabled but runs cannot use it at present. waited says that the caller
// has waited for first connections. Then a server that has never been connected is unavailable too, except for one
// that is used on behalf of its callers: its tools are listed with the first caller's token.
func (s *server) isUnavailable(waited bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.state {
	case Disabled:
		return false
	case Connecting:
		return s.userSessions == nil && waited
	}
	return s.listingFailed || !s.isLive()
}

// isUpToDate reports whether the tools of the current session are known. It also returns true if the list was too
// large: to list the tools again would not help. With Pin that does not count, because no tool may be called that the
// current session has not listed.
func (s *server) isUpToDate() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listTooLarge && !s.cfg.Pin {
		return true
	}
	return s.state == Connected && s.listedSession == s.pool.CurrentSession()
}

// markFailed sets the state to Degraded if the tools were listed before, or else to Failed, and logs a new state or
// reason. The tools count as not listed from then on (isUpToDate), but stay in the catalog. markFailed reports
// whether the state, and not only its reason, has changed.
func (s *server) markFailed(failure *transport.Failure) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listedSession = nil
	s.unreachable = failure.Kind == Unavailable
	state := Failed
	if s.protocol != "" {
		state = Degraded
	}
	reason := failure.StateReason()
	if s.state == state && s.reason == reason {
		return false
	}
	stateChanged := s.state != state
	if stateChanged {
		s.since = time.Now()
	}
	s.state = state
	s.reason = reason
	s.log.Warn("MCP server is down", "state", state, "reason", reason, help.Servers.Attr())
	return stateChanged
}

// isUnreachable reports whether the latest failure was that the server could not be reached, and its tools have not
// been listed since.
func (s *server) isUnreachable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unreachable
}

// wakeSupervisor makes superviseLoop start its next round now, or right after the present one. It does not block.
func (s *server) wakeSupervisor() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// takeWaiters removes and returns the present waiters, which the supervisor's round that starts now answers. fresh
// says that at least one of them wants a new list. Waiters that come during the round are left to the next one,
// because they must not get a list that was requested before they asked.
func (s *server) takeWaiters() (waiters []refreshWaiter, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiters, s.waiters = s.waiters, nil
	return waiters, slices.ContainsFunc(waiters, func(w refreshWaiter) bool { return w.fresh })
}

// answerWaiters sends the outcome of a round to its waiters. It never blocks, because their channels hold one value.
func (s *server) answerWaiters(waiters []refreshWaiter, err error) {
	for _, w := range waiters {
		w.done <- err
	}
}

// refreshNow lists the tools again, even if the list is up to date, and waits for that under ctx. The supervisor
// lists them, or for a server that is used on behalf of its callers, refreshNow with the token of the user. The error
// is a *ServerError, or the cause of the end of ctx or of the server's life.
func (s *server) refreshNow(ctx context.Context, user auth.Identity) error {
	if !s.isLive() {
		return &ServerError{Server: s.cfg.Name, Reason: "it is " + string(s.currentStatus().State)}
	}
	if s.userSessions != nil {
		return s.userSessions.listTools(ctx, user, true)
	}
	return s.waitForRefresh(ctx, true)
}

// waitForRefresh starts the next round of the supervisor and returns its error, that of refreshTools. With fresh,
// that round lists the tools even if they are up to date. If ctx or the server's life ends first, the error is its
// cause.
func (s *server) waitForRefresh(ctx context.Context, fresh bool) error {
	done := make(chan error, 1)
	s.mu.Lock()
	s.waiters = append(s.waiters, refreshWaiter{done: done, fresh: fresh})
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
	tools, disabled := s.client.catalog.ToolCounts(s.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := ServerStatus{
		Name: s.cfg.Name, Type: s.cfg.Type, State: s.state, Reason: s.reason,
		Since: s.since, Protocol: s.protocol, Tools: tools, DisabledTools: disabled, ConcurrencyLimit: s.callLimiter.Limit(),
		OmittedTools: s.omittedTools,
	}
	if s.state != Connected {
		return st
	}
	// An open breaker makes the server degraded. A half-open one does not if the tools were listed after the breaker
	// opened, since that shows that the server works again.
	openedAt, reason, halfOpen := s.breaker.currentState()
	worksAgain := halfOpen && s.renewal.listedAt.After(openedAt)
	if !openedAt.IsZero() && !worksAgain {
		st.State = Degraded
		st.Since = openedAt
		st.Reason = reason
		return st
	}
	st.Reason = s.missingLocked(len(disabled))
	if s.truncated != "" {
		st.OmittedTools = max(s.omittedTools, 1)
	}
	return st
}

// missingLocked returns how many tools of a connected server cannot be called and why, and why resources may be missing;
// "" if nothing is missing. disabled is how many tools are disabled by a pin.
func (s *server) missingLocked(disabled int) string {
	var reasons []string
	if disabled > 0 {
		reasons = append(reasons, fmt.Sprintf("tools disabled until their definitions are accepted (answerd check): %d", disabled))
	}
	switch {
	case s.truncated != "":
		reasons = append(reasons, fmt.Sprintf("the list of tools %s; left out: %d or more", s.truncated, max(s.omittedTools, 1)))
	case s.omittedTools > 0:
		reasons = append(reasons, fmt.Sprintf("tools left out, because they are not valid or the list is too large: %d", s.omittedTools))
	}
	if s.resourcesCut != "" {
		reasons = append(reasons, fmt.Sprintf("the list of resources %s; further resources are left out", s.resourcesCut))
	}
	return strings.Join(reasons, "; ")
}

// closeServer waits for the supervisor, then ends the sessions and closes the connections. The server's life must
// have ended, and the server must be live.
func (s *server) closeServer() {
	<-s.supervisorDone
	if s.userSessions != nil {
		s.userSessions.closeAll()
	}
	recoverFunc(s.log, func() {
		if err := s.pool.Close(); err != nil {
			s.log.Debug("end MCP session", "error", err)
		}
	})
	s.dialer.close()
}

// listOutdated is the failure of an attempt that was not sent, because the tools are pinned and the session is newer
// than the list of tools. It is Lost and NotRun, so that callWithRetry makes another attempt.
var listOutdated = &transport.Failure{Kind: Unavailable, Public: "its tools are being listed again", NotRun: true, Lost: true}

// waitForPinnedTools waits until the current session has listed the tools, if the server has Pin. A server that was
// restarted may have changed its tools, so the accepted definitions must be compared with the new list before a call.
// It waits under ctx and until deadline.
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
	return shutdownFailure(err)
}

// isListedFrom reports whether the known tools were listed in the session used.
func (s *server) isListedFrom(used *session.Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listedSession == used
}
