package jetstream

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"answerd/internal/event"
)

// Headers of our messages.
const (
	writerHeader = "Answerd-Writer" // LOG ATTEMPT SEQ, and its kind where it is no event
	noteHeader   = "Answerd-Note"   // what a note says, in base64
	seenHeader   = "Answerd-Seen"   // of a parked run: the position of the last input that was heard
	untilHeader  = "Answerd-Until"  // of a parked run: ms since the Unix epoch
	partsHeader  = "Answerd-Parts"  // NONCE COUNT: the payload is in that many messages
)

// writerID says who wrote a message to a run, and where in the run it is.
type writerID struct {
	log     string
	attempt int
	seq     int64 // of the event; where it is none, of the one before it
	kind    string
}

// What messages of a run are that are no events. They repeat the event before them, so
// that the last message of a run always tells the last event.
const (
	claimed = "claim"
	noted   = "note"
	// The last words of a process that gives the run up in an orderly way.
	released = "released"
	parked   = "parked"
)

// silent reports whether the message is no event.
func (w writerID) silent() bool { return w.kind != "" }

func (w writerID) String() string {
	s := w.log + " " + strconv.Itoa(w.attempt) + " " + strconv.FormatInt(w.seq, 10)
	if w.silent() {
		s += " " + w.kind
	}
	return s
}

func parseWriter(s string) (w writerID, err error) {
	f := strings.Fields(s)
	if len(f) < 3 {
		return w, fmt.Errorf("a message of the log has no writer")
	}
	if w.log = f[0]; len(f) > 3 {
		w.kind = f[3]
	}
	if w.attempt, err = strconv.Atoi(f[1]); err == nil {
		w.seq, err = strconv.ParseInt(f[2], 10, 64)
	}
	if err != nil {
		return w, fmt.Errorf("the writer of a message of the log: %w", err)
	}
	return w, nil
}

// event reads back the event that a message is, or repeats.
func (l *Log) event(ctx context.Context, m message) (event.Event, writerID, error) {
	by, err := parseWriter(m.header.Get(writerHeader))
	if err != nil {
		return event.Event{}, by, err
	}
	if by.seq == 0 {
		return event.Event{}, by, nil
	}
	line, err := l.unpack(ctx, m)
	if err != nil {
		return event.Event{}, by, err
	}
	e, err := event.Decode(line)
	return e, by, err
}

// pack makes a payload fit into one message, by cutting it into parts before.
func (l *Log) pack(ctx context.Context, id string, m *nats.Msg, payload []byte) error {
	if len(payload) <= l.maxPart {
		m.Data = payload
		return nil
	}
	nonce, n := strings.ToLower(rand.Text()), 0
	for ; len(payload) > 0; n++ {
		part := nats.NewMsg(runRoot + runSubject(id) + "." + partKind + "." + nonce + "." + strconv.Itoa(n))
		part.Data = payload[:min(l.maxPart, len(payload))]
		payload = payload[len(part.Data):]
		if _, err := l.publish(ctx, runsName, part, 0, patience); err != nil {
			return err
		}
	}
	m.Header.Set(partsHeader, nonce+" "+strconv.Itoa(n))
	return nil
}

// unpack is the payload of a message. ErrGone if a part of it is no longer kept.
func (l *Log) unpack(ctx context.Context, m message) ([]byte, error) {
	parts := m.header.Get(partsHeader)
	if parts == "" {
		return m.data, nil
	}
	nonce, count, _ := strings.Cut(parts, " ")
	n, err := strconv.Atoi(count)
	if err != nil || !event.ValidID(nonce) {
		return nil, fmt.Errorf("a message of the log has no proper parts")
	}
	id := strings.SplitN(m.subject, ".", 5)[3]
	var payload []byte
	from := uint64(0)
	for got := 0; got < n; {
		found, _, err := l.batch(ctx, runsName, query{Next: runRoot + runSubject(id) + "." + partKind + "." + nonce + ".*", From: from})
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, event.ErrGone
		}
		for _, part := range found {
			if lastToken(part.subject) != strconv.Itoa(got) {
				return nil, event.ErrGone
			}
			payload, from = append(payload, part.data...), part.at+1
			got++
		}
	}
	return payload, nil
}
