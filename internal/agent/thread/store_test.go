package thread

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"answerd/internal/event"
	"answerd/internal/event/memory"
)

// A question that follows a turn gets that turn and those before it which it continues, also if they are on other pages
// of the log: the newest turn may continue an old one, and the turn may be on the last page that Read searches.
func TestReadFollowsABranchToOtherPages(t *testing.T) {
	large := strings.Repeat("x", 400<<10) // two such turns are a page
	for _, test := range []struct {
		name       string
		turns      []Turn // of run_1, run_2 …
		damaged    int    // the number of the run whose turn cannot be decoded, or 0
		after      string
		want       string // the questions
		wantNewest bool
	}{
		{"newest", []Turn{{Question: "1"}, {Question: large}, {Question: large}, {Question: large}, {Question: "5", After: "run_1"}}, 0, "run_5", "1 5", true},
		{"first turn of the last page", make([]Turn, maxPages*maxTurns+1), 0, "run_2", " ", false},
		// The damaged turn may have continued any turn, so the branch ends there.
		{"damaged", []Turn{{Question: "1"}, {Question: "2"}, {Question: "3"}, {Question: "4", After: "run_2"}}, 2, "run_4", "4", true},
	} {
		log := memory.New(memory.Options{})
		defer log.Close()
		s := Store{Log: log, Logger: slog.New(slog.DiscardHandler)}
		owner := event.Owner{Subject: "ada"}
		for i, turn := range test.turns {
			run := event.Run{ID: fmt.Sprintf("run_%d", i+1), Owner: owner, ThreadID: "thr_a"}
			if _, err := s.Begin(t.Context(), run, "?"); err != nil {
				t.Fatal(err)
			}
			data := turn.Encode()
			if i+1 == test.damaged {
				data = []byte("{}")
			}
			if err := log.EndTurn(t.Context(), owner, "thr_a", run.ID, data); err != nil {
				t.Fatal(err)
			}
		}
		thread, err := s.Get(t.Context(), owner, "thr_a")
		if err != nil {
			t.Fatal(err)
		}
		after := test.after
		turns, err := s.Read(t.Context(), thread, &after)
		var questions []string
		for _, turn := range turns {
			questions = append(questions, turn.Question)
		}
		if got := strings.Join(questions, " "); got != test.want || err != nil || (after == "") != test.wantNewest {
			t.Errorf("%s: got %d turns, after %q, %v, want the questions %q, newest %t", test.name, len(turns), after, err, test.want, test.wantNewest)
		}
	}
}
