package event

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// Encode returns event number seq of a run, including its JSON. ms is the event's time in milliseconds since the Unix
// epoch. Encode returns the same errors as AppendEncode.
func Encode(run string, seq, ms int64, body Body) (Event, error) {
	line, err := AppendEncode(nil, run, seq, ms, body)
	if err != nil {
		return Event{}, err
	}
	return Event{RunID: run, Seq: seq, Time: ms, Body: body, JSON: line}, nil
}

// AppendEncode appends an event's JSON to line and returns the extended slice. It adds no line feed. The other
// parameters are those of Encode. It returns an error for an Unknown body and for a body that encoding/json cannot
// encode. It does not validate the JSON values inside a body that implements appender.
func AppendEncode(line []byte, run string, seq, ms int64, body Body) ([]byte, error) {
	if u, ok := body.(Unknown); ok {
		return nil, fmt.Errorf("encode %s event: this version does not know the type", u.kind)
	}
	e := Event{RunID: run, Seq: seq, Time: ms, Body: body}
	if a, ok := body.(appender); ok {
		line = e.appendEnvelope(slices.Grow(line, a.size()+envelopeSize))
		return append(a.appendFields(line), '}'), nil
	}
	fields, err := MarshalJSON(body)
	if err != nil {
		return nil, fmt.Errorf("encode %s event: %w", body.Type(), err)
	}
	line = e.appendEnvelope(slices.Grow(line, len(fields)+envelopeSize))
	return append(line, fields[len("{"):]...), nil
}

// envelopeSize estimates the length of the members that every event has.
const envelopeSize = 128

// appendEnvelope appends the opening brace, the members that every event has, and a comma. It escapes nothing: an
// event's type and a run's id (see ValidID) contain no characters that JSON escapes.
func (e Event) appendEnvelope(line []byte) []byte {
	line = append(append(line, `{"type":"`...), e.Body.Type()...)
	line = append(append(line, `","run_id":"`...), e.RunID...)
	line = strconv.AppendInt(append(line, `","seq":`...), e.Seq, 10)
	line = strconv.AppendInt(append(line, `,"ts":`...), e.Time, 10)
	return append(line, ',')
}

// Decode returns the event in a line of JSON that Encode made, possibly in another version of answerd. If this version
// does not know the event's type, the body is Unknown. Members that this version does not know are available only in
// the event's JSON. That JSON is line itself, so the caller must not change line afterwards.
func Decode(line []byte) (Event, error) {
	var envelope struct {
		Type  Type   `json:"type"`
		RunID string `json:"run_id"`
		Seq   int64  `json:"seq"`
		TS    int64  `json:"ts"`
	}
	if err := json.Unmarshal(line, &envelope); err != nil {
		return Event{}, fmt.Errorf("decode an event: %w", err)
	}
	body, err := decodeBody(envelope.Type, line)
	if err != nil {
		return Event{}, err
	}
	return Event{RunID: envelope.RunID, Seq: envelope.Seq, Time: envelope.TS, Body: body, JSON: line}, nil
}

// decodeBody returns the body of an event of type typ. If this version does not know the type, the body is Unknown.
func decodeBody(typ Type, line []byte) (Body, error) {
	i := slices.IndexFunc(decoders, func(d decoder) bool { return d.typ == typ })
	switch {
	case i < 0 && !isTypeName(typ):
		return nil, fmt.Errorf("decode an event: %.100q is not a type", typ)
	case i < 0:
		return Unknown{typ}, nil
	}
	body, err := decoders[i].decode(line)
	if err != nil {
		return nil, fmt.Errorf("decode %s event: %w", typ, err)
	}
	return body, nil
}

// maxTypeName bounds the length of an event's type, in bytes.
const maxTypeName = 64

// isTypeName reports whether t can be an event type of another version: 1 to maxTypeName lower-case letters, digits and
// "_". Server-Sent Events carry the type in a line of its own, so a line break in it would be an injection.
func isTypeName(t Type) bool {
	for _, c := range []byte(t) {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '_':
		default:
			return false
		}
	}
	return t != "" && len(t) <= maxTypeName
}

// decoder decodes the JSON of an event into a body of type typ.
type decoder struct {
	typ    Type
	decode func(line []byte) (Body, error)
}

// decoders has one decoder per event type, in the order in which a run may have the events.
var decoders = []decoder{
	decoderOf[Start](), decoderOf[StepStart](), decoderOf[StepEnd](), decoderOf[StepReset](),
	decoderOf[ReasoningStart](), decoderOf[ReasoningDelta](), decoderOf[ReasoningEnd](),
	decoderOf[TextStart](), decoderOf[TextDelta](), decoderOf[TextEnd](),
	decoderOf[ToolCallStart](), decoderOf[ToolCallArgs](), decoderOf[ToolCall](),
	decoderOf[ApprovalRequired](), decoderOf[ApprovalResolved](), decoderOf[Elicitation](), decoderOf[ElicitationResolved](),
	decoderOf[ToolProgress](), decoderOf[LogMessage](), decoderOf[ToolResult](), decoderOf[ToolError](),
	decoderOf[Budget](), decoderOf[BudgetRequired](), decoderOf[BudgetResolved](), decoderOf[Suspended](),
	decoderOf[FinalAnswer](), decoderOf[RunError](), decoderOf[Cancelled](),
}

// decoderOf returns the decoder for bodies of type B. The decoder ignores the envelope and unknown members.
func decoderOf[B Body]() decoder {
	var zero B
	return decoder{zero.Type(), func(line []byte) (Body, error) {
		var b B
		err := json.Unmarshal(line, &b)
		return b, err
	}}
}

// AppendJSON appends the event's JSON to buf as one line, without a line feed at its end.
func (e Event) AppendJSON(buf []byte) []byte { return append(buf, e.JSON...) }
