package texttool

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"answerd/internal/llm"
)

// callForm tells the model how to write a call. It asks for one form; the extractor
// understands the variants that models write.
const callForm = `# Tools

You can call the tools below. To call one, write exactly this, on lines of their own:

TOOL: tool_name
PARAMETERS: {"name": "value"}

PARAMETERS is one JSON object that fits the tool's JSON Schema, {} if it takes nothing. To call several tools, write
several such blocks. After your calls, stop: the results come back in a message that begins with "TOOL RESULT: tool_name",
or with "TOOL ERROR: tool_name" and what was wrong. Never write such results yourself. When you need no tool, answer
without any of these words.
`

// reminder follows the error of a call that the model wrote in a wrong form.
const reminder = "Write a call like this, on lines of their own, with one JSON object:\nTOOL: tool_name\nPARAMETERS: {\"name\": \"value\"}"

// addInstructions adds the form of a call and the tools to the system prompt. Every request
// includes them, because a model that no longer sees them stops calling tools.
func addInstructions(messages []llm.Message, r llm.Request) []llm.Message {
	var b strings.Builder
	b.WriteString(callForm)
	switch {
	case r.ToolChoice == llm.Required && r.MustCall != "":
		b.WriteString("\nYou must call the tool " + r.MustCall + " now.\n")
	case r.ToolChoice == llm.Required:
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
			schema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		b.WriteString("\n  JSON Schema of its parameters: ")
		b.Write(schema)
		b.WriteByte('\n')
	}
	if len(messages) > 0 && messages[0].Role == llm.System {
		messages[0].Text += "\n\n" + b.String()
		return messages
	}
	return append([]llm.Message{{Role: llm.System, Text: b.String()}}, messages...)
}

// historyAsText turns calls and their results into text, because a model without tool calling,
// and its chat template, understand only text. It joins consecutive results into one message:
// many such templates require that roles alternate.
func historyAsText(messages []llm.Message) []llm.Message {
	out := make([]llm.Message, 0, len(messages)+1)
	malformed := make(map[string]bool)      // by call id: the arguments were not a JSON object
	explanations := make(map[string]string) // of near misses, by call id
	for i, m := range messages {
		for _, c := range m.Calls {
			malformed[c.ID] = c.Arguments != "" && !isObject(c.Arguments)
			if isNearMiss(c, m.Text) {
				explanations[c.ID] = explainNearMiss(c, m.Text)
			}
		}
		if m.Failed && malformed[m.CallID] {
			m.Text = cmp.Or(explanations[m.CallID], m.Text) + "\n" + reminder
		}
		switch {
		case m.Role == llm.ToolRole && i > 0 && messages[i-1].Role == llm.ToolRole:
			last := &out[len(out)-1]
			last.Text += "\n\n" + resultText(m)
			last.Media = append(last.Media, m.Media...)
		case m.Role == llm.ToolRole:
			// Clone the media, since more may be appended to them.
			out = append(out, llm.Message{Role: llm.User, Text: resultText(m), Media: slices.Clone(m.Media)})
		case len(m.Calls) > 0:
			out = append(out, llm.Message{Role: m.Role, Text: callsText(m)})
		default:
			out = append(out, llm.Message{Role: m.Role, Text: m.Text, Media: m.Media})
		}
	}
	return out
}

// resultText returns the result of a call in the form that callForm announces.
func resultText(m llm.Message) string {
	if m.Failed {
		return "TOOL ERROR: " + m.Tool + "\n" + m.Text
	}
	return "TOOL RESULT: " + m.Tool + "\n" + m.Text
}

// callsText returns an assistant's message with its calls in the form of the prompt.
func callsText(m llm.Message) string {
	blocks := make([]string, 0, len(m.Calls)+1)
	if m.Text != "" {
		blocks = append(blocks, strings.TrimSpace(m.Text))
	}
	for _, c := range m.Calls {
		if isNearMiss(c, m.Text) {
			continue
		}
		args := c.Arguments
		if args == "" {
			args = "{}"
		}
		blocks = append(blocks, firstLine(c.Name)+"\nPARAMETERS: "+args)
	}
	return strings.Join(blocks, "\n\n")
}
