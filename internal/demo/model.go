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

// ModelID is the stand-in's model id. The stand-in also answers requests for any other model.
const ModelID = "answerd-stand-in"

// TokenDelay is the pause after each chunk of a stream, so that people see the text arrive.
const TokenDelay = 15 * time.Millisecond

// NewModel returns the stand-in: an OpenAI-compatible endpoint under /v1 without a language model. It answers the same
// request always with the same text or calls, and the same call ids. It waits for tokenDelay after each chunk of a
// stream.
func NewModel(tokenDelay time.Duration) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { serveCompletion(w, r, tokenDelay) })
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{"id": ModelID, "object": "model", "created": 0, "owned_by": "answerd"}}})
	})
	mux.HandleFunc("GET /healthz", serveHealth)
	return mux
}

// serveCompletion serves POST /v1/chat/completions. It reads the whole body before it answers, because only then does
// net/http notice that a client disconnects.
func serveCompletion(w http.ResponseWriter, r *http.Request, tokenDelay time.Duration) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 4<<20))
	var req chatRequest
	if err != nil || json.Unmarshal(body, &req) != nil || len(req.Messages) == 0 {
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

// wrapChoice returns a completion, or a chunk of a stream, with one choice. object is its type, such as
// "chat.completion". contentName is the choice's member that gets content: message or delta. finishReason is nil in all
// chunks but the last.
func (r *reply) wrapChoice(object, contentName string, content, finishReason any) map[string]any {
	choice := map[string]any{"index": 0, contentName: content, "finish_reason": finishReason, "logprobs": nil}
	return map[string]any{"id": r.id, "object": object, "created": time.Now().Unix(), "model": ModelID, "choices": []any{choice}}
}

// textPiece matches the part of the text that one chunk of a stream has: a word with the white space after it.
var textPiece = regexp.MustCompile(`\S+\s*|\s+`)

// argumentsPiece matches the part of a call's arguments that one chunk has.
var argumentsPiece = regexp.MustCompile(`(?s).{1,10}`)

// splitDeltas splits the reply into the deltas of a stream: the role, then each word of the text, or each call with its
// id and name followed by pieces of its arguments.
func (r *reply) splitDeltas() []any {
	deltas := []any{map[string]any{"role": "assistant", "content": ""}}
	for _, word := range textPiece.FindAllString(r.text, -1) {
		deltas = append(deltas, map[string]any{"content": word})
	}
	addCall := func(call map[string]any) { deltas = append(deltas, map[string]any{"tool_calls": []any{call}}) }
	for i, c := range r.calls {
		addCall(map[string]any{"index": i, "id": c.id, "type": "function", "function": map[string]any{"name": c.tool, "arguments": ""}})
		for _, piece := range argumentsPiece.FindAllString(c.arguments, -1) {
			addCall(map[string]any{"index": i, "function": map[string]any{"arguments": piece}})
		}
	}
	return deltas
}

// streamReply sends answer as a stream of chunks and waits for tokenDelay after each. With withUsage it adds a chunk
// with the usage. It returns when the stream is complete, and earlier if ctx ends or if the client reads nothing for
// ten seconds.
func streamReply(ctx context.Context, w http.ResponseWriter, answer *reply, withUsage bool, tokenDelay time.Duration) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store, no-transform")

	rc := http.NewResponseController(w)
	send := func(data string) bool {
		_ = rc.SetWriteDeadline(time.Now().Add(10 * time.Second)) // fails in tests, whose ResponseWriters have no deadlines
		_, err := io.WriteString(w, "data: "+data+"\n\n")
		return err == nil && rc.Flush() == nil
	}

	deltas := append(answer.splitDeltas(), map[string]any{}) // the last chunk has only the finish_reason
	for i, delta := range deltas {
		var finishReason any
		if i == len(deltas)-1 {
			finishReason = answer.finish
		}
		chunk := answer.wrapChoice("chat.completion.chunk", "delta", delta, finishReason)
		if withUsage {
			chunk["usage"] = nil // only the chunk after the last delta has a value
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

// standInNote ends every text of the stand-in except structured output, so that users do not mistake it for the answer
// of a language model.
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

// call is a tool call that the stand-in makes.
type call struct {
	id, tool, arguments string // arguments is JSON
}

// reply is an answer of the stand-in. It has either a text or calls.
type reply struct {
	id     string // id of the completion
	text   string
	calls  []call
	finish string         // the finish_reason
	usage  map[string]int // the member usage of the completion
}

// listedTool matches the line that names a tool in the system prompt, which lists the tools in text tool calling
// (LLM_TOOL_CALLING=text).
var listedTool = regexp.MustCompile(`(?m)^- ([\w./-]+)(?::|$)`)

// textResult matches the line before each result in a message of the user, which has the results in text tool calling.
var textResult = regexp.MustCompile(`(?m)^TOOL (?:RESULT|ERROR): .*\n?`)

// composeReply answers the last question of the request. It returns the calls that the question needs, or a text once
// the request has the results of all these calls. The usage counts words instead of tokens.
//
// composeReply keeps no state between requests. Each time it plans all calls of the question again and skips the first
// ones, as many as the request has results. That works because the same question always leads to the same calls, in the
// same order and with the same ids.
func composeReply(request *chatRequest) *reply {
	conversation := readConversation(request)
	tools, textCalling := request.offeredTools(conversation.prompt)
	recap := recapText(conversation.question, conversation.earlier) // "" unless the question asks for it
	var planned []call
	if recap == "" {
		planned = planCalls(conversation.question, tools)
	}
	if len(planned) == 0 && len(tools) > 0 && request.requiresCall() {
		planned = []call{{tool: tools[0], arguments: "{}"}}
	}
	for i := range planned {
		planned[i].id = conversation.callID(i, planned[i].tool)
	}

	remaining := planned[min(len(conversation.results), len(planned)):]
	if request.Parallel != nil && !*request.Parallel && len(remaining) > 1 {
		remaining = remaining[:1]
	}
	answer := &reply{id: "chatcmpl-" + rand.Text(), finish: "tool_calls", calls: remaining}
	if len(remaining) == 0 {
		answer.finish = "stop"
		answer.text = request.formatText(cmp.Or(recap, composeText(planned, conversation.results, tools)))
	}
	answerWords := len(strings.Fields(fmt.Sprint(answer.text, answer.calls))) // an estimate
	answer.usage = map[string]int{
		"prompt_tokens": conversation.words, "completion_tokens": answerWords, "total_tokens": conversation.words + answerWords,
	}
	if textCalling && len(answer.calls) > 0 {
		answer.writeCallsAsText()
	}
	return answer
}

// formatText returns text as JSON of the request's schema or, if the request has none, with standInNote at its end.
func (r *chatRequest) formatText(text string) string {
	if schema := r.Format.Named.Schema; len(schema) > 0 {
		return structuredText(schema, text)
	}
	return text + "\n\n" + standInNote
}

// requiresCall reports whether tool_choice demands a call: "required", or an object that names a tool. It also returns
// true for "none", but then offeredTools returns no native tools.
func (r *chatRequest) requiresCall() bool {
	choice := string(r.ToolChoice)
	return choice != "" && choice != "null" && choice != `"auto"`
}

// writeCallsAsText moves the calls of the reply into its text, in the form of text tool calling.
func (r *reply) writeCallsAsText() {
	for _, c := range r.calls {
		r.text += "TOOL: " + c.tool + "\nPARAMETERS: " + c.arguments + "\n\n"
	}
	r.calls = nil
	r.finish = "stop"
}

// conversation holds what the stand-in needs from the messages of a request.
type conversation struct {
	prompt   string   // the system prompt
	question string   // the last question, resolved by resolveFollowUp
	earlier  []string // the questions before the last one
	results  []string // results of the calls for the last question
	turn     int      // number of the last question, from 1
	words    int      // number of words in all messages
}

// callID returns the id of the last question's call with the given number, from 0. The id depends on c.turn, so that a
// repeated question gets other ids.
func (c *conversation) callID(number int, tool string) string {
	sum := sha256.Sum256([]byte(fmt.Sprint(c.turn, number, c.question, tool)))
	return fmt.Sprintf("call_%x", sum[:12])
}

// readConversation collects a conversation from the messages of request.
func readConversation(request *chatRequest) (c conversation) {
	value := "" // last result of a calculation in the messages so far
	for _, m := range request.Messages {
		text := textOf(m.Content)
		c.words += len(strings.Fields(text))
		if m.Role == "assistant" || m.Role == "tool" {
			if matches := resultValue.FindAllStringSubmatch(text, -1); matches != nil {
				value = matches[len(matches)-1][1]
			}
		}
		match := textResult.FindStringIndex(text)
		hasResults := match != nil && match[0] == 0 // the results of text tool calling
		switch {
		case m.Role == "tool":
			c.results = append(c.results, text)
		case m.Role == "user" && hasResults:
			c.results = append(c.results, textResult.Split(text, -1)[1:]...)
		case m.Role == "user":
			if c.turn > 0 {
				c.earlier = append(c.earlier, c.question)
			}
			// Resolve the question now, because the results of its own calls change value.
			c.question = resolveFollowUp(text, value)
			c.results = nil
			c.turn++
		case m.Role != "assistant": // system or developer
			c.prompt += text + "\n"
		}
	}
	return c
}

// offeredTools returns the names of the tools that the request allows the model to call. textCalling means that the
// system prompt lists the tools and that calls are written as text.
func (r *chatRequest) offeredTools(prompt string) (names []string, textCalling bool) {
	if len(r.Tools) == 0 && strings.Contains(prompt, "PARAMETERS:") {
		for _, groups := range listedTool.FindAllStringSubmatch(prompt, -1) {
			names = append(names, groups[1])
		}
		return names, true
	}
	choice := string(r.ToolChoice) // a JSON string, or an object that names one tool
	for _, t := range r.Tools {
		isOther := strings.HasPrefix(choice, "{") && !strings.Contains(choice, `"`+t.Function.Name+`"`)
		if choice != `"none"` && !isOther {
			names = append(names, t.Function.Name)
		}
	}
	return names, false
}

// textOf returns the text of a message's content, which is a string or a list of parts. It skips parts without text.
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

// composeText returns the text of an answer: a paragraph for each result, or the help text if results is empty.
// results[i] is the result of calls[i].
func composeText(calls []call, results, tools []string) string {
	if len(results) == 0 {
		return helpText(tools)
	}
	var lines []string
	for i, result := range results[:min(len(results), len(calls))] {
		// Cut off the structured content, which repeats the text for programs.
		text, _, _ := strings.Cut(result, "\nStructured content: ")
		var failure struct{ Error string }
		if json.Unmarshal([]byte(text), &failure) == nil && failure.Error != "" {
			text = fmt.Sprintf("The tool %s failed: %s\n\nI did not try the failed call again.", calls[i].tool, failure.Error)
		}
		lines = append(lines, truncate(text, 1200))
	}
	return strings.Join(lines, "\n\n")
}
