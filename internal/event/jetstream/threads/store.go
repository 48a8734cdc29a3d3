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

// The streams, and the prefixes of their subjects.
const (
	HeadsStream = "ANSWERD_THREADS"
	TurnsStream = "ANSWERD_TURNS"
	headPrefix  = "answerd.thread." // KEY: the head of a thread
	turnPrefix  = "answerd.turn."   // KEY.INCARNATION.NUMBER: a turn; KEY.INCARNATION.part.NONCE.N: a part of one
	partToken   = "part"
)

// Headers of messages.
const (
	writerHeader = "Answerd-Writer" // random; distinguishes equal messages that two processes publish
	runHeader    = "Answerd-Run"    // the run to which a turn belongs
	partsHeader  = "Answerd-Parts"  // NONCE COUNT: the turn's data is in COUNT other messages
)

const (
	// maxUnfinished is the largest length of head.Unfinished, and maxEnded that of head.Ended.
	maxUnfinished = 16
	maxEnded      = 8
	// tombstoneTTL is how long the tombstone of a deleted thread is kept. Other processes can still read it after a
	// pause (maxPause). It is short, because tombstones use the space that new threads need.
	tombstoneTTL = 10 * time.Second
	// soleTombstoneTTL replaces tombstoneTTL if no other process uses the streams. In that case a tombstone remains
	// only after an interrupted deletion. It is for the next process, which may start much later.
	soleTombstoneTTL = 7 * 24 * time.Hour
	// maxConsumers limits the consumers of a stream. None is needed, because reads create no consumers.
	maxConsumers = 16
)

// Message is a message of a stream.
type Message struct {
	Subject string
	Pos     uint64 // its position in the stream, which is its sequence number
	Time    time.Time
	Header  nats.Header
	Data    []byte
}

// Server has the functions of a log that a Store uses.
type Server struct {
	// Publish appends m and returns its position. It requires that the last message of m's subject is at position last,
	// or that the subject is empty if last is 0. It returns event.ErrFenced if another message is last, and
	// event.ErrGone if the subject is empty although last is not 0. It tries for several seconds. After any other
	// error, m may have been stored.
	Publish func(ctx context.Context, stream string, m *nats.Msg, last uint64) (uint64, error)
	// PublishRemoval appends a message that replaces a larger one. Unlike Publish, it tries only once, works on a full
	// disk, and always returns event.ErrFenced if the last message is not at position last.
	PublishRemoval func(ctx context.Context, stream string, m *nats.Msg, last uint64) (uint64, error)
	// ReadLast returns the last message of a subject from the stream's leader, or nil if the subject is empty.
	ReadLast func(ctx context.Context, stream, subject string) (*Message, error)
	// ReadEach returns the last message of each subject, keyed by subject. Subjects without a message are missing from
	// the map. Any server may answer, so the newest messages may be missing.
	ReadEach func(ctx context.Context, stream string, subjects []string) (map[string]*Message, error)
	// ReadFrom returns the first messages of a subject at position from or later, and whether there are more. Any
	// server may answer, so the newest messages may be missing.
	ReadFrom func(ctx context.Context, stream, subject string, from uint64) ([]Message, bool, error)
	// Purge removes the messages of a subject. The subject may have wildcards.
	Purge func(ctx context.Context, stream, subject string) error
	// Delete removes the message at pos. It returns event.ErrFenced if the stream does not have that message.
	Delete func(ctx context.Context, stream string, pos uint64) error
	// Usage returns a stream's size and size limit, in bytes.
	Usage func(ctx context.Context, stream string) (size, limit int64, err error)
	// DiskFull reports whether the disk is full. While it is, the log itself calls Expire and DeleteOldestThird.
	DiskFull func() bool
	// IsFull reports whether an error says that a stream or its account is full.
	IsFull func(error) bool
	// Now returns the time of the server's clock, which all processes share.
	Now func() time.Time
	// MaxPart is the largest size of a message's data, in bytes. Longer data is published in parts.
	MaxPart int
	// Clustered says that the streams have replicas, so that ReadEach and ReadFrom may lack the newest messages.
	Clustered bool
	// Alone says that no other process uses the streams, because they are on this process's disk.
	Alone bool
}

// Streams returns the configurations of the two streams for a log of maxBytes. The stream of heads may use a sixteenth
// of maxBytes, and the stream of turns three sixteenths. A full stream of heads refuses new threads until old ones were
// deleted. If it dropped its oldest heads by itself, the index would not notice.
func Streams(maxBytes int64, replicas int) (heads, turns js.StreamConfig) {
	heads = js.StreamConfig{
		Name:              HeadsStream,
		Subjects:          []string{headPrefix + "*"},
		Storage:           js.FileStorage,
		Replicas:          replicas,
		MaxBytes:          max(maxBytes/16, 256<<10),
		Discard:           js.DiscardNew,
		MaxMsgsPerSubject: 1,
		AllowDirect:       true,
		AllowMsgTTL:       true,
		MaxConsumers:      maxConsumers,
	}
	turns = js.StreamConfig{
		Name:         TurnsStream,
		Subjects:     []string{turnPrefix + ">"},
		Storage:      js.FileStorage,
		Replicas:     replicas,
		MaxBytes:     max(maxBytes/16*3, 1<<20),
		Discard:      js.DiscardOld,
		AllowDirect:  true,
		MaxConsumers: maxConsumers,
	}
	return heads, turns
}

// Store implements event.Threads.
type Store struct {
	server      Server
	retention   time.Duration
	logger      *slog.Logger
	spaceNow    chan struct{} // tells Follow that space may be short
	makingSpace sync.Mutex    // held by makeSpace; locked before mu

	mu         sync.Mutex         // guards the fields below
	index      threadindex.Index  // the existing threads, for ListThreads
	heads      map[string]head    // the heads of the threads in index, by key
	beforeLoad *threadindex.Index // the previous index while a Load has not succeeded; nil otherwise
	tombstones map[string]string  // deleted threads whose turns the next Expire removes: the incarnation of each, by key
	knownPos   uint64             // the index has all heads of the stream up to this position
	ownWrites  map[uint64]bool    // positions after knownPos that this process has written
	used       map[string]usage   // by stream name; empty before Load
}

// usage is the size of a stream in bytes, as the server reported it plus what this process has added since, and its
// limit.
type usage struct{ bytes, limit int64 }

// New returns a Store. The Store lists no threads before Load was called, and it needs a goroutine that calls Follow. A
// retention of 0 means event.DefaultThreadsRetention.
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

// head is the content of a message in the stream of heads. It holds a thread's properties.
type head struct {
	Incarnation string    `json:"incarnation"`       // random; distinguishes a thread from later ones with the same id
	Deleted     bool      `json:"deleted,omitempty"` // the message is a tombstone, which has only Incarnation and Deleted
	Issuer      string    `json:"issuer,omitempty"`
	Subject     string    `json:"subject,omitempty"`
	ID          string    `json:"id,omitempty"`
	Title       string    `json:"title,omitempty"`
	Agent       string    `json:"agent,omitempty"`
	Created     time.Time `json:"created,omitzero"`
	Updated     time.Time `json:"updated,omitzero"`
	// Order is the position of the message with the thread's last update. It orders an owner's threads. The update
	// itself stores 0, because its position is not known before it is stored. A change that is not an update, such as a
	// new title, copies Order.
	Order      uint64   `json:"order,omitempty"`
	Turns      int      `json:"turns,omitempty"`      // number of turns, which is also the number of the newest turn
	Bytes      int64    `json:"bytes,omitempty"`      // total size of all turns
	Active     string   `json:"active,omitempty"`     // the active run; "" for none
	LastRun    string   `json:"last_run,omitempty"`   // the run of the newest turn
	Unfinished []string `json:"unfinished,omitempty"` // runs that began a turn but have not added it, newest last
	Ended      []string `json:"ended,omitempty"`      // the last runs that added a turn, to ignore a second EndTurn

	pos uint64 // position of the message; 0 before the head is stored
}

// newHead returns the head of a new thread, with a new incarnation and without runs.
func newHead(owner event.Owner, id string) head {
	return head{Incarnation: strings.ToLower(rand.Text()[:10]), Issuer: owner.Issuer, Subject: owner.Subject, ID: id}
}

// toMsg returns the message for a head. Its writer header distinguishes it from an equal head that another goroutine
// writes.
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

// exists reports whether h is the stored head of a thread. It returns false for a tombstone, and for a head that was
// not stored.
func (h *head) exists() bool { return h.pos > 0 && !h.Deleted }

// setPos records the position at which h is stored.
func (h *head) setPos(pos uint64) {
	h.pos = pos
	if h.Order == 0 { // the write of this head is itself the last update
		h.Order = pos
	}
}

func (h *head) owner() event.Owner { return event.Owner{Issuer: h.Issuer, Subject: h.Subject} }

func (h *head) key() string { return keyOf(h.owner(), h.ID) }

// thread returns the properties in h that event.Threads exposes.
func (h *head) thread() event.Thread {
	return event.Thread{
		ID: h.ID, Owner: h.owner(), Title: h.Title, Agent: h.Agent, Created: h.Created, Updated: h.Updated,
		Turns: h.Turns, Active: h.Active, LastRun: h.LastRun,
	}
}

// beginRun makes run the active run, which counts as an update of the thread. It sets the title only if the thread is
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

// setUpdated marks h as an update of the thread, so that the thread comes first in its owner's list.
func (h *head) setUpdated(now time.Time) {
	h.Updated = now
	h.Order = 0
}

// countTurn counts the next turn, which belongs to run and has size bytes of data. If run is active, it ends run.
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

// addLast returns a copy of runs with run at the end. It keeps at most the last limit runs.
func addLast(runs []string, run string, limit int) []string {
	runs = append(withoutRun(runs, run), run)
	return runs[max(0, len(runs)-limit):]
}

// keyOf returns the token that represents a thread in subjects. It is a digest, because thread ids come from callers
// and could contain dots and wildcards.
func keyOf(owner event.Owner, id string) string {
	h := sha256.New()
	for _, p := range []string{owner.Issuer, owner.Subject, id} {
		_, _ = h.Write([]byte(strconv.Itoa(len(p)) + ":" + p)) // never fails
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// turnSubject returns a subject in the stream of turns. token is the number of a turn, a part of a turn (partSubject),
// or ">" for all turns of the incarnation.
func turnSubject(key, incarnation, token string) string {
	return turnPrefix + key + "." + incarnation + "." + token
}

// turnSubject returns the subject of the turn with that number.
func (h *head) turnSubject(number int) string {
	return turnSubject(h.key(), h.Incarnation, strconv.Itoa(number))
}
