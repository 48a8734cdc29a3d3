package demo

import (
	"encoding/json"
	"io"
	"regexp"
	"strings"
)

// The text dialect is how models without tool calling call tools: the system prompt
// lists them and asks for TOOL: and PARAMETERS: lines, and results come back as the
// user's messages. The stand-in speaks it to whoever sends no tools but asks for it.

// The dialect's lines.
var (
	textTool   = regexp.MustCompile("(?m)^\\s*(?:[-*]|#+|\\d+\\.)\\s+[`*]*([A-Za-z0-9_.-]{1,64})[`*]*\\s*(?::|–|—|-)\\s*(.*)$")
	textParam  = regexp.MustCompile("(?m)^\\s+[-*]\\s+`?(\\w+)`?\\s*(?:\\(([^)]*)\\))?\\s*:\\s*(.*)$")
	textCall   = regexp.MustCompile(`(?m)^\s*TOOL:\s*(\S+)\s*PARAMETERS:\s*`)
	textResult = regexp.MustCompile(`(?m)^TOOL (RESULT|ERROR):[ \t]*(\S+)[ \t]*\n?`)
)

// speaksText reports whether the messages ask for the dialect.
func speaksText(messages []chatMessage) bool {
	return strings.Contains(systemPrompt(messages), "TOOL:") && strings.Contains(systemPrompt(messages), "PARAMETERS:")
}

// systemPrompt is all of the prompt's messages.
func systemPrompt(messages []chatMessage) string {
	var parts []string
	for _, m := range messages {
		if m.Role == "system" || m.Role == "developer" {
			parts = append(parts, string(m.Content))
		}
	}
	return strings.Join(parts, "\n")
}

// readTextTools finds the tools that a prompt lists as "- name: description", each
// followed by its JSON Schema or by a list of parameters.
func readTextTools(prompt string) []tool {
	var out []tool
	heads := textTool.FindAllStringSubmatchIndex(prompt, maxTools)
	for i, h := range heads {
		end := len(prompt)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		name, description, block := prompt[h[2]:h[3]], prompt[h[4]:h[5]], prompt[h[1]:end]
		if at := strings.IndexByte(block, '{'); at >= 0 {
			var schema json.RawMessage
			if json.NewDecoder(strings.NewReader(block[at:])).Decode(&schema) == nil {
				out = append(out, readTool(name, description, schema))
				continue
			}
		}
		if len(out) > 0 && strings.HasPrefix(prompt[h[0]:h[1]], " ") {
			continue // an indented line is a parameter of the tool before it
		}
		t := tool{name: name, description: description}
		for _, m := range textParam.FindAllStringSubmatch(prompt[h[1]:nextTool(prompt, heads, i)], 64) {
			t.params = append(t.params, param{description: m[3], required: strings.Contains(m[2], "required")}.named(m[1]))
		}
		out = append(out, t)
	}
	return out
}

// nextTool is where the next head that is not indented begins.
func nextTool(prompt string, heads [][]int, i int) int {
	for _, h := range heads[i+1:] {
		if !strings.HasPrefix(prompt[h[0]:h[1]], " ") {
			return h[0]
		}
	}
	return len(prompt)
}

// readTextCalls finds the calls in what the stand-in said before.
func readTextCalls(text string) []madeCall {
	var out []madeCall
	for _, at := range textCall.FindAllStringSubmatchIndex(text, 64) {
		var args json.RawMessage
		if err := json.NewDecoder(strings.NewReader(text[at[1]:])).Decode(&args); err != nil && err != io.EOF {
			continue
		}
		out = append(out, madeCall{name: text[at[2]:at[3]], args: canonical(string(args))})
	}
	return out
}

// isTextResult reports whether a user's message is results and not a question.
func isTextResult(text string) bool {
	at := textResult.FindStringIndex(text)
	return at != nil && strings.TrimSpace(text[:at[0]]) == ""
}

// addTextResults gives each result in text to the first open call of its name.
func (x *exchange) addTextResults(text string) {
	heads := textResult.FindAllStringSubmatchIndex(text, 64)
	for i, h := range heads {
		end := len(text)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		name := text[h[4]:h[5]]
		x.answer(func(c madeCall) bool { return c.name == name }, text[h[1]:end], text[h[2]:h[3]] == "ERROR")
	}
}

// writeTextCalls is how calls are said in the dialect.
func writeTextCalls(calls []plannedCall) string {
	var parts []string
	for _, c := range calls {
		parts = append(parts, "TOOL: "+c.name+"\nPARAMETERS: "+c.args)
	}
	return strings.Join(parts, "\n\n")
}
