package threadindex_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"answerd/internal/event"
	"answerd/internal/event/threadindex"
)

// TestIndexAnswersAsItsModel compares an index with a list, after random changes.
func TestIndexAnswersAsItsModel(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var x threadindex.Index
	var model []threadindex.Entry // in no order
	ada := event.Owner{Subject: "ada"}
	for step := range 2000 {
		owner, id := event.Owner{Subject: []string{"ada", "bob"}[random.IntN(2)]}, fmt.Sprint("thr_", random.IntN(40))
		isSameThread := func(e threadindex.Entry) bool { return e.Owner == owner && e.ID == id }
		i := slices.IndexFunc(model, isSameThread)
		if got, ok := x.Get(owner, id); ok != (i >= 0) || ok && got != model[i] {
			t.Fatalf("step %d: Get = %+v, %v, want what the model has at %d", step, got, ok, i)
		}

		e := threadindex.Entry{Thread: event.Thread{Owner: owner, ID: id, Title: fmt.Sprint("Title ", random.IntN(5))}, Order: uint64(step + 1)}
		switch n := random.IntN(10); {
		case n < 3:
			x.Remove(owner, id)
			model = slices.DeleteFunc(model, isSameThread)
		case n < 5 && i >= 0: // a new title at the same place
			e.Order = model[i].Order
			fallthrough
		default:
			if n == 9 { // another process was slower
				e.Order = uint64(random.IntN(step+1))<<32 + uint64(step)
			}
			x.Put(e)
			model = append(slices.DeleteFunc(model, isSameThread), e)
		}
		if x.Len() != len(model) {
			t.Fatalf("step %d: Len = %d, want %d", step, x.Len(), len(model))
		}
		f := event.ThreadFilter{Owner: ada, Query: []string{"", "title 3"}[step%2], Limit: 1 + random.IntN(8)}
		if got, want := listPages(t, &x, f), listModel(model, f); !slices.Equal(got, want) {
			t.Fatalf("step %d: pages have %v, want %v", step, got, want)
		}
	}
}

// listPages returns the ids on all pages of a filter, without the thread thr_7, which is not kept.
func listPages(t *testing.T, x *threadindex.Index, f event.ThreadFilter) (ids []string) {
	t.Helper()
	for {
		page, err := x.Page(f, func(t event.Thread) bool { return t.ID != "thr_7" })
		if err != nil || len(page.Threads) > f.PageSize() {
			t.Fatalf("Page = %d threads, %v, want at most %d", len(page.Threads), err, f.PageSize())
		}
		for _, thread := range page.Threads {
			ids = append(ids, thread.ID)
		}
		f.After = page.Next
		if f.After == "" {
			return ids
		}
	}
}

func listModel(model []threadindex.Entry, f event.ThreadFilter) (ids []string) {
	sorted := slices.SortedFunc(slices.Values(model), func(a, b threadindex.Entry) int {
		if a.Order > b.Order {
			return -1
		}
		return 1
	})
	for _, e := range sorted {
		if e.Owner == f.Owner && e.ID != "thr_7" && strings.Contains(strings.ToLower(e.Title), f.Query) {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

func TestIndexRefusesMalformedPositions(t *testing.T) {
	var x threadindex.Index
	for _, after := range []string{"no position!", "-1", " "} {
		if _, err := x.Page(event.ThreadFilter{After: after}, nil); !errors.Is(err, event.ErrInvalidPosition) {
			t.Errorf("Page after %q = %v, want %v", after, err, event.ErrInvalidPosition)
		}
	}
}
