package mcp

import (
	"context"
	"errors"
	"fmt"
	"math"
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

// tooLargeDelay is the pause before the tools are listed again after a list that was too large.
const tooLargeDelay = 10 * time.Minute

// newServer returns a server for cfg, with the defaults filled in. It does not connect; superviseLoop does. If the
// server is disabled or its configuration cannot be used, the result has no session pool: isLive returns false, and
// the server only reports its status.
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

// newPool returns the pool of the session that all users share.
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
		OnLost:           s.handleLoss,
		OnNotification:   s.handleListChanged,
	})
}

// handleLoss marks the server as failed, because its session was lost, and wakes the supervisor to open another one.
func (s *server) handleLoss(failure *transport.Failure) {
	s.markFailed(failure)
	s.wakeSupervisor()
}

// isLive reports whether the server is enabled and its configuration can be used.
func (s *server) isLive() bool { return s.pool != nil }

// notInUseFailure returns the failure of a request to a server that is not live.
func notInUseFailure() *transport.Failure {
	return &transport.Failure{Kind: Unavailable, Public: "it is not in use", NotRun: true}
}

// superviseLoop runs in the server's supervisor goroutine. It connects the server and lists its tools, and does so
// again when the list may be out of date, when the connection was lost, and when a refreshWaiter asks for it. If the
// server has per-user sessions, it only closes idle sessions. It returns when the server's life ends.
func (s *server) superviseLoop() {
	defer close(s.supervisorDone)
	defer transport.Recover(s.log, func(f *transport.Failure) { s.markFailed(f) }) // calls still work without the supervisor

	if s.userSessions != nil {
		s.client.markTried() // no attempt is made before a user's first request
		s.userSessions.expireLoop()
		return
	}

	first := true // the first round connects, so that the tools are known before the first question
	failures := 0 // rounds in a row that failed
	for {
		waiters, when := s.takeWaiters()
		err := s.refreshTools(when)
		for _, waiter := range waiters {
			waiter.done <- err // does not block, because the channel has space for one value
		}
		if first {
			s.client.markTried()
			first = false
		}
		pause := s.timeToRenewal()
		reconnectDelay, isDelayed := s.pool.ReconnectDelay()
		switch {
		case err != nil:
			failure, _ := errors.AsType[*transport.Failure](err)
			pause = max(transport.Backoff(failures), failure.RetryAfter()) // RetryAfter is 0 for a nil failure
			failures++
		case isDelayed:
			pause = reconnectDelay
		default:
			failures = 0
		}
		s.waitForWork(pause)
		if s.life.Err() != nil {
			return
		}
	}
}

// untilWoken is the pause of a supervisor that does nothing until it is woken, because its server is connected and the
// list of tools does not expire.
const untilWoken time.Duration = math.MaxInt64

// waitForWork returns after pause, when the supervisor is woken, or when the server's life ends.
func (s *server) waitForWork(pause time.Duration) {
	var timeout <-chan time.Time // nil blocks
	if pause != untilWoken {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-s.life.Done():
	case <-s.wake:
	case <-timeout:
	}
}

// refreshTools connects the server if needed, lists its tools, and sets its state. With ifNeeded it does nothing while
// the known list is up to date, and while the pool delays the next connection. The error is a *ServerError that wraps
// the *transport.Failure, or the cause of the end of the server's life. A panic becomes a *ServerError.
func (s *server) refreshTools(when refreshWhen) (err error) {
	defer transport.Recover(s.log, func(failure *transport.Failure) {
		s.recordFailedListing(failure)
		err = s.unusableError(failure)
	})
	isCurrent := !s.isRenewalDue() && s.isUpToDate() // true if the handshake of a listed session woke the supervisor
	_, isDelayed := s.pool.ReconnectDelay()          // true if the loss of a very young session woke the supervisor
	if when == ifNeeded && (isCurrent || isDelayed) {
		return nil
	}
	changes := s.announcedChanges()
	list, used, failure := s.listTools(s.pool)
	if s.life.Err() != nil {
		return context.Cause(s.life)
	}
	if failure != nil {
		s.recordFailedListing(failure)
		return s.unusableError(failure)
	}
	s.recordList(list, used, changes)
	return nil
}

// unusableError returns the error for callers that cannot use the server because of failure.
func (s *server) unusableError(failure *transport.Failure) *ServerError {
	return &ServerError{Server: s.cfg.Name, Reason: failure.Public, Err: failure}
}

// recordList puts list into the catalog, sets the state to Connected, and stores the names of the tools. used is the
// session that returned list. changes is what announcedChanges returned before list was requested.
func (s *server) recordList(list toolList, used *session.Session, changes int) {
	usable := s.client.catalog.SetTools(s.id, &s.cfg, list.tools)
	defer s.storeToolNames(list.tools) // runs after s.mu is unlocked, because it waits for the store
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != Connected {
		s.log.Info("MCP server connected", "protocol", used.Protocol(), "tools", usable)
		s.state = Connected
		s.reason = ""
		s.since = time.Now()
	}
	if s.userSessions == nil {
		s.instructions = used.Instructions()
		s.listedSession = used
	}
	s.omittedTools = list.omitted
	s.truncated = list.truncated
	s.resourcesCut = list.resourcesCut
	s.protocol = used.Protocol()
	s.unreachable = false
	s.listFailure = ""
	s.renewal.schedule(list.ttl, s.cfg.Pin, changes)
}

// recordFailedListing marks the server as failed because an attempt to connect and list the tools ended with failure.
// Unless the list was too large, isUnavailable then returns true. markFailed alone has no such effect, because after a
// lost session the next call opens a new one.
//
// If the list was too large, calls of the known tools still work, so the supervisor tries again only after
// tooLargeDelay. An earlier attempt would get the same list, and over stdio or WebSocket an oversized message costs the
// connection.
func (s *server) recordFailedListing(failure *transport.Failure) {
	s.markFailed(failure)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listFailure = failure.Kind
	if failure.Kind == TooLarge {
		s.renewal.dueAt = time.Now().Add(tooLargeDelay)
	}
}

// isUnavailable reports whether the server is enabled but cannot be used at present. With waited, a server that has
// never been connected counts as unavailable, unless it uses per-user tokens: its tools are listed with the first
// user's token.
func (s *server) isUnavailable(waited bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.state {
	case Disabled:
		return false
	case Connecting:
		return s.userSessions == nil && waited
	}
	listingFailed := s.listFailure != "" && s.listFailure != TooLarge
	return listingFailed || !s.isLive()
}

// isUpToDate reports whether the known tools are those of the current session. If the list was too large, it returns
// true, because to list the tools again would not help. It makes no such exception for a server with Pin: a pinned
// tool may be called only after the current session has listed it.
func (s *server) isUpToDate() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listFailure == TooLarge && !s.cfg.Pin {
		return true
	}
	return s.state == Connected && s.listedSession == s.pool.CurrentSession()
}

// markFailed sets the state to Degraded if the tools were ever listed, otherwise to Failed. It logs a change of the
// state or of the reason. The tools stay in the catalog, but isUpToDate returns false until they are listed again.
// markFailed returns true if the state changed, and false if at most the reason did.
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

// isUnreachable reports whether the latest failure was that the server could not be reached, and no list has succeeded
// since.
func (s *server) isUnreachable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unreachable
}

// wakeSupervisor makes superviseLoop start its next round now, or right after the current one. It does not block.
func (s *server) wakeSupervisor() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// takeWaiters removes and returns the waiters that the round which starts now will answer. when is always if at least
// one of them wants a new list. Waiters that arrive during the round are left for the next one, because they must not
// get a list that was requested before they asked.
func (s *server) takeWaiters() (waiters []refreshWaiter, when refreshWhen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiters, s.waiters = s.waiters, nil
	wantsList := slices.ContainsFunc(waiters, func(w refreshWaiter) bool { return w.when == always })
	return waiters, refreshWhen(wantsList)
}

// refreshNow lists the tools, even if the known list is up to date, and waits for the outcome until ctx ends. If the
// server uses per-user tokens, refreshNow lists them with user's token; otherwise the supervisor does it. The error is
// a *ServerError, or the cause of the end of ctx or of the server's life.
func (s *server) refreshNow(ctx context.Context, user auth.Identity) error {
	if !s.isLive() {
		return &ServerError{Server: s.cfg.Name, Reason: "it is " + string(s.currentStatus().State)}
	}
	if s.userSessions != nil {
		return s.userSessions.listTools(ctx, user, always)
	}
	return s.waitForRefresh(ctx, always)
}

// waitForRefresh starts the supervisor's next round, waits for its end and returns the error that refreshTools returned
// in it. when says whether the round lists the tools even if they are up to date. If ctx or the server's life ends
// first, the error is the cause of that end.
func (s *server) waitForRefresh(ctx context.Context, when refreshWhen) error {
	done := make(chan error, 1)
	s.mu.Lock()
	s.waiters = append(s.waiters, refreshWaiter{done: done, when: when})
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
	status := ServerStatus{
		Name: s.cfg.Name, Type: s.cfg.Type, State: s.state, Reason: s.reason,
		Since: s.since, Protocol: s.protocol, Tools: tools, DisabledTools: disabled, ConcurrencyLimit: s.callLimiter.Limit(),
		OmittedTools: s.omittedTools,
	}
	if s.state != Connected {
		return status
	}
	// An open breaker makes the server degraded. A half-open one does not if the tools were listed after the breaker
	// opened, since that shows that the server works again.
	openedAt, reason, halfOpen := s.breaker.currentState()
	worksAgain := halfOpen && s.renewal.listedAt.After(openedAt)
	isOpen := !openedAt.IsZero()
	if isOpen && !worksAgain {
		status.State = Degraded
		status.Since = openedAt
		status.Reason = reason
		return status
	}
	status.Reason = s.describeMissingLocked(len(disabled))
	if s.truncated != "" {
		status.OmittedTools = max(s.omittedTools, 1)
	}
	return status
}

// describeMissingLocked says how many tools of a connected server cannot be called, and why, and whether resources may
// be missing. It returns "" if nothing is missing. disabled is the number of tools that a pin disables. s.mu must be
// held.
func (s *server) describeMissingLocked(disabled int) string {
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

// closeServer waits for the supervisor, ends the sessions and closes the connections. The server must be live, and its
// life must have ended.
func (s *server) closeServer() {
	<-s.supervisorDone
	if s.userSessions != nil {
		s.userSessions.closeAll()
	}
	s.closePool(s.pool)
	s.dialer.close()
}

// closePool ends the session of pool, if one is open. It only logs an error or a panic, because other goroutines wait
// for the steps after it.
func (s *server) closePool(pool *session.Pool) {
	defer transport.Recover(s.log, func(*transport.Failure) {})
	if err := pool.Close(); err != nil {
		s.log.Debug("end MCP session", "error", err)
	}
}

// errListOutdated is the failure of an attempt that was not sent, because the tools are pinned and the current session
// has not listed them yet. It is Lost and NotRun, so that callWithRetry makes another attempt.
var errListOutdated = &transport.Failure{Kind: Unavailable, Public: "its tools are being listed again", NotRun: true, Lost: true}

// waitForPinnedTools waits until the current session has listed the tools, if the server has Pin. A restarted server
// may have changed its tools, so the accepted definitions must be compared with the new list before a call. It waits
// until deadline or the end of ctx. It returns nil if the tools are listed or the server has no Pin.
func (s *server) waitForPinnedTools(ctx context.Context, deadline time.Time) *transport.Failure {
	if !s.cfg.Pin || s.isUpToDate() {
		return nil
	}
	ctx, stop := context.WithDeadlineCause(ctx, deadline, transport.ErrTimeout)
	defer stop()
	err := s.waitForRefresh(ctx, ifNeeded)
	serverErr, isServerError := errors.AsType[*ServerError](err)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return contextFailure(ctx)
	case isServerError:
		return &transport.Failure{Kind: Unavailable, Public: serverErr.Reason, NotRun: true, Err: err}
	}
	return shutdownFailure(err) // the server's life has ended
}

// isListedFrom reports whether the known tools were listed in the session used.
func (s *server) isListedFrom(used *session.Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listedSession == used
}
