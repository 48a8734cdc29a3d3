package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// process is answerd as a process of its own.
type process struct {
	cmd   *exec.Cmd
	log   *syncBuffer
	lines chan string // stdout and stderr; closed when the process has ended

	ended   chan struct{} // closed when waitErr is set and the output is complete
	waitErr error
}

// spawnAnswerd starts this binary as answerd, with this environment and no other.
func spawnAnswerd(t testing.TB, env []string, args ...string) *process {
	t.Helper()
	return spawnCommand(t, exec.Command(os.Args[0], args...), env)
}

// spawnCommand starts a command that becomes this binary.
func spawnCommand(t testing.TB, cmd *exec.Cmd, env []string) *process {
	t.Helper()
	p := &process{cmd: cmd, log: &syncBuffer{}, lines: make(chan string, 4096), ended: make(chan struct{})}
	p.cmd.Env = append(env, "TEST_AS_ANSWERD=1")
	read, write := io.Pipe()
	both := io.MultiWriter(write, p.log)
	p.cmd.Stdout, p.cmd.Stderr = both, both
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(read); s.Scan(); {
			select {
			case p.lines <- s.Text():
			default: // nobody waits for that many; a full pipe would hold the process up
			}
		}
	}()
	go func() {
		p.waitErr = p.cmd.Wait()
		write.Close() // ends the lines, so that no reader waits for more
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		_ = p.wait()             // killed
		for range p.lines {      // until the scanner has ended
		}
	})
	return p
}

// wait waits until the process has ended and all of its output is in log.
func (p *process) wait() error {
	<-p.ended
	return p.waitErr
}

// waitForLine returns the next line of output that contains text.
func (p *process) waitForLine(t testing.TB, text string) string {
	t.Helper()
	for timeout := time.After(2 * time.Minute); ; {
		select {
		case line, isOpen := <-p.lines:
			if isOpen && strings.Contains(line, text) {
				return line
			}
			if isOpen {
				continue
			}
		case <-timeout:
		}
		t.Fatalf("got\n%s\nwant %s", p.log, text)
	}
}

// url returns the URL at which the process listens, which it reads from the log.
func (p *process) url(t testing.TB) string {
	return "http://" + regexp.MustCompile(`"addr":"([^"]+)"`).FindStringSubmatch(p.waitForLine(t, `"listening"`))[1]
}

// demoURL returns the URL of answerd demo, which it reads from the printed curl command.
func (p *process) demoURL(t testing.TB) string {
	return regexp.MustCompile(`curl -N (\S+)/answer/stream`).FindStringSubmatch(p.waitForLine(t, "curl -N"))[1]
}

func (p *process) signal(t testing.TB, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("Signal(%v) = %v, want no error", s, err)
	}
}

// These are set, in the environment, for a process that is to be a NATS server.
const (
	natsDir  = "TEST_AS_NATS_IN"
	natsPort = "TEST_AS_NATS_AT"
)

// serveNATS runs a NATS server with JetStream until it is killed. It prints where it listens.
func serveNATS(dir, port string) {
	o := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: dir}
	if n, err := strconv.Atoi(port); err == nil {
		o.Port = n
	}
	s, err := server.NewServer(o)
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	s.Start()
	if !s.ReadyForConnections(30 * time.Second) {
		os.Exit(1)
	}
	fmt.Println(s.ClientURL())
	s.WaitForShutdown()
}

// natsServer is a NATS server as a process of its own, always on the same directory and port.
type natsServer struct {
	dir, url string
	process  *process
}

func spawnNATS(t testing.TB) *natsServer {
	n := &natsServer{dir: t.TempDir()}
	n.start(t)
	return n
}

func (n *natsServer) start(t testing.TB) {
	t.Helper()
	port := ""
	if n.url != "" {
		port = n.url[len("nats://127.0.0.1:"):]
	}
	n.process = spawnAnswerd(t, []string{natsDir + "=" + n.dir, natsPort + "=" + port})
	n.url = n.process.waitForLine(t, "nats://")
}

// kill ends the process as kill -9 does.
func (n *natsServer) kill() {
	_ = n.process.cmd.Process.Kill()
	_ = n.process.wait() // killed
}

// While answerd waits for NATS at its start, the log says so and why: it does not listen until then.
func TestStartThatWaitsForNATSSaysSo(t *testing.T) {
	t.Parallel()
	n := spawnNATS(t)
	n.kill()
	p := spawnAnswerd(t, []string{"ADDR=127.0.0.1:0", "LLM_BASE_URL=http://127.0.0.1:9/v1", "EVENTS_URL=" + strings.Replace(n.url, "nats://", "nats://user:canary@", 1)})
	line := p.waitForLine(t, "event log cannot be reached yet")
	if !strings.Contains(line, `"reason":"no server accepts connections there"`) || strings.Contains(line, "canary") {
		t.Errorf("got %s, want the reason, and no password", line)
	}
	n.start(t)
	p.url(t)
	if lines := strings.Count(p.log.String(), "cannot be reached yet"); lines != 1 {
		t.Errorf("got %d lines, want 1:\n%s", lines, p.log)
	}
}

// The same for a NATS server without JetStream, which accepts the connection and answers nothing.
func TestStartThatWaitsForJetStreamSaysSo(t *testing.T) {
	t.Parallel()
	s := startNATS(t, &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	p := spawnAnswerd(t, []string{"ADDR=127.0.0.1:0", "LLM_BASE_URL=http://127.0.0.1:9/v1", "EVENTS_URL=" + s.ClientURL()})
	const want = "JetStream does not answer there: it is off (nats-server -js), or the cluster is starting"
	if line := p.waitForLine(t, "event log cannot be reached yet"); !strings.Contains(line, `"reason":"`+want) {
		t.Errorf("got %s, want the reason %s", line, want)
	}
	p.signal(t, syscall.SIGTERM)
	if err := p.wait(); err == nil || !strings.Contains(p.log.String(), "answerd: EVENTS_URL: make stream ANSWERD_RUNS: "+want) {
		t.Errorf("got %v and\n%s\nwant an error that says %s", err, p.log, want)
	}
}

// SIGHUP means that files are read again. Before they were read once, here because NATS does not answer yet, it
// does not end the process either.
func TestHangupWhileStartingEndsNothing(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	p := spawnAnswerd(t, []string{"ADDR=127.0.0.1:0", "LLM_BASE_URL=http://127.0.0.1:9/v1", "EVENTS_URL=nats://" + silent.Addr().String()})
	conn, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p.signal(t, syscall.SIGHUP)
	p.signal(t, syscall.SIGTERM)
	if err := p.wait(); err == nil || err.Error() != "exit status 1" {
		t.Errorf("got %v, want exit status 1, of SIGTERM", err)
	}
}
