package event

import (
	"bytes"
	"encoding/json"
	"strconv"

	"answerd/internal/jsontext"
)

// Results are large, and JSON already. encoding/json reads them byte by byte to compact
// them: a result of 100 kB takes it 0.9 ms in its event and 0.5 ms in the metadata,
// against 0.05 by hand (BenchmarkLargeResult).

// appender is a body that writes its own JSON. Tests hold it to the bytes of encoding/json.
type appender interface {
	Body
	size() int                    // about how long the fields will be
	appendFields(b []byte) []byte // the members, without braces
}

func (r ToolResult) size() int {
	return len(r.CallID) + len(r.Tool) + len(r.Server) + len(r.Args) + len(r.Payload) + listSize(r.Content) + len(r.Structured) + 256
}

func (r ToolResult) appendFields(b []byte) []byte {
	b = appendCall(b, r.Call)
	b = appendRaw(append(b, `,"args":`...), r.Args)
	b = appendRaw(append(b, `,"payload":`...), r.Payload)
	b = appendList(append(b, `,"content":`...), r.Content)
	if len(r.Structured) > 0 {
		b = appendRaw(append(b, `,"structured":`...), r.Structured)
	}
	if r.Truncated != nil {
		b = strconv.AppendInt(append(b, `,"truncated":{"bytes":`...), int64(r.Truncated.Bytes), 10)
		if r.Truncated.URL != "" {
			b = appendMember(append(b, ','), "url", r.Truncated.URL)
		}
		b = append(b, '}')
	}
	b = strconv.AppendInt(append(b, `,"duration_ms":`...), r.DurationMS, 10)
	for i, v := range r.SchemaViolations {
		if i == 0 {
			b = append(b, `,"schema_violations":[`...)
		} else {
			b = append(b, ',')
		}
		b = append(appendMember(append(b, '{'), "pointer", v.Pointer), ',')
		b = append(appendMember(b, "detail", v.Detail), '}')
	}
	if len(r.SchemaViolations) > 0 {
		b = append(b, ']')
	}
	return b
}

// appendCall is no method of Call: the bodies that embed it would have it too.
func appendCall(b []byte, c Call) []byte {
	b = append(appendMember(b, "call_id", c.CallID), ',')
	b = append(appendMember(b, "tool", c.Tool), ',')
	return appendMember(b, "server", c.Server)
}

// appendMember appends a member whose name needs no escaping.
func appendMember(b []byte, name, value string) []byte {
	b = append(b, '"')
	b = append(b, name...)
	return jsontext.AppendString(append(b, `":`...), value)
}

func (f FinalAnswer) size() int {
	m := f.Metadata
	return len(f.Answer) + listSize(m.ToolParams) + listSize(m.ToolResults) + 64*len(m.ToolNames) + 512
}

func (f FinalAnswer) appendFields(b []byte) []byte {
	b = appendMember(b, "answer", f.Answer)
	b = f.Metadata.AppendJSON(append(b, `,"metadata":`...))
	return appendMember(append(b, ','), "finish_reason", f.FinishReason)
}

// AppendJSON appends m as encoding/json would, but for what is JSON already: that is as it
// was.
func (m Metadata) AppendJSON(b []byte) []byte {
	b = append(b, `{"tool_names":`...)
	if m.ToolNames == nil {
		b = append(b, "null"...)
	} else {
		b = append(b, '[')
		for i, name := range m.ToolNames {
			if i > 0 {
				b = append(b, ',')
			}
			b = jsontext.AppendString(b, name)
		}
		b = append(b, ']')
	}
	b = appendList(append(b, `,"tool_params":`...), m.ToolParams)
	b = appendList(append(b, `,"tool_results":`...), m.ToolResults)
	b = appendMember(append(b, ','), "model", m.Model)
	b = strconv.AppendInt(append(b, `,"steps":`...), int64(m.Steps), 10)
	b = appendMember(append(b, ','), "finish_reason", m.FinishReason)
	b = strconv.AppendInt(append(b, `,"usage":{"input_tokens":`...), m.Usage.InputTokens, 10)
	b = strconv.AppendInt(append(b, `,"output_tokens":`...), m.Usage.OutputTokens, 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), m.Usage.TotalTokens, 10)
	b = append(b, '}')
	if m.Cost != nil {
		cost, _ := json.Marshal(*m.Cost) // fails for numbers that no price has: infinity and such
		b = append(append(b, `,"cost":`...), cost...)
	}
	return append(b, '}')
}

func listSize(list []json.RawMessage) (n int) {
	for _, v := range list {
		n += len(v) + 1
	}
	return n
}

func appendList(b []byte, list []json.RawMessage) []byte {
	if list == nil {
		return append(b, "null"...)
	}
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendRaw(b, v)
	}
	return append(b, ']')
}

// appendRaw appends a value that is JSON, in one line: line feeds within JSON are layout.
// What is found to be none there must not break the stream of events.
func appendRaw(b, value []byte) []byte {
	if len(value) == 0 {
		return append(b, "null"...)
	}
	if bytes.IndexByte(value, '\n') < 0 && bytes.IndexByte(value, '\r') < 0 {
		return append(b, value...)
	}
	line := bytes.NewBuffer(b)
	if json.Compact(line, value) != nil {
		return append(b, "null"...)
	}
	return line.Bytes()
}
