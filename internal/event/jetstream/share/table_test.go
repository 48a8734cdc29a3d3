package share

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"answerd/internal/event"
)

// listedRun is a run as a log has it.
type listedRun struct {
	owner string
	bytes int64
	ended time.Duration // before now; 0 if it has not ended
	gone  bool          // the Table does not know that it was deleted
	moved bool          // it has an event that the Table does not know
}

func TestTableEvictsTheRunsOfTheLargestOwnerFirst(t *testing.T) {
	for _, c := range []struct {
		name    string
		runs    []listedRun // those with lower numbers have older events
		limit   int64
		need    int // deletions
		want    []int
		outcome Outcome
	}{
		{"no owner is above their share", []listedRun{{"a", 5, 10, false, false}, {"b", 5, 10, false, false}}, 10, 1, nil, Nothing},
		{"the run that ended first", []listedRun{{"b", 1, 90, false, false}, {"a", 5, 20, false, false}, {"a", 5, 10, false, false}}, 10, 1, []int{1}, Enough},
		{"until the owner is not the largest", []listedRun{{"a", 7, 40, false, false}, {"a", 5, 30, false, false}, {"b", 9, 20, false, false}, {"b", 1, 10, false, false}, {"c", 1, 90, false, false}}, 12, 3, []int{0, 2, 1}, Enough},
		{"until no owner is above their share", []listedRun{{"a", 7, 40, false, false}, {"a", 5, 30, false, false}, {"b", 5, 20, false, false}}, 10, 3, []int{0}, Nothing},
		{"an open run is kept", []listedRun{{"a", 9, 0, false, false}, {"a", 1, 10, false, false}, {"b", 1, 90, false, false}}, 10, 2, []int{1}, Nothing},
		{"a run that just ended is kept", []listedRun{{"a", 9, 4, false, false}, {"a", 9, 3, false, false}, {"b", 1, 90, false, false}}, 10, 1, nil, Waiting},
		{"the runs of the only owner", []listedRun{{"a", 9, 4, false, false}, {"a", 9, 3, false, false}}, 10, 1, nil, Nothing},
		{"a run that others deleted counts no more", []listedRun{{"a", 9, 50, true, false}, {"a", 4, 40, false, false}, {"b", 1, 90, false, false}}, 10, 1, nil, Nothing},
		{"a run with unknown events", []listedRun{{"a", 9, 50, false, true}, {"a", 4, 40, false, false}, {"b", 1, 90, false, false}}, 10, 1, []int{1}, Enough},
		{"runs are counted", []listedRun{{"a", 99, 50, false, false}, {"b", 1, 40, false, false}, {"b", 1, 30, false, false}}, 0, 1, []int{1}, Enough},
	} {
		table := New(Source{})
		now := time.Now()

		for i, r := range c.runs {
			id := fmt.Sprint(i)
			table.setOwnerLocked(id, r.owner)
			table.addLocked(id, true, uint64(i+1), r.bytes)
		}

		var got []int
		outcome, err := table.Evict(t.Context(), Eviction{
			Limit: c.limit, EndedBefore: now.Add(-5),
			Ended: func(_ context.Context, id, _ string) (ended time.Time, last uint64, err error) {
				i := numberOf(t, id)
				switch r := c.runs[i]; {
				case r.gone:
					return ended, 0, event.ErrGone
				case r.moved:
					return now.Add(-r.ended), 99, nil
				case r.ended > 0:
					return now.Add(-r.ended), uint64(i + 1), nil
				}
				return ended, uint64(i + 1), nil
			},
			Delete: func(_ context.Context, id, owner string) error {
				if i := numberOf(t, id); c.runs[i].owner != owner {
					t.Errorf("%s: run %s is deleted as one of %s, want %s", c.name, id, owner, c.runs[i].owner)
				}
				got = append(got, numberOf(t, id))
				return nil
			},
			Enough: func(context.Context) (bool, error) { return len(got) == c.need, nil },
		})
		if err != nil || outcome != c.outcome || !slices.Equal(got, c.want) {
			t.Errorf("%s: Evict deletes %v, %v, %v, want %v, %v", c.name, got, outcome, err, c.want, c.outcome)
		}
	}
}

func numberOf(t *testing.T, id string) (i int) {
	t.Helper()
	if _, err := fmt.Sscan(id, &i); err != nil {
		t.Fatal(err)
	}
	return i
}

// An error ends Evict. What was deleted is not counted any more.
func TestTableForgetsWhatItDeletedBeforeAnError(t *testing.T) {
	table := New(Source{})
	for i := range 4 {
		id := fmt.Sprint(i)
		table.addLocked(id, true, uint64(i+1), 10)
		table.setOwnerLocked(id, fmt.Sprint("owner", i%2))
	}

	failed, deleted := errors.New("failed"), 0
	_, err := table.Evict(t.Context(), Eviction{
		Limit: 5, EndedBefore: time.Now(),
		Ended: func(_ context.Context, id, _ string) (time.Time, uint64, error) {
			return time.Now().Add(-time.Hour), uint64(numberOf(t, id) + 1), nil
		},
		Delete: func(context.Context, string, string) error {
			if deleted == 3 {
				return failed
			}
			deleted++
			return nil
		},
		Enough: func(context.Context) (bool, error) { return false, nil },
	})
	if !errors.Is(err, failed) || len(table.runs) != 1 || len(table.owners) != 1 || table.total != 10 {
		t.Errorf("Evict = %v, leaves %d runs of %d owners with %d bytes, want %v, 1 run of 1 owner with 10 bytes", err, len(table.runs), len(table.owners), table.total, failed)
	}
}
