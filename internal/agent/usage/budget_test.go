package usage_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"answerd/internal/agent/usage"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/values"
)

func TestParseLimits(t *testing.T) {
	got, err := usage.ParseLimits("cost=5/24h, total_tokens=2000000/7d,cost=0.5/90m")
	if err != nil || len(got) != 3 {
		t.Fatalf("ParseLimits = %v, %v, want 3 limits", got, err)
	}
	for i, want := range []string{"cost=5/24h", "total_tokens=2000000/168h", "cost=0.5/1h30m"} {
		if got[i].String() != want {
			t.Errorf("limit %d = %s, want %s", i, got[i], want)
		}
	}
	for _, text := range []string{"", "cost", "cost=5", "cost=/24h", "cost=x/24h", "cost=0/24h", "cost=-1/24h", "cost=NaN/24h", "cost=1/0h", "cost=1/1s", "cost=1/400d", "cost=1/x",
		"runs=1/24h", "cost=1/24h,", "cost=1/24h,cost=2/1d", strings.TrimSuffix(strings.Repeat("cost=1/1h,", 9), ",")} {
		if got, err := usage.ParseLimits(text); err == nil {
			t.Errorf("ParseLimits(%q) = %v, want an error", text, got)
		}
	}
}

// newMeter returns the Meter of one process.
func newMeter(t *testing.T, store values.Store, limits string) *usage.Meter {
	t.Helper()
	parsed, err := usage.ParseLimits(limits)
	if err != nil {
		t.Fatal(err)
	}
	m, err := usage.New(usage.Options{Limits: parsed, Store: store, Meter: noop.NewMeterProvider().Meter(""), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

var ann = auth.Identity{Issuer: "i", Subject: "ann"}

// spend counts a model call of so many tokens and of that cost.
func spend(t *testing.T, m *usage.Meter, who auth.Identity, tokens int64, cost float64) *usage.SpentError {
	t.Helper()
	return m.Count(t.Context(), m.AccountOf(who), "a", "m", event.Usage{TotalTokens: tokens}, &cost)
}

// Two processes share the budget of a caller, until the period that began with the first use ends.
func TestBudgetIsSharedUntilItsPeriodEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store values.Memory
		a, b := newMeter(t, &store, "total_tokens=100/24h"), newMeter(t, &store, "total_tokens=100/24h")
		<-time.After(5 * time.Hour) // the period has not begun
		begun := time.Now()
		if spent := spend(t, a, ann, 60, 0); spent != nil {
			t.Errorf("Count of 60 of 100 = %v, want nil", spent)
		}
		<-time.After(time.Hour)
		if err := b.Check(t.Context(), b.AccountOf(ann)); err != nil {
			t.Errorf("Check after 60 of 100 = %v, want nil", err)
		}
		spent := spend(t, b, ann, 60, 0)
		if spent == nil || spent.Used != 120 || !spent.Until.Equal(begun.Add(24*time.Hour).Truncate(time.Millisecond)) {
			t.Fatalf("Count of 120 of 100 = %+v, want it spent until a day after the first use", spent)
		}

		for _, m := range []*usage.Meter{a, b} {
			err := m.Check(t.Context(), m.AccountOf(ann))
			if got, ok := errors.AsType[*usage.SpentError](err); !ok || got.RetryAfter < 23*time.Hour || got.RetryAfter > 23*time.Hour+time.Second || !errors.Is(err, usage.ErrSpent) {
				t.Errorf("Check = %v, want the budget spent for another 23 h", err)
			}
			if err := m.Check(t.Context(), m.AccountOf(auth.Identity{Issuer: "i", Subject: "bob"})); err != nil {
				t.Errorf("Check of another caller = %v, want nil", err)
			}
		}

		<-time.After(23 * time.Hour)
		if err := a.Check(t.Context(), a.AccountOf(ann)); err != nil {
			t.Errorf("Check in the next period = %v, want nil", err)
		}
	})
}

// During a rolling update some processes have a limit that others have not.
func TestBudgetOfProcessesWithOtherLimitsIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store values.Memory
		earlier, updated := newMeter(t, &store, "total_tokens=100/24h"), newMeter(t, &store, "total_tokens=100/7d")
		spend(t, earlier, ann, 60, 0)
		spend(t, updated, ann, 30, 0)
		if spent := spend(t, earlier, ann, 30, 0); spent == nil || spent.Used != 120 {
			t.Errorf("Count of 120 of 100 in a day = %+v, want the budget spent with 120", spent)
		}
		<-time.After(25 * time.Hour) // the day has ended, the week has not
		if err := earlier.Check(t.Context(), earlier.AccountOf(ann)); err != nil {
			t.Errorf("Check in the next day = %v, want nil", err)
		}
		if spent := spend(t, updated, ann, 40, 0); spent == nil || spent.Used != 100 {
			t.Errorf("Count of 100 of 100 in a week = %+v, want the budget spent with 100", spent)
		}
	})
}

func TestBudgetOfAGroupIsOne(t *testing.T) {
	var store values.Memory
	m := newMeter(t, &store, "cost=1/24h")
	spend(t, m, auth.Identity{Issuer: "i", Subject: "ann", Group: "blue"}, 1, 2)
	if err := m.Check(t.Context(), m.AccountOf(auth.Identity{Issuer: "i", Subject: "bob", Group: "blue"})); !errors.Is(err, usage.ErrSpent) {
		t.Errorf("Check of a caller of the same group = %v, want %v", err, usage.ErrSpent)
	}
	for _, other := range []auth.Identity{{Issuer: "i", Subject: "ann"}, {Issuer: "i", Subject: "blue"}, {Issuer: "i", Subject: "ann", Group: "red"}} {
		if err := m.Check(t.Context(), m.AccountOf(other)); err != nil {
			t.Errorf("Check of %+v = %v, want nil", other, err)
		}
	}
}

// The refusal names the limit that lasts longest.
func TestBudgetsOfSeveralPeriods(t *testing.T) {
	var store values.Memory
	m := newMeter(t, &store, "total_tokens=10/1h,total_tokens=20/24h,cost=1/24h")
	for i, want := range []string{"total_tokens=10/1h", "total_tokens=20/24h"} {
		if spent := spend(t, m, ann, 10, 0.1); spent == nil || spent.Limit.String() != want {
			t.Errorf("Count %d = %v, want %s", i, spent, want)
		}
	}
}

// No use is lost when many runs of many processes store theirs at the same time.
func TestBudgetCountsConcurrentUse(t *testing.T) {
	var store values.Memory
	const processes, runs, calls = 4, 8, 20
	var all sync.WaitGroup
	for range processes {
		m := newMeter(t, &store, "total_tokens=1000000/24h")
		for range runs {
			all.Go(func() {
				for range calls {
					spend(t, m, ann, 1, 0)
				}
			})
		}
		defer m.Flush(t.Context())
	}

	all.Wait()
	m := newMeter(t, &store, "total_tokens=641/24h")
	if err := m.Check(t.Context(), m.AccountOf(ann)); err != nil {
		t.Errorf("Check with a limit of one more = %v, want nil", err)
	}
	m = newMeter(t, &store, "total_tokens=640/24h")
	if err := m.Check(t.Context(), m.AccountOf(ann)); !errors.Is(err, usage.ErrSpent) {
		t.Errorf("Check with a limit of %d = %v, want %v", processes*runs*calls, err, usage.ErrSpent)
	}
}

// brokenStore fails while it is broken.
type brokenStore struct {
	values.Memory
	broken bool
}

func (s *brokenStore) Value(ctx context.Context, k values.Key) ([]byte, uint64, error) {
	if s.broken {
		return nil, 0, errors.New("broken by the test")
	}
	return s.Memory.Value(ctx, k)
}

// While the store does not work, nobody starts a run; what was used meanwhile counts afterwards.
func TestBudgetWithoutAStoreRefusesRuns(t *testing.T) {
	store := &brokenStore{}
	m := newMeter(t, store, "total_tokens=100/24h")
	store.broken = true
	if spent := spend(t, m, ann, 60, 0); spent != nil {
		t.Errorf("Count of 60 of 100 = %v, want nil", spent)
	}
	if spent := spend(t, m, ann, 60, 0); spent == nil {
		t.Error("Count of 120 of 100 = nil, want the budget spent, from memory")
	}
	if err := m.Check(t.Context(), m.AccountOf(ann)); !errors.Is(err, event.ErrUnavailable) {
		t.Errorf("Check without the store = %v, want %v", err, event.ErrUnavailable)
	}
	store.broken = false
	other := newMeter(t, store, "total_tokens=100/24h")
	if err := m.Check(t.Context(), m.AccountOf(ann)); !errors.Is(err, usage.ErrSpent) {
		t.Errorf("Check of the process that has counted = %v, want %v", err, usage.ErrSpent)
	}
	m.Flush(t.Context())
	if err := other.Check(t.Context(), other.AccountOf(ann)); !errors.Is(err, usage.ErrSpent) {
		t.Errorf("Check of another process after Flush = %v, want %v", err, usage.ErrSpent)
	}
}

// slowStore stores a value when the test lets it, and calls read after each value that it has read.
type slowStore struct {
	values.Memory
	store chan struct{}
	read  func()
}

func (s *slowStore) SetValue(ctx context.Context, k values.Key, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	<-s.store
	return s.Memory.SetValue(ctx, k, value, revision, ttl)
}

func (s *slowStore) Value(ctx context.Context, k values.Key) ([]byte, uint64, error) {
	value, revision, err := s.Memory.Value(ctx, k)
	s.read()
	return value, revision, err
}

// What a run has used counts also while it is being stored: a check that reads the store before that, and goes on
// after it, admits no further run.
func TestBudgetCheckCountsUseThatIsBeingStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slowStore{store: make(chan struct{}), read: func() {}}
		m := newMeter(t, store, "total_tokens=100/24h")
		counted := make(chan struct{})
		go func() { spend(t, m, ann, 100, 0); close(counted) }()
		synctest.Wait() // it waits to be stored
		store.read = func() { close(store.store); <-counted }
		if err := m.Check(t.Context(), m.AccountOf(ann)); !errors.Is(err, usage.ErrSpent) {
			t.Errorf("Check while 100 of 100 are stored = %v, want %v", err, usage.ErrSpent)
		}
		store.read = func() {}
		if err := m.Check(t.Context(), m.AccountOf(ann)); !errors.Is(err, usage.ErrSpent) {
			t.Errorf("Check after 100 of 100 = %v, want %v", err, usage.ErrSpent)
		}
	})
}
