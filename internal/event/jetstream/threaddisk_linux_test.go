package jetstream_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

// Another file fills the disk of a log that has threads. Runs expire, which is not enough: old threads are
// deleted, so that the log can be used again.
func TestThreadsAreDroppedOnAFullDisk(t *testing.T) {
	skipUnlessLong(t, "waits up to 10 s for a check of the disk")
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m,mode=700"); err != nil {
		t.Skip("tmpfs cannot be mounted:", err)
	}

	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})

	const retention = 3 * time.Second
	log := openLog(t, jetstream.Options{URL: "file:" + filepath.Join(dir, "log"), Retention: retention, Lease: lease})
	for i := range 30 {
		addTurn(t, log, ada, fmt.Sprintf("thr_%d", i), fmt.Sprintf("run_%d", i), make([]byte, 128<<10))
	}

	before := threadsOf(t, log, ada)
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	const left = 7 << 19 // with the reserve, half a MiB less than the log needs
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, int64(fs.Bavail)*fs.Bsize-left), 0o600); err != nil {
		t.Fatal(err)
	}

	var first time.Time // when the first run ended
	var err error
	for i := 0; err == nil && i < 100; i++ {
		id := fmt.Sprintf("run_%d", i)
		if err = log.Create(t.Context(), event.Run{ID: id, Owner: ada, Created: log.Now()}); err == nil {
			err = log.SaveResult(t.Context(), id, "call", make([]byte, 200<<10))
		}
		if err == nil {
			_, err = log.Append(t.Context(), id, event.FinalAnswer{})
		}
		if first.IsZero() {
			first = time.Now()
		}
	}
	if !errors.Is(err, event.ErrUnavailable) {
		t.Fatalf("a run on a full disk got %v, want %v", err, event.ErrUnavailable)
	}
	if err := log.Ready(t.Context()); !errors.Is(err, event.ErrUnavailable) {
		t.Errorf("Ready on a full disk = %v, want %v", err, event.ErrUnavailable)
	}
	if got := threadsOf(t, log, ada); len(got) < len(before) {
		t.Errorf("%d threads before a run has expired, want all %d", len(got), len(before))
	}
	eventtest.Await(t, "the log to be ready", func() bool { return log.Ready(t.Context()) == nil })
	if took := time.Since(first) - retention; took > 10*time.Second {
		t.Errorf("ready %s after the first run's expiry, want at most 10 s", took)
	}
	if got := threadsOf(t, log, ada); len(got) == 0 || len(got) >= len(before) || got[0] != before[0] {
		t.Errorf("threads after the recovery are %v, want the newest ones of %v", got, before)
	}
	addTurn(t, log, ada, "thr_after", "run_after", []byte("x"))
	startRun(t, log, "run_b")
}
