package agent

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"answerd/internal/llm"
	"answerd/internal/mcp"
	"answerd/internal/mcp/content"
)

// exchange is what stays together of a history, and counts as one message of it: a
// message of the user or the assistant, and behind an assistant's calls their results.
type exchange []llm.Message

// isUser reports whether x is something that the user said.
func (x exchange) isUser() bool { return x[0].Role == llm.User }

// exchanges reads the history of r. Unknown roles, empty messages and results without
// their call are skipped, and a call without its result gets a line in its place
// (S2.5): endpoints refuse either half alone.
func (r Request) exchanges(p llm.Profile) []exchange {
	var out []exchange
	var results []*llm.Message // in their places, in the order of the calls
	for _, m := range r.History {
		role := llm.Role(strings.ToLower(m.Role))
		text, media := shownMedia(p, m.Content, m.Media)
		if role == llm.ToolRole {
			answer(results, m.CallID, text, media)
			continue
		}
		x := exchange{{Role: role, Text: text, Media: media}}
		if role == llm.Assistant {
			x = x.withCalls(m.Calls)
		}
		known := role == llm.User || role == llm.Assistant
		if empty := strings.TrimSpace(text) == "" && len(media) == 0 && len(x) == 1; !known || empty {
			continue
		}
		out = append(out, x)
		for i := range x[1:] {
			results = append(results, &x[i+1])
		}
	}
	for _, m := range results {
		if m.Text == "" {
			m.Text = "[This call has no result.]"
		}
	}
	return out
}

// withCalls is x with calls and places for their results. Calls that cannot be told apart
// from others are left out.
func (x exchange) withCalls(calls []ClientCall) exchange {
	ids := make(map[string]bool, len(calls))
	for _, c := range calls {
		if c.ID == "" || ids[c.ID] {
			continue
		}
		ids[c.ID] = true
		c.Index = len(x[0].Calls)
		x[0].Calls = append(x[0].Calls, c)
		x = append(x, llm.Message{Role: llm.ToolRole, CallID: c.ID, Tool: c.Name})
	}
	return x
}

// answer puts a result in its place. One that has none, or comes twice, is dropped. Where
// an id comes again, as with providers that count anew in every answer, what follows
// belongs to the newer call.
func answer(results []*llm.Message, id, text string, media []Media) {
	for _, m := range slices.Backward(results) {
		if m.CallID != id {
			continue
		}
		if m.Text == "" {
			m.Text, _ = content.TruncateText(text, maxForModel, "")
			if strings.TrimSpace(text) == "" {
				m.Text = "[The result is empty.]"
			}
			m.Media = media
		}
		return
	}
}

// shownMedia is a text of the caller's with what the model is shown of the pictures and
// sounds beside it. For those that it cannot take there is a line in the text.
func shownMedia(p llm.Profile, text string, media []Media) (string, []Media) {
	var shown []Media
	for _, m := range media {
		isAudio := strings.HasPrefix(m.MIME, "audio/")
		if isAudio && p.Audio || !isAudio && p.Images {
			shown = append(shown, m)
			continue
		}
		what := "An image"
		if isAudio {
			what = "A sound"
		}
		if m.MIME != "" {
			what += fmt.Sprintf(" (%s, %d bytes)", m.MIME, base64.RawStdEncoding.DecodedLen(len(strings.TrimRight(m.Data, "="))))
		}
		text = strings.TrimPrefix(text+"\n["+what+" was here, which this model cannot take.]", "\n")
	}
	return text, shown
}

// asked is what the run is about: the question, or where it goes on with results of the
// client's tools, what the user said before.
func (r Request) asked() string {
	if r.Question != "" || len(r.Media) > 0 {
		return r.Question
	}
	for _, m := range slices.Backward(r.History) {
		if strings.EqualFold(m.Role, string(llm.User)) {
			return m.Content
		}
	}
	return ""
}

// checkQuestion refuses a request that gives the model nothing to answer.
func (r Request) checkQuestion() error {
	if strings.TrimSpace(r.Question) != "" || len(r.Media) > 0 {
		return nil
	}
	if n := len(r.History); n > 0 && strings.EqualFold(r.History[n-1].Role, string(llm.ToolRole)) {
		id := r.History[n-1].CallID
		x := r.exchanges(llm.Profile{})
		if len(x) > 0 && slices.ContainsFunc(x[len(x)-1], func(m llm.Message) bool { return m.CallID == id && id != "" }) {
			return nil
		}
		return &InvalidError{"/history", "ends with a result that belongs to no call before it"}
	}
	return &InvalidError{"/question", "must not be blank"}
}

// open begins the conversation: the system prompt with the caller's instructions, the
// last exchanges of the history, and the question, or where there is none all since the
// user spoke last. What the run is about does not count as history.
func (l *loop) open(tools []mcp.Tool, p llm.Profile) error {
	r := l.run.req
	system, err := l.agent.Prompt.system(tools, l.run.Created)
	if err != nil {
		return err
	}
	if r.Instructions != "" {
		system = strings.TrimSpace(system) + "\n\n" + r.Instructions
	}
	past, now := r.split(r.exchanges(p), p)
	past = past[max(0, len(past)-l.agent.MaxHistory):]
	l.messages = []llm.Message{{Role: llm.System, Text: system}}
	for _, x := range past {
		l.messages = append(l.messages, x...)
	}
	l.history = len(l.messages) - 1
	for _, x := range now {
		l.messages = append(l.messages, x...)
	}
	for _, m := range l.messages {
		for _, c := range m.Calls {
			l.callIDs[c.ID], l.given[c.ID] = true, true
		}
	}
	return nil
}

// split tells what the run is about from what was before it. The last thing said is
// dropped only if it is the question (S2.5).
func (r Request) split(all []exchange, p llm.Profile) (past, now []exchange) {
	if strings.TrimSpace(r.Question) == "" && len(r.Media) == 0 {
		last := len(all) - 1
		for last > 0 && !all[last].isUser() {
			last--
		}
		return all[:last], all[last:]
	}
	text, media := shownMedia(p, r.Question, r.Media)
	if n := len(all); n > 0 && all[n-1].isUser() && all[n-1][0].Text == text && len(media) == 0 {
		all = all[:n-1]
	}
	return all, []exchange{{{Role: llm.User, Text: text, Media: media}}}
}
