package jetstream_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"answerd/internal/event/jetstream"
	"answerd/internal/values"
)

// TestValueIsSharedAndSurvivesAReopening checks that two instances see the same values, and that an
// embedded log has them after it was closed and opened.
func TestValueIsSharedAndSurvivesAReopening(t *testing.T) {
	t.Parallel()
	key, want := values.NewKey("grant", "ann"), []byte("\x00sealed")
	url, dir := startCluster(t), t.TempDir()
	for name, open := range map[string]func() (*jetstream.Log, *jetstream.Log){
		"server": func() (*jetstream.Log, *jetstream.Log) {
			return openLog(t, jetstream.Options{URL: url, Lease: lease}), openLog(t, jetstream.Options{URL: url, Lease: lease})
		},
		"disk": func() (*jetstream.Log, *jetstream.Log) {
			l, err := jetstream.Open(t.Context(), jetstream.Options{URL: "file:" + dir, Lease: lease})
			if err != nil {
				t.Fatal(err)
			}
			return l, nil
		},
	} {
		a, b := open()
		revision, err := a.SetValue(t.Context(), key, want, 0, time.Hour)
		if err != nil || revision == 0 {
			t.Fatalf("%s: SetValue = %d, %v, want a revision", name, revision, err)
		}

		if b == nil {
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			b = openLog(t, jetstream.Options{URL: "file:" + dir, Lease: lease})
		}

		got, at, err := b.Value(t.Context(), key)
		if err != nil || !bytes.Equal(got, want) || at != revision {
			t.Errorf("%s: Value = %q, %d, %v, want %q, %d", name, got, at, err, want, revision)
		}
		if next, err := b.SetValue(t.Context(), key, []byte("b"), at, time.Hour); err != nil || next == 0 {
			t.Errorf("%s: SetValue = %d, %v, want a revision", name, next, err)
		}
	}
}

// TestValuesHaveSpaceOfTheirOwn checks that a log full of runs still stores values, and that a log
// full of values still creates runs and replaces values.
func TestValuesHaveSpaceOfTheirOwn(t *testing.T) {
	t.Parallel()
	l := openLog(t, jetstream.Options{URL: startCluster(t), Lease: lease, MaxBytes: 8 << 20})
	createUntilFull(t, l, "run")

	var first uint64
	for n := 0; ; n++ {
		revision, err := l.SetValue(t.Context(), values.NewKey(string(rune(n))), make([]byte, 64<<10), 0, time.Hour)
		if n == 0 {
			if first = revision; err != nil || first == 0 {
				t.Fatalf("SetValue in a log full of runs = %d, %v, want a revision", revision, err)
			}
		}
		if errors.Is(err, values.ErrFull) && n > 0 {
			break
		}
		if err != nil || n > 100 {
			t.Fatalf("SetValue %d = %v, want %v", n, err, values.ErrFull)
		}
	}

	if next, err := l.SetValue(t.Context(), values.NewKey(string(rune(0))), nil, first, time.Hour); err != nil || next == 0 {
		t.Errorf("the removal of a value from a full log = %d, %v, want a revision", next, err)
	}
	if next, err := l.SetValue(t.Context(), values.NewKey("another"), make([]byte, 32<<10), 0, time.Hour); err != nil || next == 0 {
		t.Errorf("SetValue after the removal = %d, %v, want a revision", next, err)
	}
}
