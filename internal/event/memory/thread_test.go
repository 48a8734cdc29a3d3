package memory_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/memory"
)

func TestThreads(t *testing.T) {
	eventtest.Threads(t, func(*testing.T) event.Log { return memory.New(memory.Options{}) })
}

func beginTurn(t *testing.T, log event.Log, subject, thread, run string) {
	t.Helper()
	if _, err := log.BeginTurn(t.Context(), event.Owner{Subject: subject}, thread, run, "", ""); err != nil {
		t.Fatal(err)
	}
}

func addTurn(t *testing.T, log event.Log, subject, thread, run string, size int) {
	t.Helper()
	beginTurn(t, log, subject, thread, run)
	if err := log.EndTurn(t.Context(), event.Owner{Subject: subject}, thread, run, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
}

// threadsOf returns the ids of an owner's newest threads, the newest one first.
func threadsOf(t *testing.T, log event.Log, subject string) (ids []string) {
	t.Helper()
	page, err := log.ListThreads(t.Context(), event.ThreadFilter{Owner: event.Owner{Subject: subject}, Limit: event.MaxThreadsPage})
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range page.Threads {
		ids = append(ids, thread.ID)
	}
	return ids
}

func TestThreadIsGoneAfterItsRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := memory.New(memory.Options{Retention: time.Hour})
		owner := event.Owner{Subject: "ada"}
		addTurn(t, log, "ada", "thr_old", "run_1", 1)
		addTurn(t, log, "ada", "thr_used", "run_2", 1)
		beginTurn(t, log, "ada", "thr_active", "run_3")
		<-time.After(time.Hour / 2)
		addTurn(t, log, "ada", "thr_used", "run_4", 1)
		<-time.After(time.Hour/2 - 1)
		if got, want := threadsOf(t, log, "ada"), []string{"thr_used", "thr_active", "thr_old"}; !slices.Equal(got, want) {
			t.Errorf("threads a nanosecond before the retention has passed are %v, want %v", got, want)
		}
		<-time.After(1)
		if got, want := threadsOf(t, log, "ada"), []string{"thr_used", "thr_active"}; !slices.Equal(got, want) {
			t.Errorf("threads when the retention of one has passed are %v, want %v", got, want)
		}
		if _, err := log.Thread(t.Context(), owner, "thr_old"); !errors.Is(err, event.ErrNotFound) {
			t.Errorf("Thread after its retention = %v, want %v", err, event.ErrNotFound)
		}
		if _, err := log.Turns(t.Context(), owner, "thr_old", 0, 1, 1); !errors.Is(err, event.ErrNotFound) {
			t.Errorf("Turns after the retention = %v, want %v", err, event.ErrNotFound)
		}
		if begun, err := log.BeginTurn(t.Context(), owner, "thr_old", "run_5", "", "new"); err != nil || begun.Turns != 0 || begun.Title != "new" {
			t.Errorf("BeginTurn after the retention = %+v, %v, want a new thread", begun, err)
		}

		// A run may wait for a person for seven days.
		<-time.After(6 * 24 * time.Hour)
		if err := log.EndTurn(t.Context(), owner, "thr_active", "run_3", []byte("x")); err != nil {
			t.Errorf("EndTurn of a run that was active for six days = %v, want no error", err)
		}
		beginTurn(t, log, "ada", "thr_active", "run_6")
		<-time.After(7 * 24 * time.Hour)
		if got := threadsOf(t, log, "ada"); len(got) > 0 {
			t.Errorf("threads after another seven days are %v, want none", got)
		}
	})
}

func TestThreadsUseAQuarterOfTheLog(t *testing.T) {
	const maxBytes = 1 << 20
	log := memory.New(memory.Options{MaxBytes: maxBytes})
	createRun(t, log, "run_ended", event.Start{}, event.FinalAnswer{})
	addTurn(t, log, "quiet", "thr_quiet", "run_q", 10<<10)
	beginTurn(t, log, "quiet", "thr_active", "run_a")

	for i := range 100 {
		addTurn(t, log, "busy", fmt.Sprintf("thr_%d", i), fmt.Sprintf("run_%d", i), 10<<10)
	}

	if got := threadsOf(t, log, "quiet"); !slices.Equal(got, []string{"thr_active", "thr_quiet"}) {
		t.Errorf("threads of the owner below its share are %v, want all", got)
	}
	if got := threadsOf(t, log, "busy"); len(got) < 15 || len(got) > 25 || got[0] != "thr_99" || got[1] != "thr_98" {
		t.Errorf("threads of the owner above its share are %v, want the newest ones of a quarter of the log", got)
	}
	if _, err := log.Run(t.Context(), "run_ended"); err != nil {
		t.Errorf("Run of a run that ended before = %v, want no error", err)
	}

	for i := range 10 { // one thread that needs all the space
		addTurn(t, log, "busy", "thr_large", fmt.Sprintf("run_l%d", i), 100<<10)
	}

	if got := threadsOf(t, log, "busy"); !slices.Equal(got, []string{"thr_large"}) {
		t.Errorf("threads of the owner are %v, want the large one", got)
	}
	page, err := log.Turns(t.Context(), event.Owner{Subject: "busy"}, "thr_large", 0, 10, 1<<30)
	if err != nil || len(page.Turns) < 1 || len(page.Turns) > 2 || page.Turns[len(page.Turns)-1].Run != "run_l9" || page.Before != 0 {
		t.Errorf("Turns of the large thread = %d turns, before %d, %v, want its last ones", len(page.Turns), page.Before, err)
	}
	if thread, err := log.Thread(t.Context(), event.Owner{Subject: "busy"}, "thr_large"); err != nil || thread.Turns != 10 {
		t.Errorf("Thread = %+v, %v, want all turns counted", thread, err)
	}
}

// Runs whose executors never end their turns must not make the threads exceed their share.
func TestActiveThreadsAreDroppedWhenAllAreActive(t *testing.T) {
	log := memory.New(memory.Options{MaxBytes: 256 << 10})
	for i := range 200 {
		beginTurn(t, log, "ada", fmt.Sprintf("thr_%d", i), fmt.Sprintf("run_%d", i))
	}
	if got := threadsOf(t, log, "ada"); len(got) < 40 || len(got) > 64 || got[0] != "thr_199" {
		t.Errorf("got %d threads of 200, want the newest ones of 64 KiB", len(got))
	}
}
