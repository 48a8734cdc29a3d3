package values_test

import (
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/values"
)

func setValue(t *testing.T, m *values.Memory, key string, size int, ttl time.Duration) error {
	t.Helper()
	_, revision, err := m.Value(t.Context(), values.NewKey(key))
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.SetValue(t.Context(), values.NewKey(key), make([]byte, size), revision, ttl)
	return err
}

// TestMemoryIsBounded fills a store: it refuses more, except in place of what has expired or was removed.
func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m values.Memory
		stored := 0
		for ; setValue(t, &m, strconv.Itoa(stored), values.MaxSize, time.Minute) == nil; stored++ {
			if stored > 1000 {
				t.Fatalf("stored %d values of %d bytes, want a bound", stored, values.MaxSize)
			}
		}

		if err := setValue(t, &m, "another", values.MaxSize, time.Minute); !errors.Is(err, values.ErrFull) {
			t.Errorf("SetValue in a full store = %v, want %v", err, values.ErrFull)
		}
		if err := setValue(t, &m, "0", values.MaxSize, time.Minute); err != nil {
			t.Errorf("SetValue of a stored key in a full store = %v, want no error", err)
		}
		if err := errors.Join(setValue(t, &m, "1", 0, time.Minute), setValue(t, &m, "another", values.MaxSize, time.Minute)); err != nil {
			t.Errorf("SetValue after a removal = %v, want no error", err)
		}
		<-time.After(time.Minute) // fake time

		for n := range stored {
			if err := setValue(t, &m, "later"+strconv.Itoa(n), values.MaxSize, time.Minute); err != nil {
				t.Fatalf("SetValue %d after all have expired = %v, want no error", n, err)
			}
		}
	})
}

func TestKeyDependsOnEveryPart(t *testing.T) {
	seen := make(map[values.Key][]string)
	for _, parts := range [][]string{{}, {""}, {"", ""}, {"ab"}, {"a", "b"}, {"a:b"}, {"1:a", "b"}, {"ab", ""}} {
		key := values.NewKey(parts...)
		if other, ok := seen[key]; ok {
			t.Errorf("NewKey(%q) = NewKey(%q), want another one", parts, other)
		}
		seen[key] = parts
	}
	if got := values.NewKey("ann").String(); len(got) != 64 {
		t.Errorf("String = %q, want 64 digits", got)
	}
}
