package jetstream

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
	"answerd/internal/event/jetstream/batch"
	"answerd/internal/event/jetstream/threads"
)

// Headers of the messages that answerd stores.
const (
	writerHeader = "Answerd-Writer" // INSTANCE ATTEMPT SEQ, then the kind for a control message; see messageInfo
	noteHeader   = "Answerd-Note"   // the data of a single note, in base64
	batchHeader  = "Answerd-Batch"  // COUNT: the data was encoded by package batch and has COUNT events
	seenHeader   = "Answerd-Seen"   // for a parked run: the position of the last input that its executor read
	untilHeader  = "Answerd-Until"  // for a parked run: when to wake it, in ms since the Unix epoch
	partsHeader  = "Answerd-Parts"  // NONCE COUNT: the payload is in COUNT other messages
)

// Kinds of control messages. A control message is stored among a run's events but is not an event. It repeats the event
// before it, so that a run's last message always contains the run's last event.
const (
	kindClaim    = "claim"    // another process became the run's writer
	kindNote     = "note"     // one or more notes (event.Journal) without new events
	kindReleased = "released" // the writer released the run, so any process may claim it
	kindParked   = "parked"   // the writer parked the run until an input arrives or until a given time
	// kindAbandoned marks a run that was created but not started in time, and that can no longer be started.
	kindAbandoned = "abandoned"
)

// readTimeout bounds one request to a stream.
const readTimeout = 5 * time.Second

// maxBatch is the largest number of messages that one request reads, and maxBatchBytes their largest total size.
const (
	maxBatch      = 256
	maxBatchBytes = 1 << 20
)

// maxParts is the largest number of parts of a payload.
const maxParts = 1 << 14

// message is a message that was read from a stream or received live.
type message = threads.Message

// newMessage converts msg, an answer of the direct get API or a republished message. In both cases the server describes
// the message in headers.
func newMessage(msg *nats.Msg) message {
	pos, _ := strconv.ParseUint(msg.Header.Get(js.SequenceHeader), 10, 64) // the server writes these headers
	when, _ := time.Parse(time.RFC3339Nano, msg.Header.Get(js.TimeStampHeaer))
	return message{Subject: msg.Header.Get(js.SubjectHeader), Pos: pos, Time: when, Header: msg.Header, Data: msg.Data}
}

// messageInfo holds what the headers of a message say about its writer and its events.
type messageInfo struct {
	instance string // the instanceID of the writer's Log
	attempt  int    // the writer's job attempt (event.Job.Attempt)
	seq      int64  // the number of the message's last event; a control message repeats the event before it
	kind     string // the kind of a control message; "" for a message with new events
	first    int64  // the number of the message's first event
	inBatch  bool   // the data was encoded by package batch
}

// isControl reports whether the message is a control message.
func (info messageInfo) isControl() bool { return info.kind != "" }

// String returns the value of writerHeader.
func (info messageInfo) String() string {
	s := info.instance + " " + strconv.Itoa(info.attempt) + " " + strconv.FormatInt(info.seq, 10)
	if info.isControl() {
		s += " " + info.kind
	}
	return s
}

// parseMessageInfo parses the headers of a message: writerHeader, as String formats it, and batchHeader if present.
func parseMessageInfo(header nats.Header) (info messageInfo, err error) {
	fields := strings.Fields(header.Get(writerHeader))
	if len(fields) < 3 {
		return info, fmt.Errorf("a message of the log has no writer")
	}
	info.instance = fields[0]
	if len(fields) > 3 {
		info.kind = fields[3]
	}
	if info.attempt, err = strconv.Atoi(fields[1]); err == nil {
		info.seq, err = strconv.ParseInt(fields[2], 10, 64)
	}
	if err != nil {
		return info, fmt.Errorf("parse the writer of a message of the log: %w", err)
	}
	info.first = info.seq
	countText := header.Get(batchHeader)
	if countText == "" {
		return info, nil
	}
	info.inBatch = true
	count, err := strconv.ParseInt(countText, 10, 64)
	isEmpty := count == 0 && info.seq > 0 // only notes before the first event need not repeat an event
	if err != nil || count < 0 || count > info.seq || isEmpty {
		return info, fmt.Errorf("a message of the log has %q events in a batch", countText)
	}
	info.first = info.seq - count + 1
	return info, nil
}

// readEvents returns the events in a message, and the message's info. For a control message it returns the one event
// that the message repeats, or none if the run had no events yet. If the payload is in parts, it reads the parts from
// the stream.
func (c *client) readEvents(ctx context.Context, msg message) (_ []event.Event, info messageInfo, _ error) {
	info, err := parseMessageInfo(msg.Header)
	if err != nil || info.seq == 0 { // 0: a control message before the first event
		return nil, info, err
	}
	payload, err := c.readPayload(ctx, msg)
	if err != nil {
		return nil, info, err
	}
	events, err := decodeEvents(payload, info)
	return events, info, err
}

// decodeEvents returns the events in a message's payload. It returns at least one event, or an error. info was parsed
// from the message's headers. The numbers of the events in a batch must match info.
func decodeEvents(payload []byte, info messageInfo) (events []event.Event, err error) {
	lines := [][]byte{payload}
	if info.inBatch {
		if lines, _, err = batch.Split(payload, info.seq); err != nil {
			return nil, err
		}
	}
	for i, line := range lines {
		e, err := event.Decode(line)
		if err != nil {
			return nil, err
		}
		if expected := info.first + int64(i); info.inBatch && e.Seq != expected {
			return nil, fmt.Errorf("a batch of the log has event %d in the place of %d", e.Seq, expected)
		}
		events = append(events, e)
	}
	if count := info.seq - info.first + 1; len(events) == 0 || int64(len(events)) != count {
		return nil, fmt.Errorf("a batch of the log ends before event %d", info.seq)
	}
	return events, nil
}

// readEvent returns the last event in a message, and the message's info. The event is zero if the message is a control
// message before the run's first event.
func (c *client) readEvent(ctx context.Context, msg message) (_ event.Event, info messageInfo, _ error) {
	events, info, err := c.readEvents(ctx, msg)
	if len(events) == 0 {
		return event.Event{}, info, err
	}
	return events[len(events)-1], info, err
}

// setPayload stores payload in msg, which the caller then publishes. If payload is longer than maxPart bytes,
// setPayload publishes it in parts and sets a header of msg that refers to the parts.
func (c *client) setPayload(ctx context.Context, run string, msg *nats.Msg, payload []byte) error {
	if len(payload) <= c.maxPart {
		msg.Data = payload
		return nil
	}
	nonce := strings.ToLower(rand.Text()) // no other message refers to these parts
	count := 0
	for data := range slices.Chunk(payload, c.maxPart) {
		part := nats.NewMsg(runSubject(run, partToken+"."+nonce+"."+strconv.Itoa(count)))
		part.Data = data
		count++
		if _, err := c.publishAfter(ctx, runsName, part, 0, appendTimeout); err != nil {
			return err
		}
	}
	msg.Header.Set(partsHeader, nonce+" "+strconv.Itoa(count))
	return nil
}

// readPayload returns a message's payload, and joins the parts if the message refers to parts. It returns event.ErrGone
// if a part is no longer kept.
func (c *client) readPayload(ctx context.Context, msg message) ([]byte, error) {
	parts := msg.Header.Get(partsHeader)
	if parts == "" {
		return msg.Data, nil
	}
	nonce, countText, _ := strings.Cut(parts, " ")
	count, err := strconv.Atoi(countText)
	if err != nil || !event.ValidID(nonce) || count < 1 || count > maxParts {
		return nil, fmt.Errorf("a message of the log has malformed parts")
	}
	run, _ := runOf(msg.Subject)
	partSubjects := runSubject(run, partToken+"."+nonce+".*")
	var payload []byte
	from := uint64(0)
	for next := 0; next < count; { // next is the number of the next part
		found, _, err := c.readNext(ctx, runsName, partSubjects, from, maxBatch)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, event.ErrGone
		}
		for _, part := range found[:min(len(found), count-next)] {
			if lastToken(part.Subject) != strconv.Itoa(next) {
				return nil, event.ErrGone
			}
			payload = append(payload, part.Data...)
			from = part.Pos + 1
			next++
		}
	}
	return payload, nil
}

// directGet is a request to JetStream's direct get API (ADR-31 of nats-architecture-and-design: "Direct Get API", and
// "Batched requests" and "Multi-subject requests", which need server 2.11). The server creates no consumer for it. Any
// replica of the stream may answer, so the answer can lack messages that were appended very recently. Use
// readFromLeader where that matters. Exactly one of Next and LastOf is set.
type directGet struct {
	Next     string   `json:"next_by_subj,omitempty"` // asks for messages on this subject, which may have wildcards
	From     uint64   `json:"seq,omitempty"`          // with Next: the lowest position
	LastOf   []string `json:"multi_last,omitempty"`   // asks for the last message of each of these subjects
	Batch    int      `json:"batch,omitempty"`        // the largest number of messages
	MaxBytes int      `json:"max_bytes,omitempty"`    // the largest total size of the messages
}

// readBatch sends get and returns the messages of the answer, ordered by position. get.Batch defaults to maxBatch.
// get.MaxBytes is always set to maxBatchBytes. more is true if the stream has more messages that match get. readBatch
// returns event.ErrUnavailable if the answer is not complete within readTimeout.
func (c *client) readBatch(ctx context.Context, stream string, get directGet) (found []message, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if get.Batch == 0 {
		get.Batch = maxBatch
	}
	get.MaxBytes = maxBatchBytes
	if get.Next != "" && get.From == 0 {
		get.From = 1 // the first pos of a stream
	}

	// Use ChanSubscribe with a small channel, because SubscribeSync allocates one for 65,536 messages each time.
	answers := make(chan *nats.Msg, get.Batch+2) // the messages, the end of the batch, and one to spare
	sub, err := c.read.ChanSubscribe(c.read.NewInbox(), answers)
	if err != nil {
		return nil, false, unavailableError("read the log", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails on a closed connection only
	body, err := json.Marshal(get)
	if err != nil {
		return nil, false, fmt.Errorf("read the log: %w", err)
	}
	if err := c.read.PublishRequest("$JS.API.DIRECT.GET."+stream, sub.Subject, body); err != nil {
		return nil, false, unavailableError("read the log", err)
	}

	for {
		var msg *nats.Msg
		select {
		case msg = <-answers:
		case <-ctx.Done():
			return nil, false, unavailableError("read the log", context.Cause(ctx))
		case <-c.ctx.Done():
			return nil, false, unavailableError("read the log", context.Cause(c.ctx))
		}
		switch status := msg.Header.Get("Status"); status {
		case "":
			found = append(found, newMessage(msg))
		case "204": // the end of the batch
			pending := msg.Header.Get("Nats-Num-Pending") // missing if the answer is complete
			return found, pending != "" && pending != "0", nil
		case "404": // no message matches get
			return found, false, nil
		default:
			return nil, false, unavailableError("read the log", fmt.Errorf("status %s", status))
		}
	}
}

// readLast returns the last message of a subject, or nil if the subject is empty. In a cluster any server may answer,
// so the message may not be the newest one. A nil result has been confirmed by the leader.
func (c *client) readLast(ctx context.Context, stream, subject string) (*message, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	msg, err := c.read.RequestWithContext(ctx, "$JS.API.DIRECT.GET."+stream+"."+subject, nil)
	if err != nil {
		return nil, unavailableError("read the log", err)
	}
	switch status := msg.Header.Get("Status"); {
	case status == "":
		return new(newMessage(msg)), nil
	case status != "404":
		return nil, unavailableError("read the log", fmt.Errorf("status %s", status))
	case c.clustered: // the server that answered may lack the message
		return c.readLastFromLeader(ctx, stream, subject)
	}
	return nil, nil
}

// readNext returns up to batch messages of a subject at position from or later. more is true if the stream may have
// more. In a cluster any server may answer, so the result may lack the newest messages. An empty result is reliable:
// before it returns one, readNext also asks the leader for a single message.
func (c *client) readNext(ctx context.Context, stream, subject string, from uint64, batch int) (found []message, more bool, err error) {
	found, more, err = c.readBatch(ctx, stream, directGet{Next: subject, From: from, Batch: batch})
	if err != nil || len(found) > 0 || !c.clustered {
		return found, more, err
	}
	m, err := c.readFromLeader(ctx, stream, directGet{Next: subject, From: max(from, 1)})
	if err != nil || m == nil {
		return nil, false, err
	}
	return []message{*m}, true, nil
}

// readLastFromLeader returns the last message of a subject from the stream's leader, or nil if the subject is empty.
// Other servers may lack a message that a client of answerd has already seen.
func (c *client) readLastFromLeader(ctx context.Context, stream, subject string) (*message, error) {
	return c.readFromLeader(ctx, stream, map[string]string{"last_by_subj": subject})
}

// readFromLeader returns the message that matches query from the stream's leader, or nil if none matches. query is the
// body of a STREAM.MSG.GET request. A server that was cut off from its cluster still answers as the leader for some
// seconds, without newer messages. In that case readFromLeader returns event.ErrUnavailable.
func (c *client) readFromLeader(ctx context.Context, stream string, query any) (*message, error) {
	body, err := json.Marshal(query)
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := c.confirmLeader(ctx, stream); err != nil {
		return nil, err
	}
	msg, err := c.read.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+stream, body)
	if err != nil {
		return nil, unavailableError("read the log", err)
	}
	// A confirmation is valid only for a second, which may have passed before the server answered.
	if err := c.confirmLeader(ctx, stream); err != nil {
		return nil, err
	}
	found, err := decodeStoredMessage(msg.Data)
	if err != nil {
		return nil, unavailableError("read the log", err)
	}
	return found, nil
}

// decodeStoredMessage decodes the answer to a STREAM.MSG.GET request. It returns nil if the stream has no such message.
func decodeStoredMessage(data []byte) (*message, error) {
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
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, err
	}
	switch {
	case answer.Error != nil && answer.Error.ErrorCode == js.JSErrCodeMessageNotFound:
		return nil, nil
	case answer.Error != nil:
		return nil, answer.Error
	}
	stored := answer.Message
	header := make(nats.Header)
	if len(stored.Hdrs) > 0 {
		var err error
		if header, err = nats.DecodeHeadersMsg(stored.Hdrs); err != nil {
			return nil, err
		}
	}
	return &message{Subject: stored.Subject, Pos: stored.Seq, Time: stored.Time, Header: header, Data: stored.Data}, nil
}

// readLastOfEach returns the last message of each subject, keyed by subject. Subjects without a message are missing
// from the map. In a cluster any server may answer, so the newest messages may be missing.
func (c *client) readLastOfEach(ctx context.Context, stream string, subjects []string) (map[string]*message, error) {
	bySubject := make(map[string]*message, len(subjects))
	missing := subjects
	for len(missing) > 0 {
		// An answer ends early at maxBatch messages or maxBatchBytes.
		found, more, err := c.readBatch(ctx, stream, directGet{LastOf: missing})
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			bySubject[m.Subject] = &m
		}
		if !more || len(found) == 0 {
			break
		}
		missing = slices.DeleteFunc(slices.Clone(missing), func(s string) bool { return bySubject[s] != nil })
	}
	return bySubject, nil
}

// readLastOfEachComplete is like readLastOfEach, but in a cluster it asks the leader for each subject that is missing
// from the answer. So a subject that is missing from the map has no messages. It stops at the first error, and the map
// is then incomplete.
func (c *client) readLastOfEachComplete(ctx context.Context, stream string, subjects []string) (map[string]*message, error) {
	bySubject, err := c.readLastOfEach(ctx, stream, subjects)
	if err != nil || !c.clustered {
		return bySubject, err
	}
	for _, subject := range subjects {
		if bySubject[subject] != nil {
			continue
		}
		m, err := c.readLastFromLeader(ctx, stream, subject)
		if err != nil {
			return bySubject, err
		}
		if m != nil {
			bySubject[subject] = m
		}
	}
	return bySubject, nil
}

// unavailableError returns an error that wraps both event.ErrUnavailable and err, which came from the connection or the
// server. attempted says what the log tried to do, and is the beginning of the error's text.
func unavailableError(attempted string, err error) error {
	return fmt.Errorf("%s: %w: %w", attempted, event.ErrUnavailable, err)
}

// readInputs returns the first inputs of a run at positions above after, at most maxBatch of them.
func (c *client) readInputs(ctx context.Context, id string, after int64) ([]event.Input, error) {
	found, _, err := c.readNext(ctx, runsName, runSubject(id, inputToken+".*"), uint64(after)+1, maxBatch)
	if err != nil {
		return nil, err
	}
	var inputs []event.Input
	for _, m := range found {
		data, err := c.readPayload(ctx, m)
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, event.Input{ID: lastToken(m.Subject), Pos: int64(m.Pos), Data: data})
	}
	return inputs, nil
}

// savePayload stores a payload on a run's subject that ends with tokens. It keeps earlier payloads on that subject, but
// readers use only the newest.
func (c *client) savePayload(ctx context.Context, id, tokens string, payload []byte) error {
	m := nats.NewMsg(runSubject(id, tokens))
	m.Header.Set(writerHeader, messageInfo{instance: c.instanceID, attempt: firstAttempt}.String())
	if err := c.setPayload(ctx, id, m, payload); err != nil {
		return err
	}
	return c.publishUnordered(ctx, "save in the log", m, nil)
}
