package jetstream

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
)

// message is what a stream keeps, read back.
type message struct {
	subject string
	at      uint64 // its number in the stream
	before  uint64 // the number of the message before it on its subject; only of a live one
	time    time.Time
	header  nats.Header
	data    []byte
}

// readTimeout bounds one question to a stream.
const readTimeout = 5 * time.Second

// maxBatch bounds the messages of one answer, and maxBatchBytes their bytes.
const (
	maxBatch      = 256
	maxBatchBytes = 1 << 20
)

// query is a direct get: no consumer is made, and any replica may answer.
type query struct {
	From     uint64   `json:"seq,omitempty"`
	Next     string   `json:"next_by_subj,omitempty"` // messages of this subject, from From on
	LastOf   []string `json:"multi_last,omitempty"`   // or the last ones of each of these
	Batch    int      `json:"batch,omitempty"`
	MaxBytes int      `json:"max_bytes,omitempty"`
}

// batch asks a stream for messages. more reports whether there are others after them.
func (l *Log) batch(ctx context.Context, stream string, q query) (found []message, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if q.Batch == 0 {
		q.Batch = maxBatch
	}
	q.MaxBytes = maxBatchBytes
	if q.Next != "" && q.From == 0 {
		q.From = 1
	}
	// SubscribeSync would make a channel of 65,536 for each.
	answers := make(chan *nats.Msg, q.Batch+2)
	sub, err := l.read.ChanSubscribe(l.read.NewInbox(), answers)
	if err != nil {
		return nil, false, unavailable("read the log", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails on a closed connection only
	body, err := json.Marshal(q)
	if err != nil {
		return nil, false, fmt.Errorf("read the log: %w", err)
	}
	if err := l.read.PublishRequest("$JS.API.DIRECT.GET."+stream, sub.Subject, body); err != nil {
		return nil, false, unavailable("read the log", err)
	}
	for {
		var m *nats.Msg
		select {
		case m = <-answers:
		case <-ctx.Done():
			return nil, false, unavailable("read the log", context.Cause(ctx))
		case <-l.ctx.Done():
			return nil, false, unavailable("read the log", context.Cause(l.ctx))
		}
		switch m.Header.Get("Status") {
		case "":
			found = append(found, messageOf(m))
		case "204":
			pending, err := strconv.ParseUint(m.Header.Get("Nats-Num-Pending"), 10, 64)
			return found, err == nil && pending > 0, nil
		case "404":
			return found, false, nil
		default:
			return nil, false, unavailable("read the log", fmt.Errorf("status %s", m.Header.Get("Status")))
		}
	}
}

// last returns the last message of a subject, nil if there is none.
func (l *Log) last(ctx context.Context, stream, subject string) (*message, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	m, err := l.read.RequestWithContext(ctx, "$JS.API.DIRECT.GET."+stream+"."+subject, nil)
	switch {
	case err != nil:
		return nil, unavailable("read the log", err)
	case m.Header.Get("Status") == "":
		found := messageOf(m)
		return &found, nil
	case m.Header.Get("Status") != "404":
		return nil, unavailable("read the log", fmt.Errorf("status %s", m.Header.Get("Status")))
	case !l.clustered:
		return nil, nil
	}
	return l.lastAtLeader(ctx, stream, subject)
}

// lastAtLeader is last without the chance of an answer that is a moment old: a "no"
// from a replica that lags would deny what was promised elsewhere.
func (l *Log) lastAtLeader(ctx context.Context, stream, subject string) (*message, error) {
	body, err := json.Marshal(map[string]string{"last_by_subj": subject})
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	m, err := l.read.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+stream, body)
	if err != nil {
		return nil, unavailable("read the log", err)
	}
	var answer struct {
		Error   *js.APIError
		Message struct {
			Subject string
			Seq     uint64
			Hdrs    []byte
			Data    []byte
			Time    time.Time
		}
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return nil, unavailable("read the log", err)
	}
	switch found := answer.Message; {
	case answer.Error != nil && answer.Error.ErrorCode == js.JSErrCodeMessageNotFound:
		return nil, nil
	case answer.Error != nil:
		return nil, unavailable("read the log", answer.Error)
	default:
		header := make(nats.Header)
		if len(found.Hdrs) > 0 {
			if header, err = nats.DecodeHeadersMsg(found.Hdrs); err != nil {
				return nil, unavailable("read the log", err)
			}
		}
		return &message{subject: found.Subject, at: found.Seq, time: found.Time, header: header, data: found.Data}, nil
	}
}

func messageOf(m *nats.Msg) message {
	at, _ := strconv.ParseUint(m.Header.Get(js.SequenceHeader), 10, 64) // the server's own
	before, _ := strconv.ParseUint(m.Header.Get(js.LastSequenceHeader), 10, 64)
	when, _ := time.Parse(time.RFC3339Nano, m.Header.Get(js.TimeStampHeaer))
	return message{subject: m.Header.Get(js.SubjectHeader), at: at, before: before, time: when, header: m.Header, data: m.Data}
}

// unavailable is an error of the connection or the server: what is known to callers is
// that the log did not answer.
func unavailable(what string, err error) error {
	return fmt.Errorf("%s: %w: %w", what, event.ErrUnavailable, err)
}
