package llm

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
)

// TextDialect makes a model that has no tool calling of its own call tools: it writes
// the tools and the form of a call into the prompt, and reads calls out of the text.
//
//	TOOL: get_weather
//	PARAMETERS: {"city": "Rome"}
//
// What stands in such a block is not part of the answer's text; text around it streams
// as it comes. See extractor for the forms that are understood.
type TextDialect struct {
	model Model
}

// NewText returns m with calls as text.
func NewText(m Model) *TextDialect { return &TextDialect{model: m} }

// Stream asks the model under it with a request that has no tools. Calls that this
// model makes natively all the same are passed over: it was offered none.
func (d *TextDialect) Stream(ctx context.Context, r Request) iter.Seq2[Part, error] {
	return func(yield func(Part, error) bool) {
		err := d.stream(ctx, r, func(p Part) bool { return yield(p, nil) })
		if err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	}
}

// stream hands out one answer. With ToolChoice None nothing is read out of the text: the
// model sums up, and may well quote the form of a call.
func (d *TextDialect) stream(ctx context.Context, r Request, emit emitter) error {
	offered := len(r.Tools) > 0 && r.ToolChoice != None
	inner := Request{Model: r.Model, Messages: dialectHistory(r.Messages), MaxTokens: r.MaxTokens, Sampling: r.Sampling}
	x := &extractor{emit: emit, tools: r.Tools, off: !offered, told: wasTold(r.Messages)}
	if offered {
		inner.Messages = withInstructions(inner.Messages, r)
	}
	var usage []Part
	for p, err := range d.model.Stream(ctx, inner) {
		if err != nil {
			return err
		}
		switch p := p.(type) {
		case Text:
			err = x.feed(p.Delta)
		case Reasoning:
			err = x.send(p)
		case Usage:
			usage = append(usage, p) // complete calls come before it
		case Finish:
			err = x.close(append(usage, p)...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// wasTold reports whether the model has spoken of a tool without calling it before. It is
// told once: an answer that only mentions a tool must not go round until the run's end.
func wasTold(messages []Message) bool {
	return slices.ContainsFunc(messages, func(m Message) bool { return slices.ContainsFunc(m.Calls, unfinished) })
}

// dialectHistory turns calls and their results into text, which is all that a model
// without tool calling, and its chat template, know. Results that follow one another
// become one message, because many such templates demand that roles alternate.
func dialectHistory(messages []Message) []Message {
	out := make([]Message, 0, len(messages)+1)
	malformed := make(map[string]bool) // ids of calls whose arguments were no object
	for i, m := range messages {
		for _, c := range m.Calls {
			malformed[c.ID] = c.Arguments != "" && wireArguments(c.Arguments) != c.Arguments
		}
		if m.Failed && malformed[m.CallID] {
			m.Text += "\n" + reminder
		}
		switch {
		case m.Role == ToolRole && i > 0 && messages[i-1].Role == ToolRole:
			last := &out[len(out)-1]
			last.Text += "\n\n" + resultText(m)
			last.Media = append(last.Media, m.Media...)
		case m.Role == ToolRole:
			// A copy of the media: more may be appended to it.
			out = append(out, Message{Role: User, Text: resultText(m), Media: slices.Clone(m.Media)})
		case len(m.Calls) > 0:
			out = append(out, Message{Role: m.Role, Text: callsText(m)})
		default:
			out = append(out, Message{Role: m.Role, Text: m.Text, Media: m.Media})
		}
	}
	return out
}

// resultText tells the model what a call gave, in the words that its prompt announced.
func resultText(m Message) string {
	if m.Failed {
		return "TOOL ERROR: " + m.Tool + "\n" + m.Text
	}
	return "TOOL RESULT: " + m.Tool + "\n" + m.Text
}

// reminder is what a model reads that did not write a call as it should (S1.3, S1.4).
const reminder = "Write a call like this, on lines of their own, with one JSON object:\nTOOL: tool_name\nPARAMETERS: {\"name\": \"value\"}"

// callsText is an assistant's message as the model itself wrote it, or might have.
func callsText(m Message) string {
	blocks := make([]string, 0, len(m.Calls)+1)
	if m.Text != "" {
		blocks = append(blocks, strings.TrimSpace(m.Text))
	}
	for _, c := range m.Calls {
		if unfinished(c) {
			continue
		}
		args := c.Arguments
		if args == "" {
			args = "{}"
		}
		blocks = append(blocks, "TOOL: "+c.Name+"\nPARAMETERS: "+args)
	}
	return strings.Join(blocks, "\n\n")
}

// callForm is what the model reads. It asks for one form; the extractor understands what
// models make of it.
const callForm = `# Tools

You can call the tools below. To call one, write exactly this, on lines of their own:

TOOL: tool_name
PARAMETERS: {"name": "value"}

PARAMETERS is one JSON object that fits the tool's JSON Schema, {} if it takes nothing. To call several tools, write
several such blocks. After your calls, stop: the results come back in a message that begins with "TOOL RESULT: tool_name",
or with "TOOL ERROR: tool_name" and what was wrong. Never write such results yourself. When you need no tool, answer
without any of these words.
`

// withInstructions adds the form of a call and the tools to the system prompt. They go
// into every request: a model that no longer sees them stops using them (S1.2).
func withInstructions(messages []Message, r Request) []Message {
	var b strings.Builder
	b.WriteString(callForm)
	switch {
	case r.ToolChoice == Required && r.MustCall != "":
		b.WriteString("\nYou must call the tool " + r.MustCall + " now.\n")
	case r.ToolChoice == Required:
		b.WriteString("\nYou must call at least one tool now.\n")
	}
	b.WriteString("\nTools:\n")
	for _, t := range r.Tools {
		b.WriteString("\n- " + t.Name)
		if t.Description != "" {
			b.WriteString(": " + strings.ReplaceAll(t.Description, "\n", "\n  "))
		}
		schema := t.Schema
		if len(schema) == 0 {
			schema = noParameters
		}
		b.WriteString("\n  JSON Schema of its parameters: ")
		b.Write(schema)
		b.WriteByte('\n')
	}
	if len(messages) > 0 && messages[0].Role == System {
		messages[0].Text += "\n\n" + b.String()
		return messages
	}
	return append([]Message{{Role: System, Text: b.String()}}, messages...)
}
