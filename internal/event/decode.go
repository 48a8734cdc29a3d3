package event

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// Encode makes the event that a log appends; ms is milliseconds since the Unix epoch. run is
// an id that we made and a type is a constant of ours, so neither needs escaping.
func Encode(run string, seq, ms int64, b Body) (Event, error) {
	a, byHand := b.(appender)
	var fields []byte
	size := 0
	if byHand {
		size = a.size()
	} else {
		var err error
		if fields, err = marshal(b); err != nil {
			return Event{}, fmt.Errorf("encode %s event: %w", b.Type(), err)
		}
		size = len(fields)
	}
	line := make([]byte, 0, size+len(run)+len(b.Type())+64)
	line = append(append(line, `{"type":"`...), b.Type()...)
	line = append(append(line, `","run_id":"`...), run...)
	line = strconv.AppendInt(append(line, `","seq":`...), seq, 10)
	line = strconv.AppendInt(append(line, `,"ts":`...), ms, 10)
	line = append(line, ',')
	if byHand {
		line = append(a.appendFields(line), '}')
	} else {
		line = append(line, fields[len("{"):]...)
	}
	return Event{RunID: run, Seq: seq, Time: ms, Body: b, JSON: line}, nil
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
