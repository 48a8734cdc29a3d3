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
	// after a pause. It is short, because tombstones use the space that new threads need.
	tombstoneTTL = 10 * time.Second
	// killedTTL is the same where no other process uses the streams, until the process that was killed is started again.
	killedTTL = 7 * 24 * time.Hour
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
	// Alone says that no other process uses the streams, as those on disk.
	Alone bool
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
	server      Server
	retention   time.Duration
	logger      *slog.Logger
	spaceNow    chan struct{} // signals that space may be short
	makingSpace sync.Mutex    // held by makeSpace; taken before mu

	mu         sync.Mutex // guards the fields below
	index      threadindex.Index
	listed     *threadindex.Index // what index was before Load, until Load has read all heads; otherwise nil
	heads      map[string]head    // by key, those in the index
	tombstones map[string]string  // incarnations of deleted threads, by key, whose turns are to be removed once more
	read       uint64             // the pos up to which this process knows the stream of heads
	written    map[uint64]bool    // the pos after read that this process has written
	used       map[string]usage   // by stream
}

// usage has the bytes of a stream at the last check, with what this process added since, and its limit.
type usage struct{ bytes, limit int64 }

// New returns a Store, which lists nothing before Load.
func New(server Server, retention time.Duration, logger *slog.Logger) *Store {
	if retention <= 0 {
		retention = event.DefaultThreadsRetention
	}
	return &Store{
		server: server, retention: retention, logger: logger, spaceNow: make(chan struct{}, 1),
		heads: make(map[string]head), tombstones: make(map[string]string), written: make(map[uint64]bool), used: make(map[string]usage),
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

// newHead returns the head of a thread that is about to be created.
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

// exists reports whether h is a thread, and not a tombstone or nothing.
func (h *head) exists() bool { return h.pos > 0 && !h.Deleted }

func (h *head) owner() event.Owner { return event.Owner{Issuer: h.Issuer, Subject: h.Subject} }

func (h *head) key() string { return keyOf(h.owner(), h.ID) }

// thread returns the thread as event.Threads has it.
func (h *head) thread() event.Thread {
	return event.Thread{
		ID: h.ID, Owner: h.owner(), Title: h.Title, Agent: h.Agent, Created: h.Created, Updated: h.Updated,
		Turns: h.Turns, Active: h.Active, LastRun: h.LastRun,
	}
}

// beginRun makes a run the active one. title is that of a thread that does not exist yet.
func (h *head) beginRun(run, agent, title string, now time.Time) {
	if !h.exists() {
		h.Created, h.Title = now, event.CutTitle(title)
	}
	h.Updated, h.Order = now, 0
	h.Unfinished = addLast(h.Unfinished, run, maxUnfinished)
	h.Active, h.Agent = run, agent
}

// countTurn counts the next turn, which is that of a run.
func (h *head) countTurn(run string, size int) {
	if h.Active == run {
		h.Active = ""
	}
	h.Unfinished = withoutRun(h.Unfinished, run)
	h.Ended = addLast(h.Ended, run, maxEnded)
	h.Turns, h.Bytes, h.LastRun = h.Turns+1, h.Bytes+int64(size), run
}

// withoutRun returns runs without one, as a new slice.
func withoutRun(runs []string, run string) []string {
	return slices.DeleteFunc(slices.Clone(runs), func(r string) bool { return r == run })
}

// addLast returns runs with one at the end, at most limit of them, as a new slice.
func addLast(runs []string, run string, limit int) []string {
	runs = append(withoutRun(runs, run), run)
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

// turnSubject returns the subject of a turn of a thread, or of its part.
func turnSubject(key, incarnation, token string) string {
	return turnPrefix + key + "." + incarnation + "." + token
}

func (h *head) turnSubject(number int) string {
	return turnSubject(h.key(), h.Incarnation, strconv.Itoa(number))
}
