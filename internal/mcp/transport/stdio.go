package transport

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
)

// StdioConfig configures a server that is a child process.
type StdioConfig struct {
	// Command is found with the PATH in Env, otherwise with our own. A relative path starts in Dir.
	Command string
	Args    []string
	// Dir is the working directory; "" for ours.
	Dir string
	// Env is the whole environment, as NAME=value: the process inherits nothing from ours.
	Env []string
	// Query says that query parameters are configured, which a process cannot be sent: that is
	// logged.
	Query  bool
	Logger *slog.Logger
}

// stdioServer is a server that is a child process, one at a time: a new one is started for each
// session, when the one before is gone with its whole process group.
type stdioServer struct {
	cfg    StdioConfig
	starts startLimit

	mu  sync.Mutex // protects cur
	cur *process
}

// NewStdio returns the endpoint of a child process that speaks MCP on its standard input and
// output. It starts nothing. Close ends the process and returns when it and its group are gone, at
// most some 5 s later.
func NewStdio(cfg StdioConfig) Endpoint {
	s := &stdioServer{cfg: cfg}
	e := newStreamEndpoint(s.startProcess, s.endProcess, cfg.Logger)
	if cfg.Query {
		e.warnQuery.Do(func() { cfg.Logger.Warn("a process does not have a URL: its query parameters are not sent") })
	}
	return e
}

// startProcess starts the process. It waits for the one before, which may have files and ports
// open that the new one needs.
func (s *stdioServer) startProcess(ctx context.Context) (MessageConn, error) {
	s.mu.Lock()
	last := s.cur
	s.mu.Unlock()
	if last != nil {
		_ = last.Close()
		select {
		case <-last.gone:
		case <-ctx.Done():
			return nil, &Failure{Kind: Unavailable, Public: "its last process has not ended yet", NotRun: true, Err: context.Cause(ctx)}
		}
	}
	if !s.starts.allow(time.Now()) {
		return nil, &Failure{Kind: Unavailable, Public: "its process ended too often, and is started again later", NotRun: true}
	}
	c, err := startProcess(&s.cfg)
	if err != nil {
		return nil, &Failure{Kind: Unavailable, Public: startReason(err), NotRun: true, Err: err}
	}
	s.mu.Lock()
	s.cur = c
	s.mu.Unlock()
	return c, nil
}

// endProcess ends the process and waits until it and its group are gone. startProcess must not be
// running.
func (s *stdioServer) endProcess() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur != nil {
		_ = s.cur.Close()
		<-s.cur.gone
	}
}

// startReason says why a process could not be started, in words fit for the caller: the texts of
// the system name paths.
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

// startLimit bounds how often a process is started. One that starts and exits at once would
// otherwise be started as fast as it can exit, since each handshake that worked ends the
// supervisor's backoff.
type startLimit struct {
	mu     sync.Mutex // protects starts
	starts []time.Time
}

// allow reports whether the process may be started now, and counts the start if so.
func (l *startLimit) allow(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starts = slices.DeleteFunc(l.starts, func(t time.Time) bool { return now.Sub(t) >= startSpan })
	if len(l.starts) >= maxStarts {
		return false
	}
	l.starts = append(l.starts, now)
	return true
}
