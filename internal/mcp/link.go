package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"answerd/internal/mcp/transport"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// frames is a connection that carries whole JSON-RPC messages: the pipes of a child
// process, a WebSocket. read is called by one goroutine, write by one other; close
// from anywhere and more than once. Any error of read or write is the end of the
// connection; if it is a *failure, its public text is what callers are told.
type frames interface {
	// read is the next message, in a slice of its own and of at most maxBody bytes;
	// more is tooLarge(maxBody). After close it fails at once.
	read() ([]byte, error)
	// write sends one message whole. It may wait for the peer, but no longer than
	// until close. Nobody's context is in it: a caller who gives up must not leave
	// half a message behind. A *failure with notRun promises that the peer got
	// nothing of the message. data may be appended to, within its capacity.
	write(data []byte) error
	// close ends the connection without waiting, and makes read and write return.
	close() error
}

// link is for a connection of frames what streamable is for HTTP: it stands
// between the SDK and the server, and sees every message both ways. It notes for each
// exchange whether its request was sent, hands progress to the exchange that asked for it,
// and log messages and the server's own requests to the one call that they can be about,
// bounds what the server may ask, and keeps from the SDK what would end the session that all
// runs share (F16): what it dislikes is one message that is dropped. When the connection
// ends, so does every exchange under way, before the SDK learns of it: a request that was
// sent may have run, one that wasn't is sent on the next session.
//
// It is the sdk.Transport and the sdk.Connection of one session:
//
//	cs, err := sdkClient(cfg, o).Connect(ctx, newLink(open, log, &once), opts)
//
// open makes the connection under the handshake's context, but must not bind its life
// to it; a *failure of open is what callers are told. once, of the server, is for the
// one warning that query parameters have no place here (S0.1).
type link struct {
	open  func(context.Context) (frames, error)
	log   *slog.Logger
	once  *sync.Once
	of    *session // whose connection it is
	conn  frames
	batch []json.RawMessage // read, not looked at yet; Read's own
	out   chan *outFrame    // to the writer
	ended chan struct{}     // closed when the connection is over
	gone  chan struct{}     // closed when the writer has ended
	// recalled, of capacity 1, says that there are recalls.
	recalled chan struct{}

	mu      sync.Mutex // protects what follows
	err     error      // why it is over; nil before
	asked   map[jsonrpc.ID]*question
	tokens  map[string]*exchange    // by progress token
	theirs  map[jsonrpc.ID]struct{} // the server's requests that we owe an answer
	died    string                  // the method of a question that the end left open
	left    map[jsonrpc.ID]struct{} // calls that we gave up, and the server perhaps didn't
	crowded bool                    // there were more of these than are remembered
	recalls []*outFrame             // cancellations that the writer doesn't have yet
	dropped int
	strays  int // messages that could be of no call, or of several
}

// question is a request of ours that has no answer yet.
type question struct {
	id      jsonrpc.ID
	x       *exchange // nil where the SDK asks on its own behalf
	method  string
	sent    bool // or is being sent
	writing bool // the writer has it
}

// maxDropLog is how many dropped messages of one connection reach the log.
const maxDropLog = 5

var errLinkClosed = errors.New("the connection was closed by us")

// newLink is the transport of one session, over what open makes.
func newLink(open func(context.Context) (frames, error), log *slog.Logger, once *sync.Once) *link {
	return &link{
		open: open, log: log, once: once,
		out: make(chan *outFrame), ended: make(chan struct{}), gone: make(chan struct{}),
		recalled: make(chan struct{}, 1),
		asked:    map[jsonrpc.ID]*question{}, tokens: map[string]*exchange{}, theirs: map[jsonrpc.ID]struct{}{},
		left: map[jsonrpc.ID]struct{}{},
	}
}

// Connect opens the connection. It implements sdk.Transport.
func (l *link) Connect(ctx context.Context) (sdk.Connection, error) {
	conn, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	l.of, l.conn = exchangeOf(ctx).session, conn // of the handshake
	go l.write()
	return l, nil
}

// SessionID is "": such a connection is the session.
func (l *link) SessionID() string { return "" }

// Close ends the connection and returns when the writer has ended. The SDK calls it
// when nothing is under way, or after Read has failed.
func (l *link) Close() error {
	l.end(errLinkClosed)
	<-l.gone
	return nil
}

// Read is the next message that concerns the SDK.
func (l *link) Read(context.Context) (msg jsonrpc.Message, err error) {
	defer transport.Recover(l.log, func(f *transport.Failure) {
		l.end(f)
		msg, err = nil, f
	})
	for {
		data, err := l.next()
		if err != nil {
			l.end(err)
			return nil, fmt.Errorf("read: %w", err)
		}
		if msg := l.receive(data); msg != nil {
			return msg, nil
		}
	}
}

// next is the next message. Servers of 2025-03-26 may send several in one frame
// (JSON-RPC section 6).
func (l *link) next() (json.RawMessage, error) {
	for len(l.batch) == 0 {
		data, err := l.conn.read()
		switch {
		case err != nil:
			return nil, err
		case len(data) == 0 || data[0] != '[':
			return data, nil
		case json.Unmarshal(data, &l.batch) != nil:
			l.drop("a batch does not decode")
			l.batch = nil
		}
	}
	data := l.batch[0]
	l.batch = l.batch[1:]
	return data, nil
}

// take is the open question id, which is open no longer; nil where there is none.
func (l *link) take(id jsonrpc.ID) *question {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.takeLocked(id)
}

func (l *link) takeLocked(id jsonrpc.ID) *question {
	q := l.asked[id]
	if q == nil {
		return nil
	}
	delete(l.asked, id)
	if q.x != nil {
		delete(l.tokens, q.x.token)
	}
	return q
}

// end is the end of the connection. Whoever is still waiting learns why before the SDK
// retires their calls.
func (l *link) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return
	}
	l.err = err
	waiting := 0
	for _, q := range l.asked {
		if q.method != methodListen { // which has no answer to wait for
			waiting++
		}
	}
	alone := waiting == 1
	for id, q := range l.asked {
		delete(l.asked, id)
		l.died = q.method
		if !q.writing {
			l.tellLocked(q, alone)
		}
	}
	clear(l.tokens)
	close(l.ended)
	_ = l.conn.close() // returns at once
	if l.dropped > 0 {
		l.log.Debug("MCP messages were dropped", "messages", l.dropped)
	}
	if l.strays > 0 {
		l.log.Debug("MCP messages could be of no call for certain", "messages", l.strays)
	}
}

// tellLocked tells q what the end of the connection means for it: it was not sent, or
// may have run. An answer that was too large to read is that of the one who asked alone.
func (l *link) tellLocked(q *question, alone bool) {
	if q.x == nil {
		return
	}
	f, _ := errors.AsType[*transport.Failure](l.err)
	long, _ := errors.AsType[*overlong](l.err)
	switch {
	case !q.sent:
		q.x.fail(transport.LostSession(l.err))
	case long != nil && long.answers.IsValid() && long.answers != q.id:
		q.x.fail(cutOff(l.err))
	case f != nil && f.Kind == TooLarge && (alone || long != nil && long.answers == q.id):
		q.x.fail(f)
	default:
		q.x.fail(cutOff(l.err))
	}
}

// diedAsking reports whether the connection ended in the middle of a request of that
// method.
func (l *link) diedAsking(method string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.died == method
}

// because is err with the reason why the connection ended, if it did: the SDK says only
// that it is closed, where its reader saw the end before its writer.
func (l *link) because(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil || errors.Is(err, l.err) {
		return err
	}
	if f, ok := errors.AsType[*transport.Failure](err); ok && f.Lost {
		return transport.LostSession(l.err)
	}
	return fmt.Errorf("%w: %w", err, l.err)
}

// cutOff is a request that was sent over a connection that then ended.
func cutOff(err error) *transport.Failure {
	public := "the connection ended before its answer"
	if f, ok := errors.AsType[*transport.Failure](err); ok {
		public = f.Public
	}
	return &transport.Failure{Kind: UnknownOutcome, Public: public, Err: err}
}
