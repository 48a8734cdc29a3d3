package threads

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

// A process knows the heads that it has written, so only those of other processes are read.
func TestFollowReadsWhatOtherProcessesWrote(t *testing.T) {
	pos, from := uint64(0), uint64(0)
	s := New(Server{
		Now: time.Now,
		Publish: func(context.Context, string, *nats.Msg, uint64) (uint64, error) {
			pos++
			return pos, nil
		},
		IsFull: func(error) bool { return false },
		ReadFrom: func(_ context.Context, _, _ string, first uint64) ([]Message, bool, error) {
			from = first
			return nil, false, nil
		},
	}, time.Hour, slog.New(slog.DiscardHandler))

	begin := func(id string) {
		t.Helper()
		if _, err := s.BeginTurn(t.Context(), event.Owner{Subject: "ada"}, id, "run_a", "", "?"); err != nil {
			t.Fatalf("BeginTurn = %v, want no error", err)
		}
	}

	poll := func(want uint64) {
		t.Helper()
		if err := s.poll(t.Context()); err != nil || from != want {
			t.Errorf("poll reads from %d, %v, want from %d", from, err, want)
		}
	}

	begin("thr_aaaaaaaaaaaaaaaaaaaaaaaaaa")
	begin("thr_baaaaaaaaaaaaaaaaaaaaaaaaa")
	poll(3)
	pos++ // another process
	begin("thr_caaaaaaaaaaaaaaaaaaaaaaaaa")
	poll(3)
	if len(s.ownWrites) != 1 {
		t.Errorf("%d positions are kept, want that of the third thread", len(s.ownWrites))
	}
}

// Load forgets the heads that this process has written, so poll must not skip them.
func TestLoadReadsWhatThisProcessWrote(t *testing.T) {
	pos := uint64(1) // another process has written that
	s := New(Server{
		Now: time.Now,
		Publish: func(context.Context, string, *nats.Msg, uint64) (uint64, error) {
			pos++
			return pos, nil
		},
		IsFull:   func(error) bool { return false },
		Usage:    func(context.Context, string) (int64, int64, error) { return 0, 1, nil },
		ReadFrom: func(context.Context, string, string, uint64) ([]Message, bool, error) { return nil, false, nil },
	}, time.Hour, slog.New(slog.DiscardHandler))
	if _, err := s.BeginTurn(t.Context(), event.Owner{Subject: "ada"}, "thr_aaaaaaaaaaaaaaaaaaaaaaaaaa", "run_a", "", "?"); err != nil {
		t.Fatalf("BeginTurn = %v, want no error", err)
	}
	if err := s.Load(t.Context()); err != nil || len(s.ownWrites) > 0 {
		t.Errorf("Load = %v and keeps %d positions, want none", err, len(s.ownWrites))
	}
}

// A thread may begin while another caller asks for it, and after the leader has answered that there is none.
func TestThreadThatBeginsDuringAReadIsListed(t *testing.T) {
	owner, id := event.Owner{Subject: "ada"}, "thr_aaaaaaaaaaaaaaaaaaaaaaaaaa"
	var s *Store
	s = New(Server{
		Now:     time.Now,
		Publish: func(context.Context, string, *nats.Msg, uint64) (uint64, error) { return 1, nil },
		IsFull:  func(error) bool { return false },
		ReadLast: func(context.Context, string, string) (*Message, error) {
			_, err := s.BeginTurn(t.Context(), owner, id, "run_a", "", "?")
			return nil, err
		},
	}, time.Hour, slog.New(slog.DiscardHandler))

	if _, err := s.Thread(t.Context(), owner, id); !errors.Is(err, event.ErrNotFound) {
		t.Fatalf("Thread = %v, want %v", err, event.ErrNotFound)
	}
	page, err := s.ListThreads(t.Context(), event.ThreadFilter{Owner: owner, Limit: 2})
	if err != nil || len(page.Threads) != 1 {
		t.Errorf("%d threads are listed, %v, want the one that began", len(page.Threads), err)
	}
}

// The acknowledgement of a turn may be lost although the server has stored the turn, so its parts must stay.
func TestPartsOfATurnStayUnlessItWasRefused(t *testing.T) {
	owner, id := event.Owner{Subject: "ada"}, "thr_aaaaaaaaaaaaaaaaaaaaaaaaaa"
	errFull := errors.New("full")
	for _, c := range []struct {
		outcome error
		want    int
	}{{event.ErrUnavailable, 0}, {errFull, 1}} {
		purged := 0
		s := New(Server{
			Now: time.Now,
			Publish: func(_ context.Context, _ string, m *nats.Msg, _ uint64) (uint64, error) {
				if m.Header.Get(partsHeader) != "" {
					return 0, c.outcome
				}
				return 1, nil
			},
			IsFull: func(err error) bool { return errors.Is(err, errFull) },
			Purge: func(context.Context, string, string) error {
				purged++
				return nil
			},
			MaxPart: 1,
		}, time.Hour, slog.New(slog.DiscardHandler))
		if _, err := s.BeginTurn(t.Context(), owner, id, "run_a", "", "?"); err != nil {
			t.Fatal(err)
		}
		if err := s.EndTurn(t.Context(), owner, id, "run_a", []byte("two parts")); !errors.Is(err, c.outcome) || purged != c.want {
			t.Errorf("EndTurn = %v and purges %d times, want %v and %d", err, purged, c.outcome, c.want)
		}
	}
}

// A process may be killed after it has stored a turn in parts. The process that counts the turn counts the bytes of the
// parts.
func TestTurnInPartsOfAKilledProcessHasItsSize(t *testing.T) {
	stored := map[string]*Message{}
	s := New(Server{
		Publish: func(_ context.Context, _ string, m *nats.Msg, _ uint64) (uint64, error) {
			if _, exists := stored[m.Subject]; exists {
				return 0, event.ErrFenced
			}
			stored[m.Subject] = &Message{Subject: m.Subject, Header: m.Header, Data: m.Data}
			return uint64(len(stored)), nil
		},
		IsFull:   func(error) bool { return false },
		Purge:    func(context.Context, string, string) error { return nil },
		ReadLast: func(_ context.Context, _, subject string) (*Message, error) { return stored[subject], nil },
		ReadEach: func(context.Context, string, []string) (map[string]*Message, error) { return stored, nil },
		MaxPart:  4,
	}, time.Hour, slog.New(slog.DiscardHandler))
	h := newHead(event.Owner{Subject: "ada"}, "thr_aaaaaaaaaaaaaaaaaaaaaaaaaa")
	for _, next := range []string{"run_a", "run_b"} {
		run, size, err := s.storeTurn(t.Context(), h, next, []byte("two or more parts of "+next))
		if run != "run_a" || size != len("two or more parts of run_a") || err != nil {
			t.Errorf("storeTurn of %s = %s with %d bytes, %v, want run_a with its 26 bytes", next, run, size, err)
		}
	}
}
