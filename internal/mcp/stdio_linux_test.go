package mcp

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"answerd/internal/mcp/config"
)

// F24: when answerd is killed its children die too, also one that ignores the end of its input and
// SIGTERM. Grandchildren that end with their input end as well. Other grandchildren survive: on
// Linux a parent cannot do more.
func TestChildrenDieWithUs(t *testing.T) {
	w := newChildMonitor(t)
	cfg := stdioConfig("parent", w.addr())
	us := exec.Command(cfg.Command, cfg.Args...)
	if err := us.Start(); err != nil {
		t.Fatal(err)
	}
	defer us.Wait()

	by := map[string]*childProcess{}
	for range 4 {
		p := <-w.started
		by[p.kind] = p
	}

	if err := us.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	by["parent"].waitForEnd()
	by["family"].waitForEnd()
	by["reader"].waitForEnd()
	if !by["ignores-input"].isAlive() {
		t.Error("the grandchild that ignores its input has ended, want it alive")
	}
	if err := syscall.Kill(by["ignores-input"].pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	by["ignores-input"].waitForEnd()
}

// F24: a child dies with the thread that started it, so that thread must not end before
// the child does, however many others do.
func TestChildOutlivesOtherThreads(t *testing.T) {
	w := newChildMonitor(t)
	c := newClient(t, Options{}, stdioConfig("serve", w.addr()))
	process := w.waitForStart("serve")
	for range 3 {
		var all sync.WaitGroup
		for range 50 {
			all.Go(runtime.LockOSThread) // never unlocked: its thread ends with it
		}
		all.Wait()
		if got := childStateOf(t, c); got.PID != process.pid {
			t.Fatalf("process %d after a call, want %d", got.PID, process.pid)
		}
	}
}

// Starts and ends, 1,000 of them in make durable, leave goroutines, file descriptors, threads and children where
// they were.
func TestThousandChildrenLeaveNothing(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip(err)
	}

	// The ids of requests are known, so a shell is server enough: a Go program takes
	// ten times as long to start.
	const script = `read a; echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}}'
read a; read a; echo '{"jsonrpc":"2.0","id":2,"result":{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}}'
read a`
	cycles := 100
	if os.Getenv("ANSWERD_TEST_LONG") != "" { // in make durable
		cycles = 1000
	}

	startAndClose := func() {
		c, err := New([]config.Server{{Name: "a", Command: "sh", Args: []string{"-c", script}, ProtocolVersion: "2025-11-25"}},
			Options{Logger: quietLog(), StartWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if n := len(c.Tools(t.Context())); n != 1 {
			t.Fatalf("%d tools: %+v, want 1", n, c.Servers())
		}
	}

	startAndClose() // The first cycle also creates what the process keeps afterwards, which is not a leak.
	goroutines, before := goleak.IgnoreCurrent(), countResources(t)

	for range cycles {
		startAndClose()
	}

	if err := goleak.Find(goroutines); err != nil {
		t.Error(err)
	}
	after := countResources(t)

	// Go keeps threads for later.
	if after.files != before.files || after.threads > before.threads+20 {
		t.Errorf("%+v, then %+v, want %d files, at most %d threads", before, after, before.files, before.threads+20)
	}
	checkNoChildren(t)
}

type resourceCounts struct{ files, threads int }

// countResources counts the file descriptors and threads of this process.
func countResources(t *testing.T) resourceCounts {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	c := resourceCounts{files: len(files)}
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "Threads: %d", &c.threads)
	}
	return c
}
