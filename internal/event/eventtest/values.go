package eventtest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"answerd/internal/event"
	"answerd/internal/values"
)

// testValueIsSetOncePerRevision checks that only a process that has read the newest revision can replace or remove a
// value.
func testValueIsSetOncePerRevision(t *testing.T, log event.Log) {
	key := values.NewKey("k")
	set := func(value string, revision uint64) uint64 {
		t.Helper()
		next, err := log.SetValue(t.Context(), key, []byte(value), revision, time.Hour)
		noError(t, err)
		return next
	}

	get := func(want string) uint64 {
		t.Helper()
		value, revision, err := log.Value(t.Context(), key)
		if err != nil || string(value) != want {
			t.Fatalf("Value = %q, %v, want %q", value, err, want)
		}
		return revision
	}

	if r := get(""); r != 0 {
		t.Errorf("the revision of a key without a value = %d, want 0", r)
	}
	first := set("a", 0)
	if r := get("a"); r != first || r == 0 {
		t.Errorf("the revision = %d, want that of SetValue, %d, above 0", r, first)
	}
	if r := set("b", 0); r != 0 {
		t.Errorf("SetValue of a key with a value at revision 0 = %d, want 0", r)
	}
	second := set("\x00\xff", first)
	if r := set("c", first); r != 0 {
		t.Errorf("SetValue at an older revision = %d, want 0", r)
	}
	if r := get("\x00\xff"); r != second {
		t.Errorf("the revision = %d, want %d", r, second)
	}
	if r := set("", first); r != 0 {
		t.Errorf("the removal at an older revision = %d, want 0", r)
	}
	removed := set("", second)
	if r := get(""); removed == 0 || r != removed && r != 0 {
		t.Errorf("the revision after the removal = %d, want %d or 0", r, removed)
	}
	if r := set("d", get("")); r == 0 {
		t.Errorf("SetValue of a removed key = %d, want a revision", r)
	}
	get("d")
	if other, revision, err := log.Value(t.Context(), values.NewKey("k", "")); err != nil || len(other) > 0 || revision != 0 {
		t.Errorf("Value of another key = %q, %d, %v, want nothing", other, revision, err)
	}
	wantError(t, errorOf(log.SetValue(t.Context(), key, make([]byte, values.MaxSize+1), 0, time.Hour)), values.ErrTooLarge, "SetValue beyond MaxSize")
}

// testValueIsSetByOneOfMany lets many goroutines set a key at the same time, in several rounds.
func testValueIsSetByOneOfMany(t *testing.T, log event.Log) {
	const rounds, setters = 5, 8
	key, revision := values.NewKey("k"), uint64(0)
	for round := range rounds {
		var all sync.WaitGroup
		var won atomic.Uint64
		var winners atomic.Int64
		for n := range setters {
			all.Go(func() {
				next, err := log.SetValue(t.Context(), key, fmt.Appendf(nil, "%d by %d", round, n), revision, time.Hour)
				if err != nil {
					t.Error(err)
				}
				if next > 0 {
					winners.Add(1)
					won.Store(next)
				}
			})
		}
		all.Wait()
		if winners.Load() != 1 {
			t.Fatalf("%d of %d set revision %d, want 1", winners.Load(), setters, revision)
		}
		revision = won.Load()
	}
}

// testValueExpires checks that a value is gone after its ttl, and that its key can then be set again.
func testValueExpires(t *testing.T, log event.Log) {
	key := values.NewKey("k")
	first, err := log.SetValue(t.Context(), key, []byte("a"), 0, time.Second)
	if err != nil || first == 0 {
		t.Fatalf("SetValue = %d, %v, want a revision", first, err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		value, revision, err := log.Value(t.Context(), key)
		noError(t, err)
		if len(value) == 0 {
			if r, err := log.SetValue(t.Context(), key, []byte("b"), first, time.Hour); err != nil || r != 0 {
				t.Errorf("SetValue at the revision of the expired value = %d, %v, want 0", r, err)
			}
			if r, err := log.SetValue(t.Context(), key, []byte("b"), revision, time.Hour); err != nil || r == 0 {
				t.Errorf("SetValue after the expiry = %d, %v, want a revision", r, err)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("Value = %q a minute after its ttl, want none", value)
		}
		<-time.After(100 * time.Millisecond)
	}
}
