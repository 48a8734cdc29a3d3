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

// StdioConfig configures a server that runs as a child process.
type StdioConfig struct {
	// Command is looked up in the PATH of Env, then in answerd's. A relative path is relative to Dir.
	Command string
	Args    []string
	// Dir is the working directory; "" means answerd's.
	Dir string
	// Env is the complete environment, as NAME=value. The process does not inherit answerd's.
	Env []string
	// Query says that query parameters are configured. NewStdio then logs that they are not sent to a process.
	Query  bool
	Logger *slog.Logger
}

// stdioServer is a server that runs as a child process. Each session starts a new process, after the previous
// session's process and its process group have ended.
type stdioServer struct {
	cfg StdioConfig

	mu      sync.Mutex // protects the fields below
	starts  startLimit
	current *process // the latest session's process; nil before the first
}

// NewStdio returns the endpoint of a child process that speaks MCP on its standard input and output. It starts no
// process. Endpoint.Close ends the process, and returns when its process group has ended, after some 5 s at most.
func NewStdio(cfg StdioConfig) Endpoint {
	s := &stdioServer{cfg: cfg}
	e := &streamEndpoint{open: s.replaceProcess, close: s.endProcess, log: cfg.Logger}
	if cfg.Query { // this also suppresses the connection's own warning about query parameters
		e.warnQuery.Do(func() { cfg.Logger.Warn("a process does not have a URL: its query parameters are not sent") })
	}
	return e
}

// replaceProcess starts the process of a new session. Before that, it closes the previous process and waits until it
// has ended or ctx ends, since it may have files and ports open that the new one needs. The error is a *Failure.
func (s *stdioServer) replaceProcess(ctx context.Context) (MessageConn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		_ = s.current.Close()
		select {
		case <-s.current.gone:
		case <-ctx.Done():
			return nil, unavailable("its last process has not ended yet", context.Cause(ctx))
		}
	}
	if s.starts.forbidsStart(time.Now()) {
		return nil, unavailable("its process ended too often, and is started again later", nil)
	}
	started, err := startProcess(&s.cfg)
	if err != nil {
		return nil, unavailable(startReason(err), err)
	}
	s.starts.addStart(time.Now())
	s.current = started
	return started, nil
}

// endProcess closes the current process, if any, and waits until it and its group have ended.
func (s *stdioServer) endProcess() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		_ = s.current.Close()
		<-s.current.gone
	}
}

// startReason returns the reason for err, with which a process could not be started, as a text for users. The text of
// err itself must not be shown, because it contains paths.
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

// A process is started at most maxStarts times within startSpan.
const (
	maxStarts = 5
	startSpan = time.Minute
)

// startLimit limits how often a process is started. The supervisor's backoff is not enough for a process that exits
// soon after its handshake, because each successful handshake resets the backoff.
type startLimit struct {
	starts []time.Time // within the last startSpan
}

// forbidsStart reports whether the process must not be started at the time now.
func (l *startLimit) forbidsStart(now time.Time) bool {
	l.starts = slices.DeleteFunc(l.starts, func(t time.Time) bool { return now.Sub(t) >= startSpan })
	return len(l.starts) >= maxStarts
}

// addStart records a start at the time now. Do not call it for a start that failed, because no process ended.
func (l *startLimit) addStart(now time.Time) {
	l.starts = append(l.starts, now)
}
