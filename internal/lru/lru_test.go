package lru

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// discards notes which values were discarded.
type discards struct {
	mu     sync.Mutex // protects values
	values []string
}

func (d *discards) add(v string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.values = append(d.values, v)
}

// sorted returns what was discarded so far, once nothing more is on its way.
func (d *discards) sorted() []string {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	slices.Sort(d.values)
	return d.values
}

func acquire(t *testing.T, c *Cache[string, string], key string) {
	t.Helper()
	if got, err := c.Acquire(key, func() string { return key }); err != nil || got != key {
		t.Fatalf("got %q, %v, want %q", got, err, key)
	}
}

func useKeys(t *testing.T, c *Cache[string, string], keys ...string) {
	t.Helper()
	for _, key := range keys {
		acquire(t, c, key)
		c.Release(key)
	}
}

func TestCacheDiscardsTheLeastRecentlyUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d discards
		c := New[string](3, time.Hour, d.add)
		useKeys(t, c, "a", "b", "c", "a", "d")
		if got, want := d.sorted(), []string{"b"}; !slices.Equal(got, want) || c.Len() != 3 {
			t.Errorf("discarded %q, want %q; %d values, want 3", got, want, c.Len())
		}
	})
}

func TestCacheKeepsValuesInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d discards
		c := New[string](2, time.Minute, d.add)
		acquire(t, c, "a")
		acquire(t, c, "a")
		useKeys(t, c, "b", "c")
		c.Release("a")
		<-time.After(time.Hour) // fake time
		c.Sweep()
		if got, want := d.sorted(), []string{"b", "c"}; !slices.Equal(got, want) {
			t.Errorf("discarded %q, want %q", got, want)
		}
		acquire(t, c, "b")
		if _, err := c.Acquire("c", func() string { return "c" }); !errors.Is(err, ErrFull) {
			t.Errorf("got %v, want %v", err, ErrFull)
		}
		c.Release("a")
		acquire(t, c, "c")
	})
}

func TestCacheDiscardsIdleValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d discards
		c := New[string](9, time.Minute, d.add)
		useKeys(t, c, "a")
		acquire(t, c, "b")
		<-time.After(time.Minute) // fake time
		c.Release("b")            // that is a use, too
		c.Sweep()
		if got, want := d.sorted(), []string{"a"}; !slices.Equal(got, want) {
			t.Errorf("after Sweep: discarded %q, want %q", got, want)
		}
		<-time.After(time.Minute)
		useKeys(t, c, "c")
		if got, want := d.sorted(), []string{"a", "b"}; !slices.Equal(got, want) {
			t.Errorf("after Acquire: discarded %q, want %q", got, want)
		}
	})
}

func TestCacheClosedReturnsWhatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d discards
		c := New[string](9, time.Minute, d.add)
		useKeys(t, c, "a")
		acquire(t, c, "b")
		c.Close()
		if got, want := d.sorted(), []string{"a", "b"}; !slices.Equal(got, want) {
			t.Errorf("discarded %q, want %q", got, want)
		}
		c.Release("b")
		useKeys(t, c, "a")
		if _, err := c.Acquire("c", func() string { return "c" }); !errors.Is(err, ErrClosed) {
			t.Errorf("got %v, want %v", err, ErrClosed)
		}
	})
}
