package threads

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
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
	writerHeader = "Answerd-Writer" // random: tells messages with the same bytes apart, if two processes publish them
	runHeader    = "Answerd-Run"    // the run of a turn
	partsHeader  = "Answerd-Parts"  // NONCE COUNT: the data of the turn is in COUNT other messages
)

const (
	// maxUnfinished bounds head.Unfinished, and maxEnded bounds head.Ended.
	maxUnfinished = 16
	maxEnded      = 8
	// tombstoneTTL is how long the tombstone of a deleted thread is kept, so that other processes read it even after a
	// pause (maxPause). It is short, because tombstones use the space that new threads need.
	tombstoneTTL = 10 * time.Second
	// soleTombstoneTTL replaces tombstoneTTL if no other process uses the streams. Only an interrupted deletion leaves
	// its tombstone, for the next process, which may start much later.
	soleTombstoneTTL = 7 * 24 * time.Hour
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
	// Publish appends m and returns its pos, if the last message of m's subject is at pos last; 0 means that the
	// subject must be empty. If another message is last, Publish returns event.ErrFenced; if the subject should have a
	// message and has none, event.ErrGone. It tries for some seconds. After other errors m may be stored.
	Publish func(ctx context.Context, stream string, m *nats.Msg, last uint64) (uint64, error)
	// PublishRemoval appends a message that replaces a larger one. It differs from Publish: it tries once, also on a
	// disk that is full, and returns event.ErrFenced whenever the last message is not at pos last.
	PublishRemoval func(ctx context.Context, stream string, m *nats.Msg, last uint64) (uint64, error)
	// ReadLast returns the last message of a subject from the stream's leader, or nil if the subject is empty.
	ReadLast func(ctx context.Context, stream, subject string) (*Message, error)
	// ReadEach returns the last message of each subject, by subject. Subjects without a message are missing from the
	// map. Any server may answer, perhaps without the newest messages.
	ReadEach func(ctx context.Context, stream string, subjects []string) (map[string]Message, error)
	// ReadFrom returns the first messages of a subject at pos from or later, and whether there are more. Any server may
	// answer, perhaps without the newest messages.
	ReadFrom func(ctx context.Context, stream, subject string, from uint64) ([]Message, bool, error)
	// Purge removes the messages of a subject, which may have wildcards.
	Purge func(ctx context.Context, stream, subject string) error
	// Delete removes the message at a pos. It returns event.ErrFenced if the stream does not have it.
	Delete func(ctx context.Context, stream string, pos uint64) error
	// Usage returns the bytes that a stream has and may have.
	Usage func(ctx context.Context, stream string) (has, limit int64, err error)
	// DiskFull reports whether the disk is full. Until it is not, the log itself calls Expire and DeleteOldestThird.
	DiskFull func() bool
	// IsFull reports whether an error says that a stream or its account is full.
	IsFull func(error) bool
	// Now returns the time of the server's clock, which all processes share.
	Now func() time.Time
	// MaxPart bounds the data of a message, in bytes. Longer data is published in parts.
	MaxPart int
	// Clustered says that the streams have replicas. ReadEach and ReadFrom may then lack the newest messages.
	Clustered bool
	// Alone says that no other process uses the streams, because they are on the disk of this process.
	Alone bool
}

// Streams returns the configurations of the two streams for a log of maxBytes. The stream of heads may use a sixteenth
// of maxBytes, and the stream of turns three sixteenths.
func Streams(maxBytes int64, replicas int) (heads, turns js.StreamConfig) {
	return js.StreamConfig{
			// A full stream refuses new threads until old ones were dropped. If it dropped its oldest
			// heads by itself, the index would not notice.
			Name: HeadsStream, Subjects: []string{headPrefix + "*"}, Storage: js.FileStorage, Replicas: replicas,
			MaxBytes: max(maxBytes/16, 256<<10), Discard: js.DiscardNew, MaxMsgsPerSubject: 1,
			AllowDirect: true, AllowMsgTTL: true, MaxConsumers: 16,
		}, js.StreamConfig{
			Name: TurnsStream, Subjects: []string{turnPrefix + ">"}, Storage: js.FileStorage, Replicas: replicas,
			MaxBytes: max(maxBytes/16*3, 1<<20), Discard: js.DiscardOld, AllowDirect: true, MaxConsumers: 16,
		}
}

// Store implements event.Threads.
type Store struct {
	server      Server
	retention   time.Duration
	logger      *slog.Logger
	spaceNow    chan struct{} // signals that space may be short
	makingSpace sync.Mutex    // held by makeSpace; taken before mu

	mu         sync.Mutex         // guards the fields below
	index      threadindex.Index  // the threads that exist, for ListThreads
	heads      map[string]head    // the heads of the threads in index, by key
	beforeLoad *threadindex.Index // what index was before a Load that has not succeeded; nil otherwise
	tombstones map[string]string  // incarnations by key: deleted threads whose turns the next Expire removes
	knownPos   uint64             // the index has all heads of the stream up to this pos
	ownWrites  map[uint64]bool    // positions after knownPos that this process has written
	used       map[string]usage   // by stream; empty before Load
}

// usage has the bytes of a stream, as the server reported them plus what this process has added since, and their limit.
type usage struct{ bytes, limit int64 }

// New returns a Store, which lists no threads before Load, and needs a goroutine that calls Follow. A retention of 0
// means event.DefaultThreadsRetention.
func New(server Server, retention time.Duration, logger *slog.Logger) *Store {
	if retention <= 0 {
		retention = event.DefaultThreadsRetention
	}
	return &Store{
		server:     server,
		retention:  retention,
		logger:     logger,
		spaceNow:   make(chan struct{}, 1),
		heads:      make(map[string]head),
		tombstones: make(map[string]string),
		ownWrites:  make(map[uint64]bool),
		used:       make(map[string]usage),
	}
}

// head is the content of a message in the stream of heads: the properties of a thread.
type head struct {
	Incarnation string    `json:"incarnation"`       // random; tells a thread from later ones with its id
	Deleted     bool      `json:"deleted,omitempty"` // the message is a tombstone: it has only Incarnation and Deleted
	Issuer      string    `json:"issuer,omitempty"`
	Subject     string    `json:"subject,omitempty"`
	ID          string    `json:"id,omitempty"`
	Title       string    `json:"title,omitempty"`
	Agent       string    `json:"agent,omitempty"`
	Created     time.Time `json:"created,omitzero"`
	Updated     time.Time `json:"updated,omitzero"`
	// Order is the pos of the message with the last update, which orders the threads of an owner. The update itself
	// stores 0, because its pos is not known before it is stored; a change that is not an update, such as a new title,
	// copies Order.
	Order      uint64   `json:"order,omitempty"`
	Turns      int      `json:"turns,omitempty"`      // how many there are; the number of the newest turn
	Bytes      int64    `json:"bytes,omitempty"`      // the bytes of all turns
	Active     string   `json:"active,omitempty"`     // the active run, "" for none
	LastRun    string   `json:"last_run,omitempty"`   // the run of the newest turn
	Unfinished []string `json:"unfinished,omitempty"` // runs that began and have no turn, the newest last
	Ended      []string `json:"ended,omitempty"`      // the last runs with a turn, to ignore a second EndTurn

	pos uint64 // the pos of the message; 0 before the head is stored
}

// newHead returns the head of a new thread, with a new incarnation and no run.
func newHead(owner event.Owner, id string) head {
	return head{Incarnation: strings.ToLower(rand.Text()[:10]), Issuer: owner.Issuer, Subject: owner.Subject, ID: id}
}

// toMsg returns the message of a head. Its writer header distinguishes it from an equal head of another goroutine.
func (h *head) toMsg() (*nats.Msg, error) {
	body, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode a thread: %w", err)
	}
	m := nats.NewMsg(headPrefix + h.key())
	m.Data = body
	m.Header.Set(writerHeader, rand.Text())
	return m, nil
}

// exists reports whether h is the stored head of a thread. It is false for a tombstone and for a head without a
// message.
func (h *head) exists() bool { return h.pos > 0 && !h.Deleted }

func (h *head) owner() event.Owner { return event.Owner{Issuer: h.Issuer, Subject: h.Subject} }

func (h *head) key() string { return keyOf(h.owner(), h.ID) }

// thread returns the properties in h that callers of event.Threads see.
func (h *head) thread() event.Thread {
	return event.Thread{
		ID: h.ID, Owner: h.owner(), Title: h.Title, Agent: h.Agent, Created: h.Created, Updated: h.Updated,
		Turns: h.Turns, Active: h.Active, LastRun: h.LastRun,
	}
}

// beginRun makes run the active run, which is an update of the thread. title becomes the title only if the thread is
// new.
func (h *head) beginRun(run, agent, title string, now time.Time) {
	if !h.exists() {
		h.Created = now
		h.Title = event.CutTitle(title)
	}
	h.setUpdated(now)
	h.Unfinished = addLast(h.Unfinished, run, maxUnfinished)
	h.Active = run
	h.Agent = agent
}

// setUpdated makes h an update of the thread: it comes first in the list of its owner's threads.
func (h *head) setUpdated(now time.Time) {
	h.Updated = now
	h.Order = 0
}

// countTurn adds the next turn, of run and with size bytes of data, and ends the run if it is the active one.
func (h *head) countTurn(run string, size int) {
	if h.Active == run {
		h.Active = ""
	}
	h.Unfinished = withoutRun(h.Unfinished, run)
	h.Ended = addLast(h.Ended, run, maxEnded)
	h.Turns++
	h.Bytes += int64(size)
	h.LastRun = run
}

// withoutRun returns a copy of runs without run.
func withoutRun(runs []string, run string) []string {
	return slices.DeleteFunc(slices.Clone(runs), func(r string) bool { return r == run })
}

// addLast returns a copy of runs with run at the end. It drops the first ones above limit.
func addLast(runs []string, run string, limit int) []string {
	runs = append(withoutRun(runs, run), run)
	return runs[max(0, len(runs)-limit):]
}

// keyOf returns the token that stands for a thread in subjects: a digest, because ids come from callers and could
// contain dots and wildcards.
func keyOf(owner event.Owner, id string) string {
	h := sha256.New()
	for _, p := range []string{owner.Issuer, owner.Subject, id} {
		_, _ = h.Write([]byte(strconv.Itoa(len(p)) + ":" + p)) // never fails
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// turnSubject returns a subject in the stream of turns. token is the number of a turn, a part of a turn (partSubject),
// or ">" for all turns of an incarnation.
func turnSubject(key, incarnation, token string) string {
	return turnPrefix + key + "." + incarnation + "." + token
}

func (h *head) turnSubject(number int) string {
	return turnSubject(h.key(), h.Incarnation, strconv.Itoa(number))
}
