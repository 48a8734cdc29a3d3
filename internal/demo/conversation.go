package demo

import (
	"encoding/json"
	"regexp"
	"strings"
)

// exchange is one question and what came of it so far.
type exchange struct {
	question string
	calls    []madeCall // in the order in which they were made
	rounds   int        // answers of the model that made calls
	text     string     // the last text that the model said
}

// madeCall is a call that the conversation already has, and its result.
type madeCall struct {
	id, name, args string // args as JSON with sorted keys
	result         string
	answered       bool
	failed         bool
}

// maxExchanges are looked back on: a follow-up refers to something recent.
const maxExchanges = 6

// exchanges reads a conversation. System prompts say nothing to a stand-in. With
// textual set, calls and results are read from the messages' text.
func exchanges(messages []chatMessage, textual bool) []exchange {
	all := []exchange{{}}
	for _, m := range messages {
		x := &all[len(all)-1]
		text := string(m.Content)
		switch m.Role {
		case "user":
			if textual && isTextResult(text) {
				x.addTextResults(text)
				continue
			}
			all = append(all, exchange{question: text})
		case "assistant":
			x.text = text
			made := callsOf(m, textual)
			if len(made) > 0 {
				x.rounds++
				x.calls = append(x.calls, made...)
			}
		case "tool":
			x.answer(func(c madeCall) bool { return c.id == m.ToolCallID }, text, saysFailure(text))
		}
	}
	if len(all) > 1 {
		all = all[1:] // what stood before the first question
	}
	return all[max(0, len(all)-maxExchanges):]
}

// callsOf are the calls of an assistant's message.
func callsOf(m chatMessage, textual bool) []madeCall {
	var out []madeCall
	for _, c := range m.ToolCalls {
		out = append(out, madeCall{id: c.ID, name: c.Function.Name, args: canonical(c.Function.Arguments)})
	}
	if textual {
		out = append(out, readTextCalls(string(m.Content))...)
	}
	return out
}

// answer gives the first open call that matches its result.
func (x *exchange) answer(matches func(madeCall) bool, result string, failed bool) {
	for i := range x.calls {
		if c := &x.calls[i]; !c.answered && matches(*c) {
			c.result, c.answered, c.failed = strings.TrimSpace(result), true, failed
			return
		}
	}
}

// made is the call of that name and arguments, if there was one.
func (x *exchange) made(name, args string) *madeCall {
	for i := range x.calls {
		if x.calls[i].name == name && x.calls[i].args == args {
			return &x.calls[i]
		}
	}
	return nil
}

// canonical is a JSON object with sorted keys, so that equal arguments are equal
// texts; what is no JSON stays as it is.
func canonical(args string) string {
	var v map[string]any
	if json.Unmarshal([]byte(args), &v) != nil || v == nil {
		return args
	}
	return string(encode(v))
}

// failureWords begin a result that reports a failure. The wire has no field for it,
// so agents say it in words, or as {"error": …}.
var failureWords = regexp.MustCompile(`(?i)^\W*(?:tool )?(?:error\b|failed|failure|invalid|denied|refused|unavailable|timed? ?out|cannot|could not|unable|unknown tool|missing required|try again|there is no (?:time zone|note)|validating "arguments")|^[^.:\n]{0,80}\b(?:failed|is unavailable|timed out|was denied|could not be|was stopped)\b`)

// saysFailure guesses whether a tool's result reports that it failed.
func saysFailure(result string) bool {
	var v map[string]any
	if json.Unmarshal([]byte(result), &v) != nil {
		return failureWords.MatchString(result)
	}
	if e, has := v["error"]; has && e != nil && e != false && e != "" {
		return true
	}
	return v["isError"] == true || v["is_error"] == true
}
