package faults

import (
	byteorder "encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clockSource is a file that buildWithClock adds to the package time: the wall clock of a process is
// ahead by the seconds in the file that ANSWERD_TEST_CLOCK names. The file is mapped into memory, so
// that a test can set the clock while the process runs. The monotonic clock stays as it is, as when
// somebody sets the clock of a machine.
const clockSource = `package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

var clockAhead *int64

func init() {
	path, set := syscall.Getenv("ANSWERD_TEST_CLOCK")
	if !set {
		return
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
	if err != nil {
		panic(err)
	}
	b, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	clockAhead = (*int64)(unsafe.Pointer(&b[0]))
}

func secondsAhead() int64 {
	if clockAhead == nil {
		return 0
	}
	return atomic.LoadInt64(clockAhead)
}
`

// buildWithClock builds answerd with a wall clock that a test can set.
func buildWithClock(t testing.TB) (path string) {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir, std := t.TempDir(), filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	source, err := os.ReadFile(filepath.Join(std, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const reading = "sec, nsec, mono := runtimeNow()\n"
	head, body, found := strings.Cut(string(source), "func Now() Time {\n\t"+reading)
	if !found {
		t.Skip("time.Now of this version of Go reads the clock in another way")
	}
	writeFile(t, filepath.Join(dir, "time.go"), head+"func Now() Time {\n\t"+reading+"\tsec += secondsAhead()\n"+body)
	writeFile(t, filepath.Join(dir, "ahead.go"), clockSource)
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(std, "time.go"):  filepath.Join(dir, "time.go"),
		filepath.Join(std, "ahead.go"): filepath.Join(dir, "ahead.go"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "overlay.json"), string(overlay))
	path = filepath.Join(dir, "answerd")
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", path, "answerd/cmd/server")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build with another clock: %v %s, want a binary", err, out)
	}
	return path
}

// clockFile is the file that sets the wall clock of a process.
type clockFile struct{ path string }

func newClockFile(t testing.TB) clockFile {
	c := clockFile{filepath.Join(t.TempDir(), "clock")}
	c.setAhead(t, 0)
	return c
}

// setAhead makes the clock jump: it is now that far ahead of the real time.
func (c clockFile) setAhead(t testing.TB, d time.Duration) {
	t.Helper()
	f, err := os.OpenFile(c.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(byteorder.NativeEndian.AppendUint64(nil, uint64(int64(d/time.Second))), 0); err != nil {
		t.Fatal(err)
	}
}

// The wall clock of one replica jumps under load. On NATS, retention and the time to answer an
// approval are below the jump, so that a replica that used its own clock would refuse the approval and
// the reading of ended runs.
func TestF45ClockJumpsByAnHour(t *testing.T) {
	if os.Getenv("LONG") == "" {
		t.Skip("skipped: it compiles the standard library; LONG=1 make abuse runs it")
	}
	r := beginFault(t, "the wall clock of one of two replicas on NATS jumps by an hour, forward and back, under load; with file: that of the only process",
		"no event is lost or doubled, no call is made twice, every run ends with its answer; on NATS a run that waits for an approval is not refused, and ended runs can be read")
	path := buildWithClock(t)
	for _, where := range []string{"NATS", "file:"} {
		// With file:, NATS runs in the process whose clock jumps, so retention is measured by that.
		f := newFleet(t, "file:"+filepath.Join(t.TempDir(), "log"), "EVENTS_RETENTION=3h", "INPUT_TIMEOUT=3h")
		shared := where == "NATS"
		if shared {
			f = newFleet(t, startNATS(t).ClientURL(), "EVENTS_RETENTION=30m", "INPUT_TIMEOUT=30m")
		}
		f.askForApprovals(t)
		clock := newClockFile(t)
		f.env = append(f.env, "ANSWERD_TEST_CLOCK="+clock.path)
		f.startVersion(t, path)
		if shared {
			f.start(t) // another binary, which does not know the setting
		}
		f.waitUntilAllAnswer(t)
		load := f.startLoad(t, 4, where)

		for i, ahead := range []time.Duration{time.Hour, 0, -time.Hour, 0} {
			name := fmt.Sprintf("approve-%s-%d", where, i)
			run, interrupt := f.startUntilApproval(t, name)
			clock.setAhead(t, ahead)
			f.waitUntilAllAnswer(t)
			<-time.After(3 * time.Second) // some runs under load
			if now := f.replica(0).request(t, "GET", "/runs/"+run, ""); now.status != 200 {
				t.Errorf("%s: the suspended run is %d %s after a jump to %s, want 200", where, now.status, now.body, ahead)
			}
			f.approve(t, run, interrupt)
		}

		load.stop(t)
		f.wantAnswers(t, where)
		r.record("%s: %s", where, f.report(t))
	}
}
