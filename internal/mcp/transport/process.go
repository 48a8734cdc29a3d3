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
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"answerd/internal/help"
)

const (
	// exitTimeout is how long a process has to exit after its standard input is closed, and again after SIGTERM (MCP
	// basic/lifecycle, shutdown). A process group therefore ends at most some 4 s after its session.
	exitTimeout = 2 * time.Second
	// exitReportTimeout is how long exitFailure waits for a process's exit status.
	exitReportTimeout = time.Second
)

var errWorkDir = errors.New("the working directory cannot be used")

// process is a child process, and the MessageConn over its pipes, with one message per line (MCP basic/transports).
//
// It has four goroutines: startAndWait, on whose thread the process depends; cleanUp, which ends the process;
// readStdout; and readStderr. When gone is closed, they have ended, the process is reaped and its files are closed.
type process struct {
	cmd    *exec.Cmd
	log    *slog.Logger
	stdin  *os.File // the parent's ends of the pipes
	stdout *os.File
	stderr *os.File
	tail   *stderrTail // the end of stderr

	closeOnce     sync.Once
	stop          chan struct{} // closed by Close: the process must end
	stoppedByUs   bool          // stop was closed by the time the process had exited; used by cleanUp only
	exited        chan struct{} // closed when the process has exited; on Linux it is not reaped yet
	reapPermitted chan struct{} // closed by cleanUp when the process may be reaped
	reaped        chan struct{} // closed when the process is reaped; cmd.ProcessState is set then
	gone          chan struct{} // closed when cleanUp is complete

	lines     chan []byte    // passes messages from readStdout to Read
	readLimit atomic.Int64   // maximum size of a message, in bytes
	readers   sync.WaitGroup // counts readStdout and readStderr
	outDone   chan struct{}  // closed when readStdout sends no more lines
	outErr    error          // why there are no more lines; set before outDone is closed
	errDone   chan struct{}  // closed when stderr has ended
}

// startProcess starts a process as cfg says, and its goroutines. The caller must call Close on the result.
func startProcess(cfg *StdioConfig) (*process, error) {
	path, err := commandPath(cfg)
	if err != nil {
		return nil, err
	}
	proc := &process{
		cmd: &exec.Cmd{
			Path:        path,
			Args:        append([]string{cfg.Command}, cfg.Args...),
			Dir:         cfg.Dir,
			Env:         append([]string{}, cfg.Env...), // never nil: exec.Cmd would then use answerd's environment
			SysProcAttr: ownGroup(),
		},
		log: cfg.Logger, tail: newStderrTail(cfg.Logger), lines: make(chan []byte),
		stop: make(chan struct{}), exited: make(chan struct{}), reapPermitted: make(chan struct{}),
		reaped: make(chan struct{}), outDone: make(chan struct{}), errDone: make(chan struct{}), gone: make(chan struct{}),
	}
	proc.readLimit.Store(MaxMessage)
	childEnds, err := proc.makePipes()
	if err == nil {
		started := make(chan error)
		go proc.startAndWait(started)
		err = <-started
	}
	for _, f := range childEnds {
		_ = f.Close() // the child has duplicates; Close accepts nil
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

// commandPath returns the path of cfg.Command. It searches the PATH of the child's environment, as the official SDKs
// do, then answerd's PATH, because the child may have none. A command with a slash is relative to cfg.Dir, as in a
// shell. The error wraps errWorkDir if cfg.Dir is not a directory.
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
	if err != nil && !errors.Is(err, exec.ErrDot) { // ErrDot only says that path is relative
		return "", fmt.Errorf("find the command: %w", err)
	}
	return filepath.Abs(path)
}

// lookPathOf searches the absolute directories in the PATH of env for the command name. It returns "" if it does not
// find the command, or if name has a slash, because PATH does not apply then.
func lookPathOf(env []string, name string) string {
	if strings.ContainsRune(filepath.ToSlash(name), '/') {
		return ""
	}
	directories := ""
	for _, variable := range env { // the last of several PATH variables counts
		if list, ok := strings.CutPrefix(variable, "PATH="); ok {
			directories = list
		}
	}
	for _, dir := range filepath.SplitList(directories) {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil && filepath.IsAbs(dir) {
			return path
		}
	}
	return ""
}

// makePipes creates the pipes for stdin, stdout and stderr. It sets the parent's ends in p and the child's ends in
// p.cmd, and returns the child's ends. All ends must be closed later. After an error, some of them are nil. The pipes
// of os/exec are not used, because Cmd.Wait would then wait for a grandchild that keeps a pipe open.
func (p *process) makePipes() (childEnds []*os.File, err error) {
	var stdin, stdout, stderr *os.File // the child's ends
	stdin, p.stdin, err = os.Pipe()
	if err == nil {
		p.stdout, stdout, err = os.Pipe()
	}
	if err == nil {
		p.stderr, stderr, err = os.Pipe()
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = stdin, stdout, stderr
	return []*os.File{stdin, stdout, stderr}, err
}

// startAndWait starts the process, sends the error or nil to started, and waits until the process is reaped. On Linux,
// Pdeathsig kills the process when the thread that started it ends (prctl(2), PR_SET_PDEATHSIG). So startAndWait locks
// its thread, which the Go runtime could otherwise end.
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
	<-p.reapPermitted
	withoutPanic(p.log, func() { _ = p.cmd.Wait() }) // the exit status is in cmd.ProcessState
	close(p.reaped)
}

// start starts the process. A panic becomes an error, because startProcess waits for the result.
func (p *process) start() (err error) {
	defer Recover(p.log, func(f *Failure) { err = f })
	return p.cmd.Start()
}

// cleanUp waits until the process has exited or p.stop is closed. Then it ends the process group, lets startAndWait
// reap the process, closes all files, and closes p.gone. A panic in one step does not prevent the next steps.
func (p *process) cleanUp() {
	defer close(p.gone)
	withoutPanic(p.log, p.awaitEnd)
	withoutPanic(p.log, func() { signalGroup(p.cmd.Process, syscall.SIGKILL) })
	close(p.reapPermitted)
	<-p.reaped
	withoutPanic(p.log, p.closePipes)
	withoutPanic(p.log, p.logExit)
}

// awaitEnd waits until the process has exited, or terminates it when p.stop is closed. It sets p.stoppedByUs. Then it
// sends SIGTERM to the rest of the process group, such as the server behind a wrapper script, and gives it exitTimeout
// to end. It takes the group as ended when both outputs are closed.
func (p *process) awaitEnd() {
	select {
	case <-p.exited:
	case <-p.stop:
		p.terminate()
	}
	p.stoppedByUs = IsClosed(p.stop)
	// On Linux the process is not reaped yet, so its id cannot be reused, and signals reach only its group.
	signalGroup(p.cmd.Process, syscall.SIGTERM)
	closedWithin(exitTimeout, p.outDone, p.errDone)
}

// closePipes closes the parent's ends of the pipes and waits for the goroutines that read them. These end even if a
// process that has left the group keeps the other ends open.
func (p *process) closePipes() {
	_ = p.stdout.Close()
	_ = p.stderr.Close()
	p.readers.Wait()
	p.closeFiles()
}

// logExit logs how the process ended. Unless answerd ended it, that is a warning with the last lines of stderr.
func (p *process) logExit() {
	if p.stoppedByUs {
		p.log.Debug("MCP server process ended", "pid", p.cmd.Process.Pid, "state", p.cmd.ProcessState.String())
		return
	}
	p.log.Warn("MCP server process ended", "reason", p.cmd.ProcessState.String(), "stderr", p.tail.lastLines(), help.ChildProcesses.Attr())
}

// terminate ends the process and waits until it has exited. Close has already closed its stdin. If the process has not
// exited after exitTimeout, terminate sends SIGTERM to its group, and after another exitTimeout SIGKILL.
func (p *process) terminate() {
	if closedWithin(exitTimeout, p.exited) {
		return
	}
	signalGroup(p.cmd.Process, syscall.SIGTERM)
	if closedWithin(exitTimeout, p.exited) {
		return
	}
	signalGroup(p.cmd.Process, syscall.SIGKILL)
	<-p.exited
}

// closedWithin waits until all channels are closed and returns true, or returns false after d.
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

// closeFiles closes the parent's ends of the pipes. It accepts files that are nil or already closed.
func (p *process) closeFiles() {
	for _, f := range []*os.File{p.stdin, p.stdout, p.stderr} {
		_ = f.Close()
	}
}

// Close implements MessageConn. It closes the process's stdin and makes cleanUp end the process. It does not wait.
func (p *process) Close() error {
	p.closeOnce.Do(func() {
		close(p.stop)
		_ = p.stdin.Close() // also ends a Write that is waiting for the child
	})
	return nil
}

// Write implements MessageConn. It has no timeout, because senders have their own, and a child may be busy.
func (p *process) Write(data []byte) error {
	n, err := p.stdin.Write(append(data, '\n'))
	if err == nil {
		return nil
	}
	failure := p.exitFailure()
	failure.NotRun = n == 0
	failure.Err = err
	return failure
}

// SetReadLimit implements MessageConn.
func (p *process) SetReadLimit(bytes int) { p.readLimit.Store(int64(bytes)) }

// Read implements MessageConn. It returns io.EOF after Close. If the process has closed its output, the error is a
// *Failure that says how the process ended.
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
	return nil, p.exitFailure()
}

// exitFailure returns a failure that says how the process ended. The exit status is known only shortly after the pipes
// are closed, so exitFailure waits for it, at most for exitReportTimeout and until Close.
func (p *process) exitFailure() *Failure {
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

// IsClosed reports whether ch, on which no value is ever sent, is closed.
func IsClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
