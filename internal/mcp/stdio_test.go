package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
)

// S4.1: servers of several transports at once, and each of 200 callers gets its own
// answer from a child's one pair of pipes.
func TestChildAnswersManyCallers(t *testing.T) {
	t.Parallel()
	w := serveHTTP(t, streamableHandler(t, newToolServer(nil), nil))
	cfg := stdioConfig("serve", "")
	cfg.ToolPrefix = "child"
	c := newClient(t, Options{MaxConcurrentCalls: 200}, cfg, config.Server{Name: "web", URL: w.URL})
	c.Tools(t.Context())

	for _, st := range c.Servers() {
		if st.State != Connected {
			t.Fatalf("server status %+v, want State Connected", st)
		}
	}

	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			want := strings.Repeat(fmt.Sprint("caller ", i, "\u2028\n"), 100)
			args, _ := json.Marshal(map[string]string{"text": want})
			name := []string{"child_echo", "echo"}[i%2]
			res, err := c.Call(t.Context(), Call{Tool: name, Args: args})
			if err != nil || res.Text() != want {
				t.Errorf("%v, %v, want %s", res, err, want)
			}
		})
	}
	all.Wait()
}

// childState is what a child process reports about itself.
type childState struct {
	Env, Args  []string
	Dir        string
	PID, Group int
}

func childStateOf(t *testing.T, c *Client) childState {
	t.Helper()
	res, err := c.Call(t.Context(), Call{Tool: "world"})
	var w childState
	if err := json.Unmarshal([]byte(mustResult(t, res, err).Text()), &w); err != nil {
		t.Fatal(err)
	}
	return w
}

// S4.6: a child gets the environment that it is given and nothing of ours, its working
// directory, its arguments as they are, and a process group of its own.
func TestChildGetsItsConfigurationAlone(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "sk-ours")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, env := range map[string]map[string]auth.Secret{
		"none": nil,
		"some": {"KEY": auth.NewSecret("a value; $HOME `id`"), "EMPTY": auth.NewSecret("")},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := stdioConfig("serve", "")
			cfg.Env, cfg.WorkDir = env, dir
			cfg.Args = append(cfg.Args, "a b", "$HOME", "; exit 1")
			got := childStateOf(t, newClient(t, Options{}, cfg))

			want := []string{}
			for k, v := range env {
				want = append(want, k+"="+v.Reveal())
			}

			slices.Sort(want)
			if slices.Sort(got.Env); !slices.Equal(got.Env, want) {
				t.Errorf("environment %q, want %q", got.Env, want)
			}
			if got.Dir != dir || !reflect.DeepEqual(got.Args[1:], cfg.Args) {
				t.Errorf("process %+v, want directory %q and arguments %q", got, dir, cfg.Args)
			}
			if runtime.GOOS == "linux" && got.Group != got.PID {
				t.Errorf("group %d of process %d, want %d", got.Group, got.PID, got.PID)
			}
		})
	}
}

// S0.1: a child has no URL. Query parameters cost one warning and no failure, whether
// they come from the configuration or with calls.
func TestChildWithQueryParametersIsWarnedAboutOnce(t *testing.T) {
	var log syncBuffer
	cfg := stdioConfig("serve", "")
	cfg.Query = map[string]string{"tenant": "acme"}
	c := newClient(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, cfg)
	for range 2 {
		res, err := c.Call(t.Context(), Call{Tool: "echo", Context: map[string]string{"context_id": "1111"}})
		mustResult(t, res, err)
	}
	if n := strings.Count(log.String(), "query parameters"); n != 1 {
		t.Errorf("%d warnings: %s, want 1", n, log.String())
	}
}

// S4.6: how a command is found, and what is said if it isn't.
func TestCommandIsFound(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "server")); err != nil {
		t.Skip(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)

	for _, row := range []struct{ command, dir, reason string }{
		{"server", "", ""},
		{"./server", dir, ""},
		{"nothing", "", "its command is not found"},
		{"./server", filepath.Dir(dir), "its command is not found"},
		{"./text", dir, "its command may not be run"},
		{dir, "", "its command may not be run"},
		{"server", filepath.Join(dir, "text"), "its working directory cannot be used"},
	} {
		cfg := stdioConfig("serve", "")
		cfg.Command, cfg.WorkDir = row.command, row.dir
		c := newClient(t, Options{}, cfg)
		c.Tools(t.Context())
		if st := c.Servers()[0]; st.Reason != row.reason || (st.State == Connected) != (row.reason == "") {
			t.Errorf("%+v: %+v, want the reason, and Connected only without one", row, st)
		}
	}
}

// A command that is not found is no process that ended: however often it was tried, the reason stays, and the command is
// started as soon as it is there.
func TestMissingCommandDoesNotCountAsAnEndedProcess(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg := stdioConfig("serve", "")
	cfg.Command = filepath.Join(t.TempDir(), "server")
	c := newClient(t, Options{}, cfg)
	c.Tools(t.Context())
	for range 2 * maxStarts {
		_ = c.Refresh(t.Context(), cfg.Name)
		if st := c.Servers()[0]; st.State != Failed || st.Reason != "its command is not found" {
			t.Fatalf(`server status %+v, want State Failed, Reason "its command is not found"`, st)
		}
	}

	if err := os.Symlink(self, cfg.Command); err != nil {
		t.Skip(err)
	}
	if err := c.Refresh(t.Context(), cfg.Name); err != nil {
		t.Errorf("Refresh() = %v, want nil once the command is there", err)
	}
}

// A command that is only in the PATH under env is found there, as the official SDKs do, and one that is
// there as well as in ours is that one. Without it in either, ours counts.
func TestCommandIsFoundWithTheChildsPath(t *testing.T) {
	ours, theirs := t.TempDir(), t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	for _, path := range []string{filepath.Join(theirs, "server"), filepath.Join(ours, "other")} {
		if err := os.Symlink(self, path); err != nil {
			t.Skip(err)
		}
	}

	if err := os.WriteFile(filepath.Join(ours, "server"), []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", ours)

	for _, command := range []string{"server", "other"} {
		cfg := stdioConfig("serve", "")
		cfg.Command, cfg.Env = command, map[string]auth.Secret{"PATH": auth.NewSecret("relative" + string(filepath.ListSeparator) + theirs)}
		c := newClient(t, Options{}, cfg)
		c.Tools(t.Context())
		if st := c.Servers()[0]; st.State != Connected {
			t.Errorf("%s: got %+v, want Connected", command, st)
		}
	}
}

// Progress that came before the result is delivered, in order, before Call returns.
func TestChildsProgressComesInOrder(t *testing.T) {
	c := newClient(t, Options{MaxConcurrentCalls: 20}, stdioConfig("serve", ""))
	c.Tools(t.Context())
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			var got []float64 // without a lock: the race detector sees late ones
			if _, err := c.Call(t.Context(), Call{Tool: "work", Progress: func(p Progress) { got = append(got, p.Progress) }}); err != nil {
				t.Error(err)
			}
			if n := len(got); n < 2 || !slices.IsSorted(got) || got[0] != 0 || got[n-1] != 19 {
				t.Errorf("got %v, want the first and the last in order", got)
			}
		})
	}
	all.Wait()
}

// A cancelled call ends at the server too, and the child lives on.
func TestCancelReachesTheChild(t *testing.T) {
	w := newChildMonitor(t)
	c := newClient(t, Options{}, stdioConfig("serve", w.addr()))
	process := w.waitForStart("serve")

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.Call(ctx, Call{Tool: "hang"})
		done <- err
	}()

	w.waitForStart("hanging")
	cancel()
	if e := mustFail(t, <-done); e.Kind != Cancelled {
		t.Errorf("call error %v, want Kind Cancelled", e)
	}
	w.waitForStart("cancelled")
	if got := childStateOf(t, c); got.PID != process.pid {
		t.Errorf("process %d after a cancelled call, want %d", got.PID, process.pid)
	}
}

// S4.5, F23: a child dies in the middle of a call. The outcome of the call is unknown, and it is not repeated. The child
// is started again although no call needs it yet, and its last lines are in the log.
func TestDeadChildIsStartedAgain(t *testing.T) {
	t.Parallel()
	w := newChildMonitor(t)
	var log syncBuffer
	c := newClient(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, stdioConfig("serve", w.addr()))
	first := w.waitForStart("serve")
	_, err := c.Call(t.Context(), Call{Tool: "die"})
	if e := mustFail(t, err); e.Kind != UnknownOutcome || !strings.Contains(e.Message, "its process ended (exit status 3)") {
		t.Errorf(`%v: %s, want Kind UnknownOutcome, Message containing "its process ended (exit status 3)"`, e.Kind, e.Message)
	}
	first.waitForEnd()
	second := w.waitForStart("serve") // without another call
	if s := log.String(); !strings.Contains(s, "cannot go on") || !strings.Contains(s, "exit status 3") {
		t.Errorf(`log %q, want it to contain "cannot go on" and "exit status 3"`, s)
	}
	if err := c.Refresh(t.Context(), "a"); err != nil { // which needs no new child
		t.Error(err)
	}
	if got := childStateOf(t, c); got.PID != second.pid {
		t.Errorf("process %d answers, want %d", got.PID, second.pid)
	}
	if err := c.Refresh(t.Context(), "a"); err != nil { // the call may have come before the list
		t.Error(err)
	}
	if st := c.Servers()[0]; st.State != Connected {
		t.Errorf("server status %+v, want State Connected", st)
	}
}

// S3.3, S4.5: a tool that may be repeated is, on the next child.
func TestRepeatableToolSurvivesItsChild(t *testing.T) {
	w := newChildMonitor(t)
	cfg := stdioConfig("serve", w.addr())
	cfg.IdempotentTools = []string{"hang"}
	c := newClient(t, Options{}, cfg)
	w.waitForStart("serve")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	done := make(chan error, 1)
	go func() {
		_, err := c.Call(ctx, Call{Tool: "hang"})
		done <- err
	}()

	first := w.waitForStart("hanging")
	killProcess(t, first.pid)
	w.waitForStart("serve")
	if second := w.waitForStart("hanging"); second.pid == first.pid {
		t.Errorf("the same process: pid %d, want other than %d", second.pid, first.pid)
	}
	cancel()
	<-done
}

// S4.5: calls that find their child dead were not sent, so they go to the next one.
func TestCallsGoToTheNextChild(t *testing.T) {
	w := newChildMonitor(t)
	log := &messageWatcher{want: "MCP server process ended", seen: make(chan struct{}, 10)}
	c := newClient(t, Options{MaxConcurrentCalls: 50, Logger: slog.New(log)}, stdioConfig("serve", w.addr()))
	c.Tools(t.Context())

	for range 2 {
		killProcess(t, w.waitForStart("serve").pid)
		<-log.seen
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if _, err := c.Call(t.Context(), Call{Tool: "echo"}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	w.waitForStart("serve")
}

// messageWatcher is a log that sends on seen when a message is logged.
type messageWatcher struct {
	want string
	seen chan struct{}
}

func (n *messageWatcher) Enabled(context.Context, slog.Level) bool { return true }
func (n *messageWatcher) WithAttrs([]slog.Attr) slog.Handler       { return n }
func (n *messageWatcher) WithGroup(string) slog.Handler            { return n }

func (n *messageWatcher) Handle(_ context.Context, r slog.Record) error {
	if r.Message == n.want {
		n.seen <- struct{}{}
	}
	return nil
}

func killProcess(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// F23: a child that exits at once is reported with how it ended, and its words are in
// the log; F12: it keeps nothing else from working.
func TestChildThatExitsAtOnce(t *testing.T) {
	var log syncBuffer
	c := newClient(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, stdioConfig("exit", ""))
	c.Tools(t.Context())
	if st := c.Servers()[0]; st.State != Failed || st.Reason != "its process ended (exit status 3)" {
		t.Errorf(`server status %+v, want State Failed, Reason "its process ended (exit status 3)"`, st)
	}
	if s := log.String(); !strings.Contains(s, "no licence found") {
		t.Errorf(`string %q, want it to contain "no licence found"`, s)
	}
}

// S4.5: a child that comes up and dies again is not started as fast as it can die.
func TestChildThatKeepsDyingIsStartedLessOften(t *testing.T) {
	if os.Getenv("ANSWERD_TEST_LONG") == "" {
		t.Skip("waits 8 s between starts; make durable runs it")
	}
	w := newChildMonitor(t)
	log := &messageWatcher{want: "MCP server is down", seen: make(chan struct{}, 10)}
	c := newClient(t, Options{Logger: slog.New(log)}, stdioConfig("brief", w.addr()))
	c.Tools(t.Context())

	for range maxStarts {
		w.waitForStart("brief")
		if _, err := c.Call(t.Context(), Call{Tool: "echo"}); mustFail(t, err).Kind != UnknownOutcome {
			t.Errorf("error %v, want Kind UnknownOutcome", err)
		}
	}

	<-log.seen
	_, err := c.Call(t.Context(), Call{Tool: "echo"})

	// The breaker, which opens after as many failures, may be the one to say so.
	if e := mustFail(t, err); e.Kind != Unavailable || !strings.Contains(e.Message, "too often") {
		t.Errorf(`%v: %s, want Kind Unavailable, Message containing "too often"`, e.Kind, e.Message)
	}
	if st := c.Servers()[0]; st.State != Degraded {
		t.Errorf("server status %+v, want State Degraded", st)
	}
	if n := len(w.started); n != 0 {
		t.Errorf("%d more starts, want 0", n)
	}
}

// S3.9: a server that dies of server/discover is started again for initialize
// (go-sdk#1177), and that is remembered.
func TestChildThatDiesOfDiscover(t *testing.T) {
	t.Parallel()
	w := newChildMonitor(t)
	c := newClient(t, Options{}, stdioConfig("legacy", w.addr()))
	c.Tools(t.Context())
	if st := c.Servers()[0]; st.State != Connected || st.Protocol != "2025-11-25" {
		t.Fatalf("server status %+v, want State Connected, Protocol 2025-11-25", st)
	}
	w.waitForStart("legacy")
	second := w.waitForStart("legacy")
	killProcess(t, second.pid)
	third := w.waitForStart("legacy")
	if got := childStateOf(t, c); got.PID != third.pid {
		t.Errorf("process %d answers, want %d", got.PID, third.pid)
	}
}

// F23, S4.6: a child that ignores the end of its input and SIGTERM, and has a
// child of its own like that, is gone within 7 s of our end, with its group.
func TestStubbornChildAndItsGroupAreKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("process groups are Linux's here")
	}
	w := newChildMonitor(t)
	c := newClient(t, Options{}, stdioConfig("stubborn", w.addr()))
	c.Tools(t.Context())
	child, grandchild := w.waitForStart("stubborn"), w.waitForStart("ignores-sigterm")
	begin := time.Now()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	child.waitForEnd()
	grandchild.waitForEnd()
	if d := time.Since(begin); d > 7*time.Second {
		t.Errorf("closed after %v, want at most 7 s", d)
	}
	checkWaitedFor(t, child)
}

// F23: a grandchild that keeps the pipes open delays nothing, neither when its parent
// dies nor when the client is closed.
func TestGrandchildDelaysNeitherRestartNorClose(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("process groups are Linux's here")
	}
	w := newChildMonitor(t)
	c := newClient(t, Options{}, stdioConfig("wrapper", w.addr()))
	c.Tools(t.Context())
	parent, grandchild := w.waitForStart("wrapper"), w.waitForStart("ignores-input")
	_, err := c.Call(t.Context(), Call{Tool: "die"})
	if e := mustFail(t, err); e.Kind != UnknownOutcome {
		t.Errorf("call error %v, want Kind UnknownOutcome", e)
	}
	parent.waitForEnd()
	grandchild.waitForEnd()
	childStateOf(t, c) // starts a new child and grandchild
	parent, grandchild = w.waitForStart("wrapper"), w.waitForStart("ignores-input")
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	parent.waitForEnd()
	grandchild.waitForEnd()
	checkNoChildren(t)
}
