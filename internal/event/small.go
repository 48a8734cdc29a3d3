package event

import (
	"maps"
	"slices"
	"strconv"
)

// Besides deltas and results a run has a dozen events that say little. With encoding/json
// they were a thirtieth of the CPU time of an answer with one call.

func (s Start) size() int {
	n := len(s.Question) + len(s.Model) + len(s.ThreadID) + len(s.TraceID) + 96
	for name, value := range s.Metadata {
		n += len(name) + len(value) + 8
	}
	return n
}

func (s Start) appendFields(b []byte) []byte {
	b = append(appendMember(b, "question", s.Question), ',')
	b = append(appendMember(b, "model", s.Model), ',')
	b = append(appendMember(b, "thread_id", s.ThreadID), ',')
	b = appendMember(b, "trace_id", s.TraceID)
	if len(s.Metadata) == 0 {
		return b
	}
	b = append(b, `,"metadata":{`...)
	for i, name := range slices.Sorted(maps.Keys(s.Metadata)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendNamed(b, name, s.Metadata[name])
	}
	return append(b, '}')
}

func (s StepStart) size() int { return 24 }

func (s StepStart) appendFields(b []byte) []byte {
	return strconv.AppendInt(append(b, `"step":`...), int64(s.Step), 10)
}

func (s StepEnd) size() int { return len(s.FinishReason) + 160 }

func (s StepEnd) appendFields(b []byte) []byte {
	b = strconv.AppendInt(append(b, `"step":`...), int64(s.Step), 10)
	b = appendMember(append(b, ','), "finish_reason", s.FinishReason)
	if s.Usage != nil {
		b = appendUsage(append(b, `,"usage":`...), *s.Usage)
	}
	return b
}

func appendUsage(b []byte, u Usage) []byte {
	b = strconv.AppendInt(append(b, `{"input_tokens":`...), u.InputTokens, 10)
	b = strconv.AppendInt(append(b, `,"output_tokens":`...), u.OutputTokens, 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), u.TotalTokens, 10)
	return append(b, '}')
}

func (p TextStart) size() int      { return len(p.PartID) + 16 }
func (p TextEnd) size() int        { return len(p.PartID) + 16 }
func (p ReasoningStart) size() int { return len(p.PartID) + 16 }
func (p ReasoningEnd) size() int   { return len(p.PartID) + 16 }

func (p TextStart) appendFields(b []byte) []byte      { return appendMember(b, "part_id", p.PartID) }
func (p TextEnd) appendFields(b []byte) []byte        { return appendMember(b, "part_id", p.PartID) }
func (p ReasoningStart) appendFields(b []byte) []byte { return appendMember(b, "part_id", p.PartID) }
func (p ReasoningEnd) appendFields(b []byte) []byte   { return appendMember(b, "part_id", p.PartID) }

func (c ToolCallStart) size() int { return callSize(c.Call) + 48 }

func (c ToolCallStart) appendFields(b []byte) []byte {
	b = strconv.AppendBool(append(appendCall(b, c.Call), `,"needs_approval":`...), c.NeedsApproval)
	return appendExecutor(b, c.Executor)
}

func callSize(c Call) int { return len(c.CallID) + len(c.Tool) + len(c.Server) + 48 }

func appendExecutor(b []byte, e Executor) []byte {
	if e == "" {
		return b
	}
	return appendMember(append(b, ','), "executor", string(e))
}
