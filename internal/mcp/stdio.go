package mcp

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

// stdio is a server that is a child process, one at a time: a new one is started for
// each session, when the one before is gone with all of its group.
type stdio struct {
	cfg    config.Server
	log    *slog.Logger
	starts starts

	mu  sync.Mutex // protects cur
	cur *child
}

// dialStdio is a child process that speaks MCP on its standard input and output.
func dialStdio(cfg config.Server, o Options) (dialer, error) {
	s := &stdio{cfg: cfg, log: o.Logger.With("mcp_server", cfg.Name)}
	d := &linkDialer{client: sdkClient(cfg, o), open: s.open, log: s.log, negotiator: versionNegotiator{pinned: cfg.ProtocolVersion}}
	if len(cfg.Query) > 0 {
		d.once.Do(func() { s.log.Warn("a process has no URL: its query parameters are not sent") }) // S0.1
	}
	return dialer{connect: d.connect, close: s.close, time: startTime}, nil
}

// open starts the process. It waits for the one before, which may hold files and ports
// that the new one needs.
func (s *stdio) open(ctx context.Context) (frames, error) {
	s.mu.Lock()
	last := s.cur
	s.mu.Unlock()
	if last != nil {
		_ = last.close()
		select {
		case <-last.gone:
		case <-ctx.Done():
			return nil, &transport.Failure{Kind: Unavailable, Public: "its last process has not ended yet", NotRun: true, Err: context.Cause(ctx)}
		}
	}
	if !s.starts.take(time.Now()) {
		return nil, &transport.Failure{Kind: Unavailable, Public: "its process ended too often, and is started again later", NotRun: true}
	}
	c, err := startChild(&s.cfg, s.log)
	if err != nil {
		return nil, &transport.Failure{Kind: Unavailable, Public: startReason(err), NotRun: true, Err: err}
	}
	s.mu.Lock()
	s.cur = c
	s.mu.Unlock()
	return c, nil
}

// close ends the process and returns when it and its group are gone, at most some 5 s
// later. No open may be under way.
func (s *stdio) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur != nil {
		_ = s.cur.close()
		<-s.cur.gone
	}
}

// startReason says why a process could not be started, in words fit for the caller:
// what the system says names paths.
func startReason(err error) string {
	switch {
	case errors.Is(err, errWorkDir):
		return "its working directory cannot be used"
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "its command is not found"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EISDIR):
		return "its command may not be run"
	}
	return "its process cannot be started"
}

const (
	maxStarts = 5 // of a process, within startSpan
	startSpan = time.Minute
)

// starts bounds how often a process is started: one that comes up and dies at once
// would otherwise be started as fast as it can die, since each handshake that worked
// ends the supervisor's backoff.
type starts struct {
	mu sync.Mutex // protects at
	at []time.Time
}

// take reports whether the process may be started now, and counts it if so.
func (s *starts) take(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = slices.DeleteFunc(s.at, func(t time.Time) bool { return now.Sub(t) >= startSpan })
	if len(s.at) >= maxStarts {
		return false
	}
	s.at = append(s.at, now)
	return true
}
