package texttool

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"answerd/internal/llm"
)

// callForm tells the model how to write a call. It asks for one form only, but the extractor also understands the
// variants that models write.
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

// addInstructions returns messages with the form of a call and the request's tools in the system prompt. If the first
// message is a system prompt, it appends to that message in place, and otherwise it adds a message. Every request has
// these instructions, because a model that no longer sees them stops calling tools.
func addInstructions(messages []llm.Message, request llm.Request) []llm.Message {
	var b strings.Builder
	b.WriteString(callForm)
	switch {
	case request.ToolChoice == llm.Required && request.MustCall != "":
		b.WriteString("\nYou must call the tool " + request.MustCall + " now.\n")
	case request.ToolChoice == llm.Required:
		b.WriteString("\nYou must call at least one tool now.\n")
	}
	b.WriteString("\nTools:\n")
	for _, t := range request.Tools {
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

// historyAsText returns messages with calls and results as text, because a model without tool calling, and its chat
// template, understand only text. If a call's arguments were malformed, its result is an error, and historyAsText
// appends a reminder of the form of a call. A call that nearly had this form (isNearMiss) gets an explanation instead
// of the error.
func historyAsText(messages []llm.Message) []llm.Message {
	out := make([]llm.Message, 0, len(messages)+1)
	malformed := make(map[string]bool)      // by call id: the arguments are not a JSON object
	explanations := make(map[string]string) // by call id: explanations for near misses
	for _, message := range messages {
		for _, c := range message.Calls {
			malformed[c.ID] = c.Arguments != "" && !isObject(c.Arguments)
			if isNearMiss(c, message.Text) {
				explanations[c.ID] = explainNearMiss(c, message.Text)
			}
		}
		if message.Failed && malformed[message.CallID] {
			message.Text = cmp.Or(explanations[message.CallID], message.Text) + "\n" + reminder
		}
		out = appendAsText(out, message)
	}
	return out
}

// appendAsText appends message to out, with its calls as text. A tool result becomes a user message. Consecutive user
// messages are joined, because many chat templates require that roles alternate. appendAsText leaves out an empty
// answer, because some endpoints refuse it in the history.
func appendAsText(out []llm.Message, message llm.Message) []llm.Message {
	asText := llm.Message{Role: message.Role, Text: message.Text, Media: message.Media}
	switch {
	case message.Role == llm.ToolRole:
		asText.Role, asText.Text = llm.User, resultText(message)
	case len(message.Calls) > 0:
		asText.Text, asText.Media = callsText(message), nil
	}
	if asText.Role == llm.Assistant && strings.TrimSpace(asText.Text) == "" {
		return out
	}
	if len(out) == 0 || asText.Role != llm.User || out[len(out)-1].Role != llm.User {
		return append(out, asText)
	}
	last := &out[len(out)-1]
	if last.Text != "" && asText.Text != "" {
		last.Text += "\n\n"
	}
	last.Text += asText.Text
	last.Media = slices.Concat(last.Media, asText.Media)
	return out
}

// resultText returns the result of a call in the form that callForm announces.
func resultText(message llm.Message) string {
	label := "TOOL RESULT: "
	if message.Failed {
		label = "TOOL ERROR: "
	}
	return label + message.Tool + "\n" + message.Text
}

// callsText returns the text of an assistant message, followed by the message's calls in the form of the prompt. It
// leaves out near misses, because these are part of the text.
func callsText(message llm.Message) string {
	blocks := make([]string, 0, len(message.Calls)+1)
	if message.Text != "" {
		blocks = append(blocks, strings.TrimSpace(message.Text))
	}
	for _, c := range message.Calls {
		if isNearMiss(c, message.Text) {
			continue
		}
		blocks = append(blocks, toolLabel+c.Name+"\nPARAMETERS: "+cmp.Or(c.Arguments, "{}"))
	}
	return strings.Join(blocks, "\n\n")
}
