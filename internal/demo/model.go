package demo

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// ModelID is the id of the stand-in. It answers requests for any model.
const ModelID = "answerd-stand-in"

// TokenDelay is the pause between the chunks of a stream, so that a person sees the text arrive.
const TokenDelay = 15 * time.Millisecond

// NewModel returns an OpenAI-compatible endpoint under /v1 without a language model. It gives the
// same answer, with the same call ids, to the same request.
func NewModel(tokenDelay time.Duration) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { serveCompletion(w, r, tokenDelay) })
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{"id": ModelID, "object": "model", "created": 0, "owned_by": "answerd"}}})
	})
	mux.HandleFunc("GET /healthz", serveHealth)
	return mux
}

// serveCompletion serves POST /v1/chat/completions. It first reads the whole body, because
// net/http notices that a client has left only after that.
func serveCompletion(w http.ResponseWriter, r *http.Request, tokenDelay time.Duration) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4<<20))
	var req chatRequest
	if err := cmp.Or(err, json.Unmarshal(body, &req)); err != nil || len(req.Messages) == 0 {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": map[string]any{
			"message": "The body must be a JSON object with messages, of at most 4 MiB.", "type": "invalid_request_error", "param": nil, "code": nil,
		}})
		return
	}
	answer := composeReply(&req)
	if req.Stream {
		streamReply(r.Context(), w, answer, req.StreamOptions.IncludeUsage, tokenDelay)
		return
	}
	message := map[string]any{"role": "assistant", "content": answer.text, "refusal": nil}
	if len(answer.calls) > 0 {
		calls := make([]any, len(answer.calls))
		for i, c := range answer.calls {
			calls[i] = map[string]any{"id": c.id, "type": "function", "function": map[string]any{"name": c.tool, "arguments": c.arguments}}
		}
		message["content"], message["tool_calls"] = nil, calls
	}
	completion := answer.wrapChoice("chat.completion", "message", message, answer.finish)
	completion["usage"] = answer.usage
	writeJSON(w, http.StatusOK, completion)
}

// wrapChoice returns the members that a completion and each chunk of a stream have, with content
// as the only choice's member name.
func (r *reply) wrapChoice(object, name string, content, finish any) map[string]any {
	choice := map[string]any{"index": 0, name: content, "finish_reason": finish, "logprobs": nil}
	return map[string]any{"id": r.id, "object": object, "created": time.Now().Unix(), "model": ModelID, "choices": []any{choice}}
}

// textPiece and argumentsPiece match the part of a text, and of a call's arguments, that one chunk of
// a stream has.
var (
	textPiece      = regexp.MustCompile(`\S+\s*|\s+`)
	argumentsPiece = regexp.MustCompile(`(?s).{1,10}`)
)

// splitDeltas returns the deltas of a stream's chunks: the role, then each word of the text, or
// each call with its id and name followed by pieces of its arguments.
func (r *reply) splitDeltas() []any {
	out := []any{map[string]any{"role": "assistant", "content": ""}}
	for _, word := range textPiece.FindAllString(r.text, -1) {
		out = append(out, map[string]any{"content": word})
	}
	add := func(call map[string]any) { out = append(out, map[string]any{"tool_calls": []any{call}}) }
	for i, c := range r.calls {
		add(map[string]any{"index": i, "id": c.id, "type": "function", "function": map[string]any{"name": c.tool, "arguments": ""}})
		for _, part := range argumentsPiece.FindAllString(c.arguments, -1) {
			add(map[string]any{"index": i, "function": map[string]any{"arguments": part}})
		}
	}
	return out
}

// streamReply sends the answer chunk by chunk. It stops if the client has left, or reads nothing
// for ten seconds.
func streamReply(ctx context.Context, w http.ResponseWriter, answer *reply, withUsage bool, tokenDelay time.Duration) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store, no-transform")

	rc := http.NewResponseController(w)
	send := func(data string) bool {
		_ = rc.SetWriteDeadline(time.Now().Add(10 * time.Second)) // ResponseWriters of tests have none
		_, err := io.WriteString(w, "data: "+data+"\n\n")
		return err == nil && rc.Flush() == nil
	}

	deltas := append(answer.splitDeltas(), map[string]any{}) // the empty one is with the finish_reason
	for i, delta := range deltas {
		var finish any
		if i == len(deltas)-1 {
			finish = answer.finish
		}
		chunk := answer.wrapChoice("chat.completion.chunk", "delta", delta, finish)
		if withUsage {
			chunk["usage"] = nil // only the chunk after the last delta has it
		}
		if !send(encodeJSON(chunk)) {
			return
		}
		select {
		case <-time.After(tokenDelay):
		case <-ctx.Done():
			return
		}
	}

	if withUsage {
		last := answer.wrapChoice("chat.completion.chunk", "delta", nil, nil)
		last["choices"], last["usage"] = []any{}, answer.usage
		send(encodeJSON(last))
	}
	send("[DONE]")
}

// standInNote ends every text of the stand-in, so that its answers are not taken for those of a
// model.
const standInNote = "(I am answerd's demo stand-in: rules over the words of your question, not a language model.)"

// chatRequest has the members of a Chat Completions request that the stand-in uses.
type chatRequest struct {
	Messages []struct {
		Role    string
		Content any // a text, a list of parts, or null
	}
	Tools      []struct{ Function struct{ Name string } }
	ToolChoice json.RawMessage `json:"tool_choice"`
	Parallel   *bool           `json:"parallel_tool_calls"`
	Format     struct {
		Named struct{ Schema json.RawMessage } `json:"json_schema"`
	} `json:"response_format"`
	Stream        bool
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// call is a tool call; its arguments are JSON.
type call struct{ id, tool, arguments string }

// reply is an answer of the stand-in: a text, or calls.
type reply struct {
	id, text, finish string
	calls            []call
	usage            map[string]int
}

// For models without tool calling, the system prompt lists the tools and the form of a call, and a
// user's message has the results. listedTool and textResult match these.
var (
	listedTool = regexp.MustCompile(`(?m)^- ([\w./-]+)(?::|$)`)
	textResult = regexp.MustCompile(`(?m)^TOOL (?:RESULT|ERROR): .*\n?`)
)

// composeReply answers the last question of a conversation: with the calls that it needs, or with
// a text once their results are there. The usage counts words instead of tokens.
//
// It plans all calls again for each request and skips as many of them as there are results after the
// question. That needs no memory, and works because the same question always leads to the same calls in
// the same order, whose ids do not change either.
func composeReply(request *chatRequest) *reply {
	conversation := readConversation(request)
	tools, inText := request.offeredTools(conversation.prompt)
	recap := recapText(conversation.question, conversation.earlier)
	var calls []call
	if recap == "" {
		calls = planCalls(conversation.question, tools)
	}
	if len(calls) == 0 && len(tools) > 0 && request.requiresCall() {
		calls = []call{{tool: tools[0], arguments: "{}"}}
	}
	for i, planned := range calls {
		sum := sha256.Sum256([]byte(fmt.Sprint(conversation.turn, i, conversation.question, planned.tool)))
		calls[i].id = fmt.Sprintf("call_%x", sum[:12])
	}

	out := &reply{id: "chatcmpl-" + rand.Text(), finish: "tool_calls", calls: calls[min(len(conversation.results), len(calls)):]}
	if request.Parallel != nil && !*request.Parallel && len(out.calls) > 1 {
		out.calls = out.calls[:1]
	}
	if len(out.calls) == 0 {
		out.text, out.finish = cmp.Or(recap, composeText(calls, conversation.results, tools)), "stop"
		if schema := request.Format.Named.Schema; len(schema) > 0 {
			out.text = structuredText(schema, out.text)
		} else {
			out.text += "\n\n" + standInNote
		}
	}
	said := len(strings.Fields(fmt.Sprint(out.text, out.calls))) // an estimate
	out.usage = map[string]int{"prompt_tokens": conversation.words, "completion_tokens": said, "total_tokens": conversation.words + said}
	if inText && len(out.calls) > 0 {
		out.writeCallsAsText()
	}
	return out
}

// requiresCall reports whether the request wants a call of any tool, or of a named one.
func (r *chatRequest) requiresCall() bool {
	choice := string(r.ToolChoice)
	return choice != "" && choice != "null" && choice != `"auto"`
}

// writeCallsAsText replaces the calls by a text with them, for models without tool calling.
func (r *reply) writeCallsAsText() {
	for _, c := range r.calls {
		r.text += "TOOL: " + c.tool + "\nPARAMETERS: " + c.arguments + "\n\n"
	}
	r.calls, r.finish = nil, "stop"
}

// conversation is what the stand-in reads from the messages of a request.
type conversation struct {
	prompt   string   // of the system
	question string   // the last one
	earlier  []string // the questions before it
	results  []string // of the calls for the last question
	turn     int      // the number of the last question
	words    int
}

// readConversation reads the messages of a request.
func readConversation(request *chatRequest) (c conversation) {
	value := "" // the last one that was said
	for _, m := range request.Messages {
		text := textOf(m.Content)
		c.words += len(strings.Fields(text))
		if m.Role == "assistant" || m.Role == "tool" {
			if said := equals.FindAllStringSubmatch(text, -1); said != nil {
				value = said[len(said)-1][1]
			}
		}
		at := textResult.FindStringIndex(text)
		switch {
		case m.Role == "tool":
			c.results = append(c.results, text)
		case m.Role == "user" && at != nil && at[0] == 0:
			c.results = append(c.results, textResult.Split(text, -1)[1:]...)
		case m.Role == "user":
			if c.turn > 0 {
				c.earlier = append(c.earlier, c.question)
			}
			// Resolve it now: the results of its calls will have another value.
			c.question, c.results, c.turn = resolveFollowUp(text, value), nil, c.turn+1
		case m.Role != "assistant":
			c.prompt += text + "\n"
		}
	}
	return c
}

// offeredTools returns the names of the tools that may be called, and whether calls are written as
// text.
func (r *chatRequest) offeredTools(prompt string) (names []string, inText bool) {
	choice := string(r.ToolChoice) // a word, or an object that names one tool
	isChosen := func(name string) bool {
		if strings.HasPrefix(choice, "{") {
			return strings.Contains(choice, `"`+name+`"`)
		}
		return choice != `"none"`
	}
	for _, t := range r.Tools {
		if isChosen(t.Function.Name) {
			names = append(names, t.Function.Name)
		}
	}
	inText = len(r.Tools) == 0 && strings.Contains(prompt, "PARAMETERS:")
	if inText {
		for _, m := range listedTool.FindAllStringSubmatch(prompt, -1) {
			names = append(names, m[1])
		}
	}
	return names, inText
}

// textOf returns the text of a message's content.
func textOf(content any) string {
	text, _ := content.(string)
	parts, _ := content.([]any)
	for _, p := range parts {
		part, _ := p.(map[string]any)
		s, _ := part["text"].(string)
		text += s
	}
	return text
}

// composeText returns the text of an answer: a paragraph for each result, or the help if there are
// none.
func composeText(calls []call, results, tools []string) string {
	if len(results) == 0 {
		return helpText(tools)
	}
	var lines []string
	for i, result := range results[:min(len(results), len(calls))] {
		// The structured content after the text repeats it for programs.
		text, _, _ := strings.Cut(result, "\nStructured content: ")
		var failure struct{ Error string }
		if json.Unmarshal([]byte(text), &failure) == nil && failure.Error != "" {
			text = fmt.Sprintf("The tool %s failed: %s\n\nI did not try the failed call again.", calls[i].tool, failure.Error)
		}
		lines = append(lines, truncate(text, 1200))
	}
	return strings.Join(lines, "\n\n")
}
