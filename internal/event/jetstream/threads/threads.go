// Package threads implements event.Threads on two streams of NATS JetStream.
//
// The stream of heads has one message for each thread: its properties. A change of a thread replaces the
// message, and expects the one that it was computed from (compare and set), so of two processes that begin
// a turn one wins. The stream of turns has one message for each turn, on a subject with the turn's number.
// A turn is stored before its head counts it. If the process ends in between, the next process that ends a
// turn finds that number taken and completes it first.
//
// Each process has an index of all heads in memory (index.go): it lists threads without asking the server,
// and begins a turn with one request. It adds its own changes at once and reads those of other processes
// twice a second.
//
// Subjects contain digests of owners and ids, and a random incarnation for each thread that is created. So
// a turn of a deleted thread cannot appear in a later thread of the same id.
package threads

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
	"answerd/internal/event/threadindex"
)

// The streams, and the beginnings of their subjects.
const (
	HeadsStream = "ANSWERD_THREADS"
	TurnsStream = "ANSWERD_TURNS"
	headPrefix  = "answerd.thread." // KEY: the head of a thread
	turnPrefix  = "answerd.turn."   // KEY.INCARNATION.NUMBER: a turn; KEY.INCARNATION.part.NONCE.N: a part of one
	partToken   = "part"
)

// Headers of messages.
const (
	writerHeader = "Answerd-Writer" // tells two processes that publish the same bytes apart
	runHeader    = "Answerd-Run"
	partsHeader  = "Answerd-Parts" // NONCE COUNT: the data of the turn is in COUNT other messages
)

const (
	// maxUnfinished bounds the runs of a thread that began and have no turn, and maxEnded those of which
	// a second EndTurn is recognized.
	maxUnfinished = 16
	maxEnded      = 8
	// tombstoneTTL is how long the head of a deleted thread is kept, for processes that read the heads
	// after a pause.
	tombstoneTTL = 24 * time.Hour
)

// Message is a message of a stream.
type Message struct {
	Subject string
	Pos     uint64 // its sequence number in the stream
	Time    time.Time
	Header  nats.Header
	Data    []byte
}

// Server has the functions of the log that a Store uses.
type Server struct {
	// Publish appends m, if the last message of its subject is at pos last; 0 means none. Otherwise it
	// returns event.ErrFenced, or event.ErrGone. It tries for some seconds.
	Publish func(ctx context.Context, stream string, m *nats.Msg, last uint64) (uint64, error)
	// PublishRemoval does the same once, for a message that replaces a larger one. A full disk does not
	// keep it from trying.
	PublishRemoval func(ctx context.Context, stream string, m *nats.Msg, last uint64) (uint64, error)
	// ReadLast returns the last message of a subject from the stream's leader, nil if there is none.
	ReadLast func(ctx context.Context, stream, subject string) (*Message, error)
	// ReadEach returns the last messages of some subjects from any server.
	ReadEach func(ctx context.Context, stream string, subjects []string) (map[string]Message, error)
	// ReadFrom returns messages from a pos on, from any server, and whether there are more.
	ReadFrom func(ctx context.Context, stream, subject string, from uint64) ([]Message, bool, error)
	// Purge removes the messages of a subject, which may have wildcards.
	Purge func(ctx context.Context, stream, subject string) error
	// Delete removes the message at a pos, or returns event.ErrFenced if there is none.
	Delete func(ctx context.Context, stream string, pos uint64) error
	// Usage returns the bytes that a stream has and may have.
	Usage func(ctx context.Context, stream string) (has, limit int64, err error)
	// DiskFull reports whether the log recovers from a full disk. It calls Expire and GiveWay then.
	DiskFull func() bool
	// IsFull reports whether an error says that a stream or its account is full.
	IsFull func(error) bool
	Now    func() time.Time
	// MaxPart bounds the data of a message, in bytes.
	MaxPart int
	// Clustered says that servers other than the leader answer some requests.
	Clustered bool
}

// Streams returns the configurations of the streams, for a log of maxBytes. Heads may use a sixteenth of
// it and turns three.
func Streams(maxBytes int64, replicas int) (heads, turns js.StreamConfig) {
	return js.StreamConfig{
			// A full stream refuses new threads until old ones were dropped. If it dropped its oldest
			// heads by itself, the index would not notice.
			Name: HeadsStream, Subjects: []string{headPrefix + "*"}, Storage: js.FileStorage, Replicas: replicas,
			MaxBytes: max(maxBytes/16, 256<<10), Discard: js.DiscardNew, MaxMsgsPerSubject: 1, AllowDirect: true, AllowMsgTTL: true, MaxConsumers: 16,
		}, js.StreamConfig{
			Name: TurnsStream, Subjects: []string{turnPrefix + ">"}, Storage: js.FileStorage, Replicas: replicas,
			MaxBytes: max(maxBytes/16*3, 1<<20), Discard: js.DiscardOld, AllowDirect: true, MaxConsumers: 16,
		}
}

// Store implements event.Threads.
type Store struct {
	server    Server
	retention time.Duration
	logger    *slog.Logger
	spaceNow  chan struct{} // signals that space may be short

	mu         sync.Mutex // guards the fields below
	index      threadindex.Index
	heads      map[string]head   // by key, those in the index
	tombstones map[string]string // incarnations of deleted threads, by key, whose turns are to be removed once more
	read       uint64            // the pos up to which the stream of heads was read
	turnsBytes int64             // of the stream of turns at the last check, and what this process added since
	turnsLimit int64
}

// New returns a Store, which lists nothing before Load.
func New(server Server, retention time.Duration, logger *slog.Logger) *Store {
	if retention <= 0 {
		retention = event.DefaultThreadsRetention
	}
	return &Store{
		server: server, retention: retention, logger: logger, spaceNow: make(chan struct{}, 1),
		heads: make(map[string]head), tombstones: make(map[string]string),
	}
}

// head is the content of a message of the stream of heads.
type head struct {
	Incarnation string    `json:"incarnation"`
	Deleted     bool      `json:"deleted,omitempty"` // a tombstone, which has the incarnation alone
	Issuer      string    `json:"issuer,omitempty"`
	Subject     string    `json:"subject,omitempty"`
	ID          string    `json:"id,omitempty"`
	Title       string    `json:"title,omitempty"`
	Agent       string    `json:"agent,omitempty"`
	Created     time.Time `json:"created,omitzero"`
	Updated     time.Time `json:"updated,omitzero"`
	// Order is the pos of the head that the last update wrote. It is 0 in that head itself.
	Order      uint64   `json:"order,omitempty"`
	Turns      int      `json:"turns,omitempty"` // also the number of the newest one
	Bytes      int64    `json:"bytes,omitempty"` // of all turns
	Active     string   `json:"active,omitempty"`
	LastRun    string   `json:"last_run,omitempty"`
	Unfinished []string `json:"unfinished,omitempty"` // runs that began and have no turn, the newest last
	Ended      []string `json:"ended,omitempty"`      // the last runs that have a turn, the newest last

	pos uint64 // of the message; 0 for a thread that does not exist
}

// exists reports whether h is a thread, and not a tombstone or nothing.
func (h *head) exists() bool { return h.pos > 0 && !h.Deleted }

func (h *head) owner() event.Owner { return event.Owner{Issuer: h.Issuer, Subject: h.Subject} }

func (h *head) key() string { return keyOf(h.owner(), h.ID) }

func (h *head) thread() event.Thread {
	return event.Thread{
		ID: h.ID, Owner: h.owner(), Title: h.Title, Agent: h.Agent, Created: h.Created, Updated: h.Updated,
		Turns: h.Turns, Active: h.Active, LastRun: h.LastRun,
	}
}

// begin makes a run the active one.
func (h *head) begin(run, agent string) {
	h.Unfinished = addLast(h.Unfinished, run, maxUnfinished)
	h.Active, h.Agent = run, agent
}

// end counts the next turn, which is that of a run.
func (h *head) end(run string, size int) {
	if h.Active == run {
		h.Active = ""
	}
	h.Unfinished = without(h.Unfinished, run)
	h.Ended = addLast(h.Ended, run, maxEnded)
	h.Turns, h.Bytes, h.LastRun = h.Turns+1, h.Bytes+int64(size), run
}

// without returns runs without one, as a new slice.
func without(runs []string, run string) []string {
	return slices.DeleteFunc(slices.Clone(runs), func(r string) bool { return r == run })
}

// addLast returns runs with one at the end, at most limit of them, as a new slice.
func addLast(runs []string, run string, limit int) []string {
	runs = append(without(runs, run), run)
	return runs[max(0, len(runs)-limit):]
}

// keyOf returns the token of a thread in subjects.
func keyOf(owner event.Owner, id string) string {
	h := sha256.New()
	for _, p := range []string{owner.Issuer, owner.Subject, id} {
		_, _ = h.Write([]byte(strconv.Itoa(len(p)) + ":" + p)) // never fails
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// BeginTurn implements event.Threads.
func (s *Store) BeginTurn(ctx context.Context, owner event.Owner, id, run, agent, title string) (event.Thread, error) {
	if !event.ValidThreadID(id) || !event.ValidID(run) {
		return event.Thread{}, event.ErrNotFound
	}
	return s.change(ctx, owner, id, func(h *head) (bool, error) {
		switch {
		case !h.exists():
			h.Created, h.Title = s.server.Now(), event.CutTitle(title)
		case h.Active == run:
			return false, nil
		case h.Active != "":
			return false, &event.BusyError{Run: h.Active}
		}
		h.begin(run, agent)
		h.Updated, h.Order = s.server.Now(), 0
		return true, nil
	})
}

// RenameThread implements event.Threads.
func (s *Store) RenameThread(ctx context.Context, owner event.Owner, id, title string) (event.Thread, error) {
	return s.change(ctx, owner, id, func(h *head) (bool, error) {
		if !h.exists() {
			return false, event.ErrNotFound
		}
		h.Title = event.CutTitle(title)
		return true, nil
	})
}

// change replaces the head of a thread by what edit makes of it, and repeats that when another process
// was faster. edit gets a copy, of a new thread if there is none, and reports whether it changed it.
func (s *Store) change(ctx context.Context, owner event.Owner, id string, edit func(*head) (bool, error)) (event.Thread, error) {
	before, cached := s.cachedHead(owner, id)
	for {
		if !cached {
			var err error
			if before, err = s.readHead(ctx, owner, id); err != nil {
				return event.Thread{}, err
			}
		}
		after := before
		if !before.exists() {
			after = head{Incarnation: strings.ToLower(rand.Text()[:10]), Issuer: owner.Issuer, Subject: owner.Subject, ID: id}
		}
		changed, err := edit(&after)
		if cached && (err != nil || !changed) { // the index may be behind
			cached = false
			continue
		}
		if err != nil || !changed {
			return after.thread(), err
		}
		replaced, err := s.replaceHead(ctx, before, &after)
		if err != nil {
			return event.Thread{}, err
		}
		if replaced {
			return after.thread(), nil
		}
		cached = false
	}
}

// replaceHead publishes a head, and adds it to the index. It reports false if before is not the thread's
// head any more.
func (s *Store) replaceHead(ctx context.Context, before head, after *head) (bool, error) {
	body, err := json.Marshal(after)
	if err != nil {
		return false, fmt.Errorf("encode a thread: %w", err)
	}
	for {
		m := nats.NewMsg(headPrefix + after.key())
		m.Data = body
		m.Header.Set(writerHeader, rand.Text())
		after.pos, err = s.server.Publish(ctx, HeadsStream, m, before.pos)
		if !s.server.IsFull(err) {
			break
		}
		if freed, spaceErr := s.makeSpace(ctx); spaceErr != nil || !freed {
			return false, err
		}
	}
	switch {
	case errors.Is(err, event.ErrFenced), errors.Is(err, event.ErrGone):
		return false, nil
	case err != nil:
		return false, err
	}
	s.put(*after)
	if before.pos > 0 && before.Incarnation != after.Incarnation { // a thread that has expired or was deleted
		s.removeTurns(ctx, after.key(), before.Incarnation)
	}
	return true, nil
}

// readHead returns the head of a thread from the leader. Its exists method reports false if there is no
// such thread.
func (s *Store) readHead(ctx context.Context, owner event.Owner, id string) (head, error) {
	if !event.ValidThreadID(id) {
		return head{}, event.ErrNotFound
	}
	key := keyOf(owner, id)
	m, err := s.server.ReadLast(ctx, HeadsStream, headPrefix+key)
	if err != nil {
		return head{}, err
	}
	if m == nil {
		s.forget(key)
		return head{}, nil
	}
	h, err := s.accept(*m)
	if err != nil {
		return head{}, err
	}
	if h.exists() && h.thread().Expired(s.server.Now(), s.retention) {
		h.Deleted = true
	}
	return h, nil
}

// findThread returns the head of a thread from the leader, or ErrNotFound.
func (s *Store) findThread(ctx context.Context, owner event.Owner, id string) (head, error) {
	h, err := s.readHead(ctx, owner, id)
	if err == nil && !h.exists() {
		err = event.ErrNotFound
	}
	return h, err
}

// Thread implements event.Threads.
func (s *Store) Thread(ctx context.Context, owner event.Owner, id string) (event.Thread, error) {
	h, err := s.findThread(ctx, owner, id)
	if err != nil {
		return event.Thread{}, err
	}
	return h.thread(), nil
}

// DeleteThread implements event.Threads.
func (s *Store) DeleteThread(ctx context.Context, owner event.Owner, id string) error {
	for {
		h, err := s.findThread(ctx, owner, id)
		if err != nil {
			return err
		}
		deleted, err := s.deleteHead(ctx, h)
		if err != nil || deleted {
			return err
		}
	}
}

// deleteHead replaces a head by a tombstone and removes the turns. It reports false if h is not the
// thread's head any more.
func (s *Store) deleteHead(ctx context.Context, h head) (bool, error) {
	body, err := json.Marshal(head{Incarnation: h.Incarnation, Deleted: true})
	if err != nil {
		return false, fmt.Errorf("encode a thread: %w", err)
	}
	key := h.key()
	m := nats.NewMsg(headPrefix + key)
	m.Data = body
	m.Header.Set(js.MsgTTLHeader, strconv.Itoa(int(tombstoneTTL.Seconds()))+"s")
	_, err = s.server.PublishRemoval(ctx, HeadsStream, m, h.pos)
	deleted := false
	if s.server.IsFull(err) { // an account accepts not even smaller messages
		err = s.server.Delete(ctx, HeadsStream, h.pos)
		deleted = true
	}
	switch {
	case errors.Is(err, event.ErrFenced), errors.Is(err, event.ErrGone):
		return false, nil
	case err != nil:
		return false, err
	}
	s.mu.Lock()
	s.tombstones[key] = h.Incarnation
	s.mu.Unlock()
	s.forget(key)
	if err := s.server.Purge(ctx, TurnsStream, turnSubject(key, h.Incarnation, ">")); err != nil {
		return true, err
	}
	if deleted { // now there is space for the tombstone, by which other processes learn of the deletion
		_, _ = s.server.PublishRemoval(ctx, HeadsStream, m, 0)
	}
	return true, nil
}

// removeTurns removes all turns of an incarnation. If that fails, Expire repeats it.
func (s *Store) removeTurns(ctx context.Context, key, incarnation string) {
	if s.server.Purge(ctx, TurnsStream, turnSubject(key, incarnation, ">")) != nil {
		s.mu.Lock()
		s.tombstones[key] = incarnation
		s.mu.Unlock()
	}
}
