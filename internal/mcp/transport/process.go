package transport

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"answerd/internal/help"
)

const (
	// exitTimeout is how long a process has to exit after its standard input is closed, and again
	// after SIGTERM (MCP basic/lifecycle, shutdown). So its process group is gone at most some 4 s
	// after the end of its session.
	exitTimeout = 2 * time.Second
	// exitReportTimeout is how long callers wait to learn how a process ended.
	exitReportTimeout = time.Second
)

var errWorkDir = errors.New("the working directory cannot be used")

// process is a child process and the MessageConn over its pipes, one message per line (MCP
// basic/transports, stdio).
//
// Four goroutines live as long as it: startAndWait, whose thread the process depends on; cleanUp,
// which ends it; and one reader for each of its outputs. gone is closed when all of them have
// ended, the process is reaped and every file is closed.
type process struct {
	cmd    *exec.Cmd
	log    *slog.Logger
	stdin  *os.File // our ends of its pipes
	stdout *os.File
	stderr *os.File
	tail   *stderrTail

	once    sync.Once
	stop    chan struct{} // closed when the process is to end
	stopped bool          // that came before the process had exited; only cleanUp touches it
	exited  chan struct{} // closed when the process has exited, but is not reaped yet
	reap    chan struct{} // closed when it may be reaped
	reaped  chan struct{} // closed when it is; then cmd.ProcessState is set
	lines   chan []byte   // messages, from readStdout to Read
	// readLimit is how many bytes a message may have.
	readLimit atomic.Int64
	outDone   chan struct{} // closed when there will not be more of them
	outErr    error         // why; set before
	errDone   chan struct{} // closed at the end of stderr
	readers   sync.WaitGroup
	gone      chan struct{}
}

// startProcess starts the process of cfg.
func startProcess(cfg *StdioConfig) (*process, error) {
	path, err := commandPath(cfg)
	if err != nil {
		return nil, err
	}
	proc := &process{
		log: cfg.Logger, tail: newStderrTail(cfg.Logger),
		stop: make(chan struct{}), exited: make(chan struct{}), reap: make(chan struct{}), reaped: make(chan struct{}),
		lines: make(chan []byte), outDone: make(chan struct{}), errDone: make(chan struct{}), gone: make(chan struct{}),
	}
	proc.readLimit.Store(MaxMessage)
	proc.cmd = &exec.Cmd{Path: path, Args: append([]string{cfg.Command}, cfg.Args...), Dir: cfg.Dir, SysProcAttr: ownGroup()}
	proc.cmd.Env = append([]string{}, cfg.Env...) // not nil, which would be our own environment
	childEnds, err := proc.makePipes()
	if err == nil {
		started := make(chan error)
		go proc.startAndWait(started)
		err = <-started
	}
	for _, f := range childEnds {
		_ = f.Close() // it has them now
	}
	if err != nil {
		proc.closeFiles()
		return nil, fmt.Errorf("start %.80q: %w", cfg.Command, err)
	}
	proc.readers.Go(proc.readStdout)
	proc.readers.Go(proc.readStderr)
	go proc.cleanUp()
	return proc, nil
}

// commandPath finds the command with the child's PATH, as the official SDKs do, and otherwise with
// our own; the child may not have one. Like a shell's, a relative path starts in the working
// directory.
func commandPath(cfg *StdioConfig) (string, error) {
	if cfg.Dir != "" {
		if fi, err := os.Stat(cfg.Dir); err != nil || !fi.IsDir() {
			return "", fmt.Errorf("%w: %.200q", errWorkDir, cfg.Dir)
		}
	}
	name := cfg.Command
	if strings.ContainsRune(filepath.ToSlash(name), '/') && !filepath.IsAbs(name) {
		name = filepath.Join(cfg.Dir, name)
	}
	if path := lookPathOf(cfg.Env, name); path != "" {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil && !errors.Is(err, exec.ErrDot) { // a relative path was asked for
		return "", fmt.Errorf("find the command: %w", err)
	}
	return filepath.Abs(path)
}

// lookPathOf finds name with the PATH of an environment; "" if that has none, or it is not there.
// Relative directories of it are passed over.
func lookPathOf(env []string, name string) string {
	if strings.ContainsRune(filepath.ToSlash(name), '/') {
		return ""
	}
	for _, variable := range slices.Backward(env) {
		list, ok := strings.CutPrefix(variable, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(list) {
			if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil && filepath.IsAbs(dir) {
				return path
			}
		}
		break
	}
	return ""
}

// makePipes makes the three pipes and returns the child's ends. They are our own files,
// not the ones that os/exec copies from: nothing then waits for a grandchild that
// keeps one open.
func (p *process) makePipes() (childEnds []*os.File, err error) {
	add := func(in bool) *os.File {
		if err != nil {
			return nil
		}
		var r, w *os.File
		if r, w, err = os.Pipe(); err != nil {
			return nil
		}
		if in {
			childEnds, p.stdin = append(childEnds, r), w
			return r
		}
		childEnds = append(childEnds, w)
		if p.stdout == nil {
			p.stdout = r
		} else {
			p.stderr = r
		}
		return w
	}
	in, out, errs := add(true), add(false), add(false)
	if err == nil { // a nil *os.File would not be a nil interface in these
		p.cmd.Stdin = in
		p.cmd.Stdout = out
		p.cmd.Stderr = errs
	}
	return childEnds, err
}

// startAndWait starts the process and waits for it on one thread: on Linux the process is killed
// when the thread that started it ends, which is what Pdeathsig means by parent (prctl(2),
// PR_SET_PDEATHSIG), and Go ends threads at any time.
func (p *process) startAndWait(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.start()
	started <- err
	if err != nil {
		return
	}
	withoutPanic(p.log, func() { awaitExit(p.cmd) })
	close(p.exited)
	<-p.reap
	withoutPanic(p.log, func() { _ = p.cmd.Wait() }) // how it ended is in ProcessState
	close(p.reaped)
}

// start starts the process. A panic becomes an error, because startProcess waits for one.
func (p *process) start() (err error) {
	defer Recover(p.log, func(f *Failure) { err = f })
	return p.cmd.Start()
}

// cleanUp waits for the end of the process and leaves nothing of it: neither its process group, nor
// a zombie, nor a goroutine or file of our process.
func (p *process) cleanUp() {
	defer close(p.gone)
	withoutPanic(p.log, p.awaitEnd)
	withoutPanic(p.log, func() { signalGroup(p.cmd.Process, killSignal) })
	close(p.reap)
	<-p.reaped
	withoutPanic(p.log, p.closePipes)
	withoutPanic(p.log, p.logExit)
}

// awaitEnd waits until the process has exited, or terminates it when p.stop is closed.
func (p *process) awaitEnd() {
	select {
	case <-p.exited:
	case <-p.stop:
		p.terminate()
	}
	p.stopped = isClosed(p.stop)
	// As long as it is not reaped its process id is not reused, so these signals reach its group
	// and nothing else.
	p.waitForGroup()
}

// closePipes closes all files of the process and waits for their readers.
func (p *process) closePipes() {
	_ = p.stdout.Close() // a process that left the group may still have it open
	_ = p.stderr.Close()
	p.readers.Wait()
	p.closeFiles()
}

// logExit logs how the process ended.
func (p *process) logExit() {
	if p.stopped {
		p.log.Debug("MCP server process ended", "pid", p.cmd.Process.Pid, "state", p.cmd.ProcessState.String())
		return
	}
	p.log.Warn("MCP server process ended", "reason", p.cmd.ProcessState.String(), "stderr", p.tail.lastLines(), help.ChildProcesses.Attr())
}

// terminate ends the process: its stdin is closed already; then it is signalled.
func (p *process) terminate() {
	if closedWithin(exitTimeout, p.exited) {
		return
	}
	signalGroup(p.cmd.Process, terminateSignal)
	if closedWithin(exitTimeout, p.exited) {
		return
	}
	signalGroup(p.cmd.Process, killSignal)
	<-p.exited
}

// waitForGroup gives the rest of the process group, such as the server behind a wrapper, time to end
// by itself. Its pipes are closed when it has.
func (p *process) waitForGroup() {
	signalGroup(p.cmd.Process, terminateSignal)
	closedWithin(exitTimeout, p.outDone, p.errDone)
}

// closedWithin reports whether all channels are closed within d.
func closedWithin(d time.Duration, all ...<-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for _, c := range all {
		select {
		case <-c:
		case <-t.C:
			return false
		}
	}
	return true
}

// closeFiles closes our ends of the pipes.
func (p *process) closeFiles() {
	for _, f := range []*os.File{p.stdin, p.stdout, p.stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// Close implements MessageConn. The process begins to end; cleanUp does the rest.
func (p *process) Close() error {
	p.once.Do(func() {
		close(p.stop)
		_ = p.stdin.Close() // also ends a write that waits for the child
	})
	return nil
}

// Write implements MessageConn. It waits for as long as the child does not read: callers have
// timeouts of their own, and a child may be busy.
func (p *process) Write(data []byte) error {
	n, err := p.stdin.Write(append(data, '\n'))
	if err == nil {
		return nil
	}
	f := p.exitError()
	return &Failure{Kind: Unavailable, Public: f.Public, NotRun: n == 0, Err: errors.Join(err, f.Err)}
}

// SetReadLimit implements MessageConn.
func (p *process) SetReadLimit(bytes int) { p.readLimit.Store(int64(bytes)) }

// Read implements MessageConn.
func (p *process) Read() ([]byte, error) {
	select {
	case line := <-p.lines:
		return line, nil
	case <-p.stop:
		return nil, io.EOF
	case <-p.outDone:
	}
	if f, ok := errors.AsType[*Failure](p.outErr); ok {
		return nil, f
	}
	return nil, p.exitError()
}

// exitError returns how the process ended, which is known a moment after its pipes are closed.
func (p *process) exitError() *Failure {
	failure := &Failure{Kind: Unavailable, Public: "its process closed its output"}
	t := time.NewTimer(exitReportTimeout)
	defer t.Stop()
	select {
	case <-p.reaped:
		failure.Public = "its process ended (" + p.cmd.ProcessState.String() + ")"
	case <-p.stop:
	case <-t.C:
	}
	return failure
}

// isClosed reports whether a channel that carries no values is closed.
func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
