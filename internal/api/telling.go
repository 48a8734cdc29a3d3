package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// maxSaid bounds the events that a telling keeps for those who come a little later; their
// bytes are bounded by maxWrite, or by the newest event where that alone has more. It is
// about what one reader gathers before it writes: whoever stood with it is not left behind
// by one turn of the scheduler.
const maxSaid = 1024

// tellings are what is told to more than one reader, as long as somebody reads it.
type tellings struct {
	mu sync.Mutex // protects all, and that the readers of each of them are counted
	// all are by the digest of what their encoders are made of: with another header, the same
	// run is told otherwise.
	all map[[sha256.Size]byte]*telling
}

// telling is a run as one face tells it. Its readers share an encoder: who is the first to
// need an event encodes it, and the others take the bytes. None of them stands after what
// went through it, so the encoder needs nobody in particular, and nobody waits for it but
// while an event is encoded. For a lone reader nothing is kept besides.
type telling struct {
	begin   func() encoder // one that no event has gone through
	readers atomic.Int32

	mu   sync.Mutex // protects what follows
	enc  encoder    // nil before the first event, and after a panic
	seq  int64      // the newest event that went through enc
	said [][]byte   // what the newest events became, seq the last of them
	size int        // of them together, in bytes
}

// join makes one more a reader of what is told with that header. leave must be called.
func (ts *tellings) join(header any, begin func() encoder) (t *telling, leave func()) {
	data, err := json.Marshal(header)
	if err != nil { // whatever cannot be told apart from others is told alone
		t = &telling{begin: begin}
		t.readers.Add(1)
		return t, func() {}
	}
	key := sha256.Sum256(fmt.Appendf(data, "%T", header))
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.all == nil {
		ts.all = make(map[[sha256.Size]byte]*telling)
	}
	t = ts.all[key]
	if t == nil {
		t = &telling{begin: begin}
		ts.all[key] = t
	}
	t.readers.Add(1)
	return t, func() {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		if t.readers.Add(-1) == 0 {
			delete(ts.all, key)
		}
	}
}

// tell appends what an event becomes. ok is false if it must be encoded elsewhere: it is
// none of the newest, nor the next one.
func (t *telling) tell(buf []byte, e event.Event) (_ []byte, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := len(t.said) - 1 - int(t.seq-e.Seq); i >= 0 && i < len(t.said) {
		return append(buf, t.said[i]...), true
	}
	if e.Seq != t.seq+1 {
		return buf, false
	}
	enc := t.enc
	if t.seq == 0 {
		enc = t.begin()
	}
	if enc == nil {
		return buf, false
	}
	t.enc = nil // for good if this panics: then part of an event went through it
	from := len(buf)
	buf = appendFrames(buf, enc.Encode(e))
	t.enc, t.seq = enc, e.Seq
	t.keepLocked(buf[from:])
	return buf, true
}

// keepLocked keeps what the newest event became, unless its only reader has it.
func (t *telling) keepLocked(told []byte) {
	if t.readers.Load() == 1 {
		t.said, t.size = nil, 0
		return
	}
	t.said = append(t.said, bytes.Clone(told))
	t.size += len(told)
	for len(t.said) > 1 && (len(t.said) > maxSaid || t.size > maxWrite) {
		t.size -= len(t.said[0])
		t.said[0], t.said = nil, t.said[1:]
	}
}

// expired is what the encoder says of a token that ends after event pos. ok is false if it
// has gone on already.
func (t *telling) expired(pos int64) (_ []sse.Frame, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.enc == nil || t.seq != pos {
		return nil, false
	}
	return t.enc.TokenExpired(), true
}
