package eventtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"answerd/internal/event"
)

// listThreads returns the ids of the threads on all pages of a filter.
func listThreads(t *testing.T, log event.Log, f event.ThreadFilter) (ids []string) {
	t.Helper()
	for pages := 0; ; pages++ {
		page, err := log.ListThreads(t.Context(), f)
		noError(t, err)
		if len(page.Threads) > f.PageSize() || pages > 100 {
			t.Fatalf("page %d has %d threads, want at most %d, and at most 100 pages", pages, len(page.Threads), f.PageSize())
		}
		for _, thread := range page.Threads {
			ids = append(ids, thread.ID)
		}
		if page.Next == "" {
			return ids
		}
		f.After = page.Next
	}
}

// wantThreads checks the ids of the threads on all pages of a filter.
func wantThreads(t *testing.T, log event.Log, f event.ThreadFilter, want ...string) {
	t.Helper()
	if got := listThreads(t, log, f); !slices.Equal(got, want) {
		t.Errorf("threads of %+v = %q, want %q", f, got, want)
	}
}

// wantTurns checks the data of all turns of a thread, oldest first.
func wantTurns(t *testing.T, log event.Log, owner event.Owner, thread string, want ...string) {
	t.Helper()
	if got := readTurns(t, log, owner, thread, 10, 1<<20); !slices.Equal(got, want) {
		t.Errorf("turns of thread %q of %+v = %q, want %q", thread, owner, got, want)
	}
}

// readTurns returns the data of all turns of a thread, oldest first. It reads from the newest page to the oldest.
func readTurns(t *testing.T, log event.Log, owner event.Owner, thread string, limit, maxBytes int) (data []string) {
	t.Helper()
	before := int64(0)
	for pages := 0; ; pages++ {
		page, err := log.Turns(t.Context(), owner, thread, before, limit, maxBytes)
		noError(t, err)
		size := 0
		var texts []string
		for i, turn := range page.Turns {
			size += len(turn.Data)
			texts = append(texts, string(turn.Data))
			if i > 0 && turn.Number <= page.Turns[i-1].Number {
				t.Fatalf("turn %d has number %d after %d, want a greater one", i, turn.Number, page.Turns[i-1].Number)
			}
			if turn.Time.IsZero() {
				t.Errorf("turn %d has no time, want one", i)
			}
		}
		if len(page.Turns) > limit || len(page.Turns) > 1 && size > maxBytes || pages > 1000 {
			t.Fatalf("page %d has %d turns of %d bytes, want at most %d of %d, and at most 1000 pages", pages, len(page.Turns), size, limit, maxBytes)
		}
		data = append(texts, data...)
		if page.Before == 0 {
			return data
		}
		if page.Before != page.Turns[0].Number {
			t.Fatalf("Before = %d, want %d, the number of the first turn", page.Before, page.Turns[0].Number)
		}
		before = page.Before
	}
}

func testThreadsAreListedByUpdate(t *testing.T, log event.Log) {
	var want []string
	for i := range 20 {
		id := fmt.Sprintf("thr_%02d", i)
		addTurn(t, log, ada, id, "run_"+id, "x")
		want = append([]string{id}, want...)
		if page, err := log.ListThreads(t.Context(), event.ThreadFilter{Owner: ada, Limit: 1}); err != nil || len(page.Threads) != 1 || !sameThread(page.Threads[0], getThread(t, log, ada, id)) {
			t.Fatalf("ListThreads = %+v, %v, want %s, which was added", page, err, id)
		}
	}

	addTurn(t, log, bob, "thr_bob", "run_bob", "x")
	for _, limit := range []int{0, 1, 7, 20, 1000} {
		wantThreads(t, log, event.ThreadFilter{Owner: ada, Limit: limit}, want...)
	}

	// Renaming a thread does not change its place, but the beginning and the end of a turn do.
	noError(t, errorOf(log.RenameThread(t.Context(), ada, "thr_03", "renamed")))
	beginTurn(t, log, ada, "thr_05", "run_a")
	beginTurn(t, log, ada, "thr_07", "run_b")
	endTurn(t, log, ada, "thr_05", "run_a", []byte("y"))
	first, err := log.ListThreads(t.Context(), event.ThreadFilter{Owner: ada, Limit: 3})
	noError(t, err)
	noError(t, log.DeleteThread(t.Context(), ada, first.Threads[2].ID)) // the thread that the next page's position refers to
	rest := listThreads(t, log, event.ThreadFilter{Owner: ada, Limit: 5, After: first.Next})
	want = slices.DeleteFunc(want, func(id string) bool { return id == "thr_05" || id == "thr_07" || id == "thr_19" })
	if got := []string{first.Threads[0].ID, first.Threads[1].ID, first.Threads[2].ID}; !slices.Equal(got, []string{"thr_05", "thr_07", "thr_19"}) || !slices.Equal(rest, want) {
		t.Errorf("ListThreads = %v and then %v, want thr_05, thr_07 and thr_19, and then %v", got, rest, want)
	}
	if got := listThreads(t, log, event.ThreadFilter{Owner: event.Owner{Subject: "nobody"}}); len(got) > 0 {
		t.Errorf("threads of nobody = %v, want none", got)
	}

	for _, owner := range []event.Owner{ada, {Subject: "nobody"}} {
		wantError(t, errorOf(log.ListThreads(t.Context(), event.ThreadFilter{Owner: owner, After: "no position!"})), event.ErrInvalidPosition, "ListThreads with a malformed After")
	}
}

func testThreadsAreFoundByTitle(t *testing.T, log event.Log) {
	for i, title := range []string{"Orders of May", "Überweisung", "ORDERS of June", "Invoices 100%"} {
		id := fmt.Sprintf("thr_%d", i)
		noError(t, errorOf(log.BeginTurn(t.Context(), ada, id, "run_"+id, "", title)))
	}
	for query, want := range map[string][]string{
		"":            {"thr_3", "thr_2", "thr_1", "thr_0"},
		"orders":      {"thr_2", "thr_0"},
		"Of June":     {"thr_2"},
		"überweisung": {"thr_1"},
		"%":           {"thr_3"},
		".*":          nil,
	} {
		wantThreads(t, log, event.ThreadFilter{Owner: ada, Query: query, Limit: 1}, want...)
	}
}

func testTurnsAreReadInPages(t *testing.T, log event.Log) {
	var want []string
	for i := range 30 {
		data := fmt.Sprintf("%02d", i) + strings.Repeat("x", i)
		addTurn(t, log, ada, "thr_a", fmt.Sprintf("run_%d", i), data)
		addTurn(t, log, ada, "thr_b", fmt.Sprintf("run_b%d", i), "other")
		want = append(want, data)
	}
	for _, limit := range []int{1, 7, 30, 1000} {
		for _, maxBytes := range []int{0, 31, 100, 1 << 20} {
			if got := readTurns(t, log, ada, "thr_a", limit, maxBytes); !slices.Equal(got, want) {
				t.Errorf("turns in pages of %d and %d bytes = %q, want %q", limit, maxBytes, got, want)
			}
		}
	}
	page, err := log.Turns(t.Context(), ada, "thr_a", 0, 3, 64)
	if err != nil || len(page.Turns) != 2 || page.Turns[1].Run != "run_29" {
		t.Errorf("Turns within 64 bytes = %+v, %v, want the last two", page, err)
	}
	addTurn(t, log, ada, "thr_c", "run_c", "x")
	if page, err := log.Turns(t.Context(), ada, "thr_c", 1, 3, 64); err != nil || len(page.Turns) != 0 || page.Before != 0 {
		t.Errorf("Turns before the first one = %+v, %v, want none", page, err)
	}
	beginTurn(t, log, ada, "thr_d", "run_d")
	if page, err := log.Turns(t.Context(), ada, "thr_d", 0, 3, 64); err != nil || len(page.Turns) != 0 || page.Before != 0 {
		t.Errorf("Turns of a thread without turns = %+v, %v, want none", page, err)
	}
}
