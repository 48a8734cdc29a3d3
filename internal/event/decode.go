package event

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// Encode makes the event that a log appends; ms is milliseconds since the Unix epoch. run is
// an id that we made and a type is a constant of ours, so neither needs escaping.
func Encode(run string, seq, ms int64, b Body) (Event, error) {
	e := Event{RunID: run, Seq: seq, Time: ms, Body: b}
	if a, ok := b.(appender); ok {
		e.JSON = e.appendBody(make([]byte, 0, a.size()+envelopeSize), a)
		return e, nil
	}
	fields, err := marshal(b)
	if err != nil {
		return Event{}, fmt.Errorf("encode %s event: %w", b.Type(), err)
	}
	line := e.appendEnvelope(make([]byte, 0, len(fields)+envelopeSize))
	e.JSON = append(line, fields[len("{"):]...)
	return e, nil
}

// envelopeSize is about how long the members are that all events have.
const envelopeSize = 128

// appendEnvelope appends the members that all events have, up to the comma behind them.
func (e Event) appendEnvelope(line []byte) []byte {
	line = append(append(line, `{"type":"`...), e.Body.Type()...)
	line = append(append(line, `","run_id":"`...), e.RunID...)
	line = strconv.AppendInt(append(line, `","seq":`...), e.Seq, 10)
	line = strconv.AppendInt(append(line, `,"ts":`...), e.Time, 10)
	return append(line, ',')
}

// appendBody appends the whole event, whose body is a.
func (e Event) appendBody(line []byte, a appender) []byte {
	return append(a.appendFields(e.appendEnvelope(line)), '}')
}

// Decode reads an event back from its JSON, which becomes part of it.
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
	decode := decoders[envelope.Type]
	if decode == nil {
		return Event{}, fmt.Errorf("decode an event: no type is called %q", envelope.Type)
	}
	body, err := decode(line)
	if err != nil {
		return Event{}, fmt.Errorf("decode %s event: %w", envelope.Type, err)
	}
	return Event{RunID: envelope.RunID, Seq: envelope.Seq, Time: envelope.TS, Body: body, JSON: line}, nil
}

var decoders = map[Type]func([]byte) (Body, error){
	"start": as[Start], "step_start": as[StepStart], "step_end": as[StepEnd], "step_reset": as[StepReset],
	"reasoning_start": as[ReasoningStart], "reasoning_delta": as[ReasoningDelta], "reasoning_end": as[ReasoningEnd],
	"text_start": as[TextStart], "text_delta": as[TextDelta], "text_end": as[TextEnd],
	"tool_call_start": as[ToolCallStart], "tool_call_args": as[ToolCallArgs], "tool_call": as[ToolCall],
	"approval_required": as[ApprovalRequired], "approval_resolved": as[ApprovalResolved],
	"elicitation": as[Elicitation], "elicitation_resolved": as[ElicitationResolved],
	"tool_progress": as[ToolProgress], "log": as[LogMessage], "tool_result": as[ToolResult], "tool_error": as[ToolError],
	"budget": as[Budget], "budget_required": as[BudgetRequired], "budget_resolved": as[BudgetResolved], "suspended": as[Suspended],
	"final_answer": as[FinalAnswer], "run_error": as[RunError], "cancelled": as[Cancelled],
}

func as[B Body](line []byte) (Body, error) {
	var b B
	err := json.Unmarshal(line, &b)
	return b, err
}
