package mcp

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

const (
	// endTime is how long a process has to exit when its standard input is closed, and
	// again when it is asked to by signal (MCP basic/lifecycle, shutdown). So its group
	// is gone at most some 4 s after the end of its session (F23 allows 7 s).
	endTime = 2 * time.Second
	// obituaryTime is how long callers wait to be told how a process ended.
	obituaryTime = time.Second
)

// errWorkDir is a working directory that isn't one.
var errWorkDir = errors.New("no working directory")

// child is a process and the frames over its pipes, one message a line (MCP
// basic/transports, stdio).
//
// Four goroutines live as long as it: launch, whose thread the process hangs on; run,
// which ends it; and one reader for each of its outputs. gone is closed when all of
// them have ended, the process is reaped and every file is closed.
type child struct {
	cmd    *exec.Cmd
	log    *slog.Logger
	stdin  *os.File // our ends of its pipes
	stdout *os.File
	stderr *os.File
	tail   *tail

	once    sync.Once
	stop    chan struct{} // closed when it is to end
	own     bool          // that came before it had exited; run's own
	exited  chan struct{} // closed when it has, but is not reaped yet
	reap    chan struct{} // closed when it may be reaped
	reaped  chan struct{} // closed when it is; cmd.ProcessState is set
	lines   chan []byte   // messages, from listen to read
	outDone chan struct{} // closed when there will be no more of them
	outErr  error         // why; set before
	errDone chan struct{} // closed at the end of stderr
	readers sync.WaitGroup
	gone    chan struct{}
}

// startChild starts the process of cfg, with exactly the environment of cfg: what ours
// holds is none of its business (S4.6).
func startChild(cfg *config.Server, log *slog.Logger) (*child, error) {
	path, err := commandPath(cfg)
	if err != nil {
		return nil, err
	}
	c := &child{
		log: log, tail: newTail(log),
		stop: make(chan struct{}), exited: make(chan struct{}), reap: make(chan struct{}), reaped: make(chan struct{}),
		lines: make(chan []byte), outDone: make(chan struct{}), errDone: make(chan struct{}), gone: make(chan struct{}),
	}
	c.cmd = &exec.Cmd{Path: path, Args: append([]string{cfg.Command}, cfg.Args...), Dir: cfg.WorkDir, Env: []string{}, SysProcAttr: ownGroup()}
	for _, name := range slices.Sorted(maps.Keys(cfg.Env)) {
		c.cmd.Env = append(c.cmd.Env, name+"="+cfg.Env[name].Reveal())
	}
	theirs, err := c.pipes()
	if err == nil {
		started := make(chan error)
		go c.launch(started)
		err = <-started
	}
	for _, f := range theirs {
		_ = f.Close() // it has them now
	}
	if err != nil {
		c.closeFiles()
		return nil, fmt.Errorf("start %.80q: %w", cfg.Command, err)
	}
	c.readers.Go(c.listen)
	c.readers.Go(c.overhear)
	go c.run()
	return c, nil
}

// commandPath finds the command with our own PATH; the child may have none. Like a
// shell's, a relative path starts in the working directory.
func commandPath(cfg *config.Server) (string, error) {
	if cfg.WorkDir != "" {
		if fi, err := os.Stat(cfg.WorkDir); err != nil || !fi.IsDir() {
			return "", fmt.Errorf("%w: %.200q", errWorkDir, cfg.WorkDir)
		}
	}
	name := cfg.Command
	if strings.ContainsRune(filepath.ToSlash(name), '/') && !filepath.IsAbs(name) {
		name = filepath.Join(cfg.WorkDir, name)
	}
	path, err := exec.LookPath(name)
	if err != nil && !errors.Is(err, exec.ErrDot) { // a relative path was asked for
		return "", fmt.Errorf("find the command: %w", err)
	}
	return filepath.Abs(path)
}

// pipes makes the three pipes, and returns the child's ends. They are files of ours,
// not the ones that os/exec copies from: nothing then waits for a grandchild that
// keeps one open.
func (c *child) pipes() (theirs []*os.File, err error) {
	add := func(in bool) *os.File {
		if err != nil {
			return nil
		}
		var r, w *os.File
		if r, w, err = os.Pipe(); err != nil {
			return nil
		}
		if in {
			theirs, c.stdin = append(theirs, r), w
			return r
		}
		theirs = append(theirs, w)
		if c.stdout == nil {
			c.stdout = r
		} else {
			c.stderr = r
		}
		return w
	}
	in, out, errs := add(true), add(false), add(false)
	if err == nil { // a nil *os.File would be no nil in these
		c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = in, out, errs
	}
	return theirs, err
}

// launch starts the process and waits for it, all on one thread: on Linux the process
// is killed when the thread that started it ends, which is what Pdeathsig means by
// parent (prctl(2), PR_SET_PDEATHSIG), and Go ends threads at will.
func (c *child) launch(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := c.begin()
	started <- err
	if err != nil {
		return
	}
	survived(c.log, func() { awaitExit(c.cmd) })
	close(c.exited)
	<-c.reap
	survived(c.log, func() { _ = c.cmd.Wait() }) // how it ended is in ProcessState
	close(c.reaped)
}

// begin starts the process. A panic is an error: whoever waits for the start must be told.
func (c *child) begin() (err error) {
	defer transport.Recover(c.log, func(f *transport.Failure) { err = f })
	return c.cmd.Start()
}

// run waits for the end and sees to it that nothing is left: neither the group, nor a
// zombie, nor a goroutine or file of ours.
func (c *child) run() {
	defer close(c.gone)
	survived(c.log, c.end)
	survived(c.log, func() { signalGroup(c.cmd.Process, kill) })
	close(c.reap)
	<-c.reaped
	survived(c.log, c.tidy)
	survived(c.log, c.report)
}

// end returns when the process has exited, or as good as.
func (c *child) end() {
	select {
	case <-c.exited:
	case <-c.stop:
		c.dismiss()
	}
	c.own = isClosed(c.stop)
	// As long as it is not reaped its number is taken, so these signals reach its group
	// and no stranger.
	c.settle()
}

// tidy leaves no file of the process open, and no goroutine but run.
func (c *child) tidy() {
	_ = c.stdout.Close() // who escaped from the group may have it open still
	_ = c.stderr.Close()
	c.readers.Wait()
	c.closeFiles()
}

// report logs how it ended.
func (c *child) report() {
	if c.own {
		c.log.Debug("MCP server process ended", "pid", c.cmd.Process.Pid, "state", c.cmd.ProcessState.String())
		return
	}
	c.log.Warn("MCP server process ended", "reason", c.cmd.ProcessState.String(), "stderr", c.tail.last())
}

// dismiss ends the process: stdin is closed already; then by signal.
func (c *child) dismiss() {
	if within(endTime, c.exited) {
		return
	}
	signalGroup(c.cmd.Process, terminate)
	if within(endTime, c.exited) {
		return
	}
	signalGroup(c.cmd.Process, kill)
	<-c.exited
}

// settle gives what is left of the group, such as the server behind a wrapper, time to
// end by itself. Its pipes say when it has.
func (c *child) settle() {
	signalGroup(c.cmd.Process, terminate)
	within(endTime, c.outDone, c.errDone)
}

// within reports whether all of them are closed within d.
func within(d time.Duration, all ...<-chan struct{}) bool {
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

func (c *child) closeFiles() {
	for _, f := range []*os.File{c.stdin, c.stdout, c.stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// close implements frames: the end begins, and run sees to the rest.
func (c *child) close() error {
	c.once.Do(func() {
		close(c.stop)
		_ = c.stdin.Close() // also ends a write that waits for the child
	})
	return nil
}

// write implements frames. It waits for as long as the child doesn't read: callers have
// time-outs of their own, and a child may be busy.
func (c *child) write(data []byte) error {
	n, err := c.stdin.Write(append(data, '\n'))
	if err == nil {
		return nil
	}
	f := c.obituary()
	return &transport.Failure{Kind: Unavailable, Public: f.Public, NotRun: n == 0, Err: errors.Join(err, f.Err)}
}

// read implements frames.
func (c *child) read() ([]byte, error) {
	select {
	case line := <-c.lines:
		return line, nil
	case <-c.stop:
		return nil, io.EOF
	case <-c.outDone:
	}
	if f, ok := errors.AsType[*transport.Failure](c.outErr); ok {
		return nil, f
	}
	return nil, c.obituary()
}

// obituary says how the process ended, which is known a moment after its pipes are
// closed.
func (c *child) obituary() *transport.Failure {
	f := &transport.Failure{Kind: Unavailable, Public: "its process closed its output"}
	t := time.NewTimer(obituaryTime)
	defer t.Stop()
	select {
	case <-c.reaped:
		f.Public = "its process ended (" + c.cmd.ProcessState.String() + ")"
	case <-c.stop:
	case <-t.C:
	}
	return f
}
