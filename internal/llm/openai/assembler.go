package openai

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"answerd/internal/llm"
)

// Bounds of one answer. They keep an endpoint that never ends from filling memory.
const (
	maxAnswer = 16 << 20 // bytes of text, reasoning and arguments together
)

// emitter passes one part to the consumer and reports whether it wants more.
type emitter func(llm.Part) bool

// assembler turns the chunks of one answer into parts. It emits text, reasoning and pieces of
// calls as they arrive. Complete calls, usage and finish wait for finishAnswer, because
// endpoints send usage after finish_reason, and some of them also the rest of a call. It belongs to one
// attempt and one goroutine. Its parts may already be with the consumer when an error comes, which is
// why partSent decides whether there can be another attempt.
type assembler struct {
	yield emitter
	calls callSet
	// emptyCall is the call of the last piece if its arguments are {} so far, which is not sent yet: some
	// gateways to Anthropic send that before the arguments (https://github.com/openai/openai-agents-js/pull/712).
	emptyCall *partialCall
	usage     *llm.Usage // the latest: some endpoints send it with every chunk, growing
	model     string     // the model that answered, which need not be the one asked for
	reason    string     // finish_reason, "" until it arrives
	bytes     int        // towards maxAnswer
	partSent  bool       // at least one part was emitted
	chunk     chunk      // the latest

	endpoint       string       // names it in extensions
	message        extensionSet // of the message; those of calls are in calls
	content        contentParts
	extensionBytes int // of all of them, towards maxExtensions
}

// sendPart passes one part to the consumer.
func (a *assembler) sendPart(p llm.Part) error {
	a.partSent = true
	if !a.yield(p) {
		return errStopped
	}
	return nil
}

// decodeChunk decodes one chunk and emits its parts. isError means that the SSE event was named
// "error".
func (a *assembler) decodeChunk(data []byte, isError bool) error {
	c := &a.chunk
	err := c.decodeJSON(data)
	switch {
	case err != nil && !isError:
		return newError(llm.ModelError, publicNonsense, fmt.Errorf("decode a chunk: %w: %s", err, loggableCodes(data)))
	case err == nil && c.error != nil:
		return streamError(c.error)
	case isError:
		return streamError(data)
	}
	if name := c.model; len(name) > 2 && string(name[1:len(name)-1]) != a.model {
		a.model = c.scan.unquoteString(name)
	}
	a.addUsage(c.usage)
	for i := range c.choices {
		if c.choices[i].index != 0 {
			continue // we ask for one answer
		}
		if err := a.addChoice(&c.choices[i]); err != nil {
			return err
		}
	}
	return nil
}

// addUsage keeps the latest usage, nil if a chunk has none. Zeros do not replace tokens: some gateways send a usage
// with every chunk, and it has tokens in only one of them.
func (a *assembler) addUsage(usage *llm.Usage) {
	if usage == nil {
		return
	}
	if isZero := *usage == (llm.Usage{}); a.usage == nil || !isZero {
		a.usage = usage
	}
}

// addChoice emits the first, and only, choice of a chunk. It reads finish_reason after the
// text, since both may come in one chunk.
func (a *assembler) addChoice(choice *deltaChoice) error {
	said := &choice.delta
	if !said.sent && !a.partSent {
		// After deltas, a message repeats the whole answer.
		said = &choice.message
	}
	if err := a.addDelta(said); err != nil {
		return err
	}
	if a.chunk.usage == nil {
		a.addUsage(choice.usage)
	}
	if choice.error != nil {
		return streamError(choice.error)
	}
	reason := finishReason(choice.reason)
	if reason == "error" {
		return newError(llm.ModelError, publicFailing, errors.New("finish_reason is error"))
	}
	if slices.Contains(interruptedReasons, reason) {
		failed := newError(llm.ModelError, publicFailing, fmt.Errorf("finish_reason is %s", reason))
		failed.Retryable, failed.Unavailable = true, true
		return &retryableError{err: failed, retry: true}
	}
	if reason != "" {
		a.reason = reason
	}
	return nil
}

// interruptedReasons are those of answers that the endpoint gave up: DeepSeek's without capacity, and Gemini's for a call
// that is not JSON.
var interruptedReasons = []string{"insufficient_system_resource", "malformed_function_call"}

// finishReason returns the finish_reason of the specification for that of a provider, in lower case. Mistral has
// model_length, and Gemini's endpoint passes on its own names (https://github.com/HKUDS/Vibe-Trading/pull/308).
func finishReason(reason string) string {
	switch reason = strings.ToLower(reason); reason {
	case "model_length", "max_tokens":
		return "length"
	case "safety", "recitation", "blocklist", "prohibited_content", "spii":
		return "content_filter"
	}
	return reason
}

// addDelta emits a delta, or a message that replaces all of them. Reasoning goes before
// text: if one chunk has both, the model produced the reasoning first.
func (a *assembler) addDelta(said *delta) error {
	words := cmp.Or(said.content, said.refusal)
	// Gateways that rename reasoning send it under both names, so only one of them is used.
	thought := cmp.Or(said.thinking, said.reasoningContent, said.reasoning)
	if err := a.countBytes(len(words) + len(thought)); err != nil {
		return err
	}
	a.addExtensions(said)
	if thought != "" {
		if err := a.sendPart(llm.Reasoning{Delta: thought}); err != nil {
			return err
		}
	}
	if words != "" {
		if err := a.sendPart(llm.Text{Delta: words}); err != nil {
			return err
		}
	}
	return a.addCallPieces(said.calls)
}

// addCallPieces adds the pieces of calls in one chunk.
func (a *assembler) addCallPieces(pieces []callPiece) error {
	for i, piece := range pieces {
		if !a.countMembers(piece.members) {
			piece.members = nil
		}
		if piece.isEmpty() {
			if call := a.calls.findCall(piece, i > 0); call != nil {
				call.extensions.addMembers(piece.members)
			}
			continue
		}
		if err := a.countBytes(len(piece.arguments) + len(piece.name) + len(piece.id)); err != nil {
			return err
		}
		if a.calls.isRepetition(piece, i > 0) {
			continue
		}
		// Two pieces of one chunk without an index belong to two calls.
		call, err := a.calls.callFor(piece, i > 0)
		if err != nil {
			return err
		}
		if err := a.addCallPiece(call, piece); err != nil {
			return err
		}
	}
	return nil
}

// addCallPiece adds a piece to its call. A call is announced with its first arguments, because
// its name may be incomplete before.
func (a *assembler) addCallPiece(call *partialCall, piece callPiece) error {
	if a.emptyCall != call {
		if err := a.sendEmptyArguments(); err != nil {
			return err
		}
	}
	call.addNameAndID(piece)
	call.extensions.addMembers(piece.members)
	if len(call.arguments) == 0 {
		piece.arguments = withoutRepetition(piece.arguments)
	}
	switch {
	case piece.arguments == "":
		return nil
	case a.emptyCall == call: // what came before were not the arguments
		a.emptyCall, call.arguments, call.scan = nil, nil, llm.ArgumentScanner{}
	case piece.arguments == "{}" && len(call.arguments) == 0:
		a.emptyCall = call
		call.addArguments(piece.arguments)
		return nil
	}
	if len(call.arguments)+len(piece.arguments) > llm.MaxArgumentBytes {
		return newError(llm.ModelError, publicTooLarge, errors.New("the arguments of a call exceed 1 MiB"))
	}
	if err := a.announceCall(call); err != nil {
		return err
	}
	call.addArguments(piece.arguments)
	return a.sendPart(llm.ToolCallArgs{Index: call.index, Delta: piece.arguments})
}

// sendEmptyArguments sends the arguments of emptyCall, when no others can come.
func (a *assembler) sendEmptyArguments() error {
	call := a.emptyCall
	if call == nil {
		return nil
	}
	a.emptyCall = nil
	if err := a.announceCall(call); err != nil {
		return err
	}
	return a.sendPart(llm.ToolCallArgs{Index: call.index, Delta: string(call.arguments)})
}

// announceCall sends the start of a call, and before it the starts of all earlier calls. Their names
// are complete, since no endpoint continues a name after the next call has begun.
func (a *assembler) announceCall(c *partialCall) error {
	if c.announced {
		return nil
	}
	for _, earlier := range a.calls.list[:c.index+1] {
		if earlier.announced {
			continue
		}
		if earlier.name == "" {
			return newError(llm.ModelError, publicNonsense, errors.New("a tool call without a name"))
		}
		earlier.announced = true
		earlier.id = a.calls.uniqueID(earlier.upstreamID)
		if err := a.sendPart(llm.ToolCallStart{Index: earlier.index, ID: earlier.id, Name: earlier.name}); err != nil {
			return err
		}
	}
	return nil
}

// addExtensions collects the members of a message that must be sent back with it. They include
// reasoning that came as text, under the name that the endpoint gave it.
func (a *assembler) addExtensions(said *delta) {
	if said.hasReasoningContent {
		a.addReasoning("reasoning_content", said.reasoningContent)
	}
	if said.hasReasoning {
		a.addReasoning("reasoning", said.reasoning)
	}
	if a.countMembers(said.members) {
		a.message.addMembers(said.members)
	}
	if said.parts == nil {
		a.content.addText(said.content)
	} else {
		a.content.addParts(said.parts)
	}
}

// addReasoning collects a piece of the member name, a string.
func (a *assembler) addReasoning(name, text string) {
	a.extensionBytes += len(text)
	if a.extensionBytes <= maxExtensions {
		a.message.object.addText(name, text)
	}
}

// countMembers adds the size of members to extensionBytes, and reports whether the sum is within
// maxExtensions.
func (a *assembler) countMembers(members []rawMember) bool {
	for _, m := range members {
		a.extensionBytes += len(m.name) + len(m.value)
	}
	return a.extensionBytes <= maxExtensions
}

// countBytes adds n to the size of the answer, and returns an error beyond maxAnswer.
func (a *assembler) countBytes(n int) error {
	a.bytes += n
	if a.bytes > maxAnswer {
		return newError(llm.ModelError, publicTooLarge, errors.New("the answer exceeds 16 MiB"))
	}
	return nil
}

// hasFinished reports whether the model said that its answer is complete.
func (a *assembler) hasFinished() bool { return a.reason != "" }

// finishAnswer sends the complete calls, usage and finish. Without a finish_reason it returns an
// error, because a stream that was cut off otherwise looks like a short answer. cause tells how
// the stream ended.
func (a *assembler) finishAnswer(cause error) error {
	if !a.hasFinished() {
		e := newError(llm.UpstreamTruncated, publicTruncated, cause)
		e.Retryable = true
		return e
	}
	if err := a.sendEmptyArguments(); err != nil {
		return err
	}
	if err := a.markCutCall(); err != nil {
		return err
	}
	// Calls without arguments have not been announced yet.
	if n := a.calls.count(); n > 0 {
		if err := a.announceCall(a.calls.list[n-1]); err != nil {
			return err
		}
	}

	for _, c := range a.calls.list {
		if err := a.sendPart(llm.ToolCall{Index: c.index, ID: c.id, Name: c.name, Arguments: string(c.arguments)}); err != nil {
			return err
		}
	}

	if x := a.extensions(); x != nil {
		if err := a.sendPart(*x); err != nil {
			return err
		}
	}
	if a.usage != nil {
		if err := a.sendPart(*a.usage); err != nil {
			return err
		}
	}
	return a.sendPart(llm.Finish{Reason: a.reason, Model: a.model})
}

// markCutCall opens the arguments of the last call if the model reached its limit of tokens before it wrote them.
// Without arguments the call would be made, although it is unknown what the model was about to write. An object that
// is not closed fails as any other cut call does.
func (a *assembler) markCutCall() error {
	n := a.calls.count()
	if a.reason != "length" || n == 0 || len(a.calls.list[n-1].arguments) > 0 {
		return nil
	}
	return a.addCallPiece(a.calls.list[n-1], callPiece{arguments: "{"})
}

// extensions returns the members to send back with this answer, or nil if it has none or more
// than maxExtensions.
func (a *assembler) extensions() *llm.Extensions {
	if a.extensionBytes > maxExtensions {
		return nil
	}
	extensions := &llm.Extensions{Message: a.message.encodeMembers(), Content: a.content.encode()}
	found := extensions.Message != nil || extensions.Content != nil
	for i, c := range a.calls.list {
		if object := c.extensions.encodeMembers(); object != nil {
			for len(extensions.Calls) < i {
				extensions.Calls = append(extensions.Calls, nil)
			}
			extensions.Calls, found = append(extensions.Calls, object), true
		}
	}
	if !found {
		return nil
	}
	extensions.Endpoint = a.endpoint
	return extensions
}
