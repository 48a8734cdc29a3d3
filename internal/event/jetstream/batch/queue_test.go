package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/event"
)

// store collects batches, each as the numbers of its events. Each takes some time.
type store struct {
	took time.Duration

	mu      sync.Mutex // guards the fields below
	err     error      // of the next batch
	batches []string
}

func (s *store) add(items []Item) error {
	<-time.After(s.took)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.err; err != nil {
		s.err = nil
		s.batches = append(s.batches, "failed")
		return err
	}
	var numbers []string
	for _, i := range items {
		numbers = append(numbers, fmt.Sprint(i.Event.Seq))
	}
	s.batches = append(s.batches, strings.Join(numbers, " "))
	return nil
}

func (s *store) queue(limit int) *Queue {
	return NewQueue(Options{Store: s.add, Limit: limit, Go: func(f func()) bool { go f(); return true }})
}

func wantBatches(t *testing.T, s *store, want ...string) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.batches, want) {
		t.Errorf("batches = %q, want %q", s.batches, want)
	}
}

func TestQueueStoresWhatWaitsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{took: 10 * time.Millisecond}
		q := s.queue(MaxBytes)
		q.Add(newItem(1), 0) // at once
		synctest.Wait()
		q.Add(newItem(2), time.Second)
		q.Add(newItem(3), 0) // while the first is being stored
		<-time.After(21 * time.Millisecond)
		wantBatches(t, s, "1", "2 3")
		q.Add(newItem(4), 100*time.Millisecond)
		<-time.After(90 * time.Millisecond)
		q.Add(newItem(5), 100*time.Millisecond)
		wantBatches(t, s, "1", "2 3")
		<-time.After(21 * time.Millisecond)
		wantBatches(t, s, "1", "2 3", "4 5")
		q.Add(newItem(6), time.Hour)
		q.Hurry() // an interval after the last batch
		<-time.After(16 * time.Millisecond)
		wantBatches(t, s, "1", "2 3", "4 5", "6")
	})
}

func TestFlushWaitsForAllItems(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{took: 10 * time.Millisecond}
		q := s.queue(MaxBytes)
		q.Add(newItem(1), 0)
		synctest.Wait()
		q.Add(newItem(2), time.Hour)
		q.Add(newItem(3), time.Hour)
		if err := q.Flush(t.Context()); err != nil {
			t.Errorf("Flush = %v, want nil", err)
		}
		wantBatches(t, s, "1", "2 3")
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		q.Add(newItem(4), time.Hour)
		if err := q.Flush(ctx); !errors.Is(err, event.ErrUnavailable) {
			t.Errorf("Flush with a context that ends = %v, want %v", err, event.ErrUnavailable)
		}
		if err := q.Flush(t.Context()); err != nil {
			t.Errorf("second Flush = %v, want nil", err)
		}
		wantBatches(t, s, "1", "2 3", "4")
	})
}

// An attempt may be stored although it seems to have failed. Only a message of the same bytes shows that.
func TestFailedBatchIsTriedAgainAsItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("no answer")
		s := &store{took: 10 * time.Millisecond, err: failure}
		q := s.queue(MaxBytes)
		q.Add(newItem(1), 0)
		<-time.After(5 * time.Millisecond)
		q.Add(newItem(2), 0)
		if err := q.Flush(t.Context()); !errors.Is(err, failure) {
			t.Errorf("Flush = %v, want %v", err, failure)
		}
		<-time.After(time.Second)
		wantBatches(t, s, "failed")
		if err := q.AwaitReady(t.Context()); err != nil {
			t.Errorf("AwaitReady = %v, want nil", err)
		}
		wantBatches(t, s, "failed", "1", "2")
	})
}

func TestQueueBoundsABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		q := s.queue(2*newItem(1).size() + 1)
		for seq := range int64(5) {
			q.Add(newItem(seq+1), time.Millisecond)
		}

		if err := q.Flush(t.Context()); err != nil {
			t.Errorf("Flush = %v, want nil", err)
		}
		if len(s.batches) < 3 {
			t.Errorf("batches = %q, want at most two items in each", s.batches)
		}
		s = &store{}
		q = s.queue(0)
		q.Add(newItem(1), 0)
		q.Add(newItem(2), 0)
		if err := q.Flush(t.Context()); err != nil {
			t.Errorf("Flush = %v, want nil", err)
		}
		wantBatches(t, s, "1", "2")
	})
}

func TestStoppedQueueStoresNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		q := s.queue(MaxBytes)
		q.Add(newItem(1), time.Hour)
		q.Stop(event.ErrFenced)
		if err := q.Flush(t.Context()); !errors.Is(err, event.ErrFenced) {
			t.Errorf("Flush = %v, want %v", err, event.ErrFenced)
		}
		q.Add(newItem(2), 0)
		q.Hurry()
		<-time.After(time.Second)
		wantBatches(t, s)
	})
}

// A panic must not make Flush wait forever.
func TestPanicOfStoreIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(Options{Store: func([]Item) error { panic("a bug") }, Limit: MaxBytes, Go: func(f func()) bool { go f(); return true }})
		q.Add(newItem(1), time.Hour)
		if err := q.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), "a bug") {
			t.Errorf("Flush = %v, want the panic", err)
		}
	})
}
