package record_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent/record"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/mcp/catalog"
	"answerd/internal/values"
)

// definitionLog is a log that counts the bytes of the definitions in it.
type definitionLog struct {
	event.Log
	fail   chan struct{} // while it is open, SetValue waits for it, and then fails
	stored atomic.Int64
}

func (l *definitionLog) SetValue(ctx context.Context, k values.Key, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	select {
	case <-l.fail:
	default:
		<-l.fail
		return 0, errors.New("broken by the test")
	}
	l.stored.Add(int64(len(value)))
	return l.Log.SetValue(ctx, k, value, revision, ttl)
}

// newLog returns a log with the run run_a.
func newLog(t *testing.T) event.Log {
	t.Helper()
	log := memory.New(memory.Options{})
	if err := log.Create(t.Context(), event.Run{ID: "run_a", Created: log.Now()}); err != nil {
		t.Fatal(err)
	}
	return log
}

// largeTools returns n tools whose definitions have some 90 KiB each.
func largeTools(n int) *record.ToolList {
	var all []catalog.Tool
	for i := range n {
		all = append(all, catalog.Tool{Name: fmt.Sprintf("tool_%d", i), Server: "s", Description: strings.Repeat("x", 90<<10)})
	}
	return record.NewToolList(all)
}

// Two runs that fail to store the same definition do not make room for more definitions than the 4 MiB of a process.
func TestRecorderStoresFewDefinitionsAlsoAfterConcurrentFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &definitionLog{Log: newLog(t), fail: make(chan struct{})}
		r := record.New(record.Options{Log: log, Retention: time.Second})
		failures := make(chan error, 2)
		for range cap(failures) {
			go func() { failures <- r.Begin(t.Context(), "run_a", record.Beginning{Tools: largeTools(1)}) }()
			<-time.After(2 * time.Second) // so that the second run stores the definition again
		}

		close(log.fail)
		for range cap(failures) {
			if err := <-failures; err == nil {
				t.Error("Begin with a log that fails = nil, want an error")
			}
		}

		if err := r.Begin(t.Context(), "run_a", record.Beginning{Tools: largeTools(60)}); err == nil {
			t.Error("Begin with 5 MiB of definitions = nil, want an error")
		}
		if got, want := log.stored.Load(), int64(4<<20); got > want || got < want-100<<10 {
			t.Errorf("bytes of stored definitions = %d, want %d at most, and nearly that", got, want)
		}
	})
}

// A process may run for weeks with servers whose definitions change often, beside some that never change. The former
// definitions expire, and must not count forever.
func TestRecorderForgetsExpiredDefinitionsBesideOneInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record.New(record.Options{Log: newLog(t), Retention: time.Second})
		unchanged := largeTools(1)
		for i := range 100 {
			changed := catalog.Tool{Name: fmt.Sprintf("changed_%d", i), Server: "s", Description: strings.Repeat("x", 90<<10)}
			for _, tools := range []*record.ToolList{unchanged, record.NewToolList([]catalog.Tool{changed})} {
				if err := r.Begin(t.Context(), "run_a", record.Beginning{Tools: tools}); err != nil {
					t.Fatalf("Begin after %d changes of a definition = %v, want no error", i, err)
				}
			}
			<-time.After(time.Second)
		}
	})
}
