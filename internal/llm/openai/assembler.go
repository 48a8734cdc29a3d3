package openai

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"answerd/internal/llm"
)

// maxAnswer is the largest total size of the text, the reasoning and the arguments in one answer, in bytes. Without it,
// an endpoint that never stops sending would fill the memory.
const maxAnswer = 16 << 20

// emitter passes one part to the consumer. It returns false if the consumer wants no more parts.
type emitter func(llm.Part) bool

// assembler converts the chunks of one answer to parts. It emits text, reasoning and pieces of calls as they arrive.
// finishAnswer emits the complete calls, the usage and the finish, because endpoints send the usage after
// finish_reason, and some endpoints also the rest of a call. An assembler is used for one attempt by one goroutine. An
// error may come after parts were emitted: partSent decides whether another attempt is possible.
type assembler struct {
	yield emitter
	calls callSet
	// emptyCall is a call whose only arguments so far are {}, which were not emitted yet; nil if the latest piece
	// belongs to another call. Some gateways to Anthropic send {} before the real arguments
	// (https://github.com/openai/openai-agents-js/pull/712).
	emptyCall   *partialCall
	usage       *llm.Usage // the latest one, because some endpoints send a growing usage with every chunk
	model       string     // the model that answered; it may differ from the requested one
	reason      string     // finish_reason; "" until it arrives
	answerBytes int        // size of the answer; at most maxAnswer
	partSent    bool       // at least one part was emitted
	chunk       chunk      // the latest chunk; its memory is reused for the next one

	// The members to send back to the endpoint in later requests. The calls' members are in calls.
	endpoint       string         // identifies the endpoint that the members came from
	message        extensionValue // an object with the members of the message
	content        contentParts   // content that is not only text
	extensionBytes int            // size of all members; if it exceeds maxExtensions, all members are dropped
}

// sendPart passes one part to the consumer. It returns errStopped if the consumer wants no more parts.
func (a *assembler) sendPart(part llm.Part) error {
	a.partSent = true
	if !a.yield(part) {
		return errStopped
	}
	return nil
}

// decodeErrorEvent returns the error in data, the data of an SSE event that is named "error": the member error of a
// chunk, or else all of data, which need not be JSON.
func (a *assembler) decodeErrorEvent(data []byte) error {
	if a.chunk.decodeJSON(data) == nil && a.chunk.error != nil {
		return streamError(a.chunk.error)
	}
	return streamError(data)
}

// decodeChunk decodes one chunk and emits its parts. It returns errStopped, an *llm.Error or a *retryableError. If a
// chunk ends too early, the error wraps errCut.
func (a *assembler) decodeChunk(data []byte) error {
	c := &a.chunk
	if err := c.decodeJSON(data); err != nil {
		return newError(llm.ModelError, publicNonsense, fmt.Errorf("decode a chunk: %w: %s", err, loggableCodes(data)))
	}
	if c.error != nil {
		return streamError(c.error)
	}
	// The model is the same in nearly all chunks, so do not decode it again if it is unchanged.
	if quoted := c.model; len(quoted) > len(`""`) && string(quoted[1:len(quoted)-1]) != a.model {
		a.model = c.scan.unquoteString(quoted)
	}
	a.addUsage(c.usage)
	for i := range c.choices {
		if c.choices[i].index != 0 {
			continue // the request asks for one answer, which has index 0
		}
		if err := a.addChoice(&c.choices[i]); err != nil {
			return err
		}
	}
	return nil
}

// addUsage stores the latest usage. It ignores nil, which means a chunk without usage. It also ignores zeros after
// another usage, because some gateways send a usage with every chunk, of which only one has the tokens.
func (a *assembler) addUsage(usage *llm.Usage) {
	if usage == nil {
		return
	}
	if isZero := *usage == (llm.Usage{}); a.usage == nil || !isZero {
		a.usage = usage
	}
}

// addChoice emits the parts of a choice and stores its finish_reason. It emits the text first, because one chunk may
// have both. It returns an *llm.Error if the choice says that the answer failed, and a *retryableError if the endpoint
// gave up on the answer.
func (a *assembler) addChoice(choice *deltaChoice) error {
	update := &choice.delta
	if !update.present && !a.partSent {
		// Some endpoints send a whole message instead of deltas. A message that follows deltas repeats the whole
		// answer.
		update = &choice.message
	}
	if err := a.addDelta(update); err != nil {
		return err
	}
	if a.chunk.usage == nil { // Moonshot sends the usage in the choice
		a.addUsage(choice.usage)
	}
	if choice.error != nil {
		return streamError(choice.error)
	}
	reason := normalizeReason(choice.reason)
	if reason == "error" {
		return newError(llm.ModelError, publicFailing, errors.New("finish_reason is error"))
	}
	if slices.Contains(interruptedReasons, reason) {
		failed := newError(llm.ModelError, publicFailing, fmt.Errorf("finish_reason is %s", reason))
		failed.Retryable, failed.Unavailable = true, true
		return &retryableError{err: failed}
	}
	if reason != "" {
		a.reason = reason
	}
	return nil
}

// interruptedReasons lists the finish reasons of answers that the endpoint gave up on: DeepSeek had no capacity left,
// or Gemini's model wrote a call that is not JSON.
var interruptedReasons = []string{"insufficient_system_resource", "malformed_function_call", "function_call_filter"}

// normalizeReason translates a provider's finish_reason to the specification's value. A reason without a translation is
// returned in lower case. Mistral sends model_length, and Gemini's endpoint sends the names of Gemini's own API
// (https://github.com/HKUDS/Vibe-Trading/pull/308), also after the name of a filter: "content_filter: RECITATION",
// "function_call_filter: MALFORMED_FUNCTION_CALL".
func normalizeReason(reason string) string {
	reason, _, _ = strings.Cut(strings.ToLower(reason), ":")
	switch reason {
	case "model_length", "max_tokens":
		return "length"
	case "safety", "recitation", "blocklist", "prohibited_content", "spii":
		return "content_filter"
	}
	return reason
}

// addDelta emits the reasoning, the text and the calls of a delta or of a whole message, in this order. If one chunk
// has both reasoning and text, the model produced the reasoning first.
func (a *assembler) addDelta(update *delta) error {
	text := cmp.Or(update.content, update.refusal)
	// Gateways that rename reasoning send it under both names, so use only one of them.
	reasoning := cmp.Or(update.thinking, update.reasoningContent, update.reasoning)
	if err := a.countBytes(len(text) + len(reasoning)); err != nil {
		return err
	}
	a.addExtensions(update)
	if reasoning != "" {
		if err := a.sendPart(llm.Reasoning{Delta: reasoning}); err != nil {
			return err
		}
	}
	if text != "" {
		if err := a.sendPart(llm.Text{Delta: text}); err != nil {
			return err
		}
	}
	return a.addCallPieces(update.calls)
}

// addCallPieces adds the pieces of calls in one chunk to their calls. It ignores a piece that repeats a complete call.
// A piece without content does not begin a call. Only its members are used, for the call that it continues.
func (a *assembler) addCallPieces(pieces []callPiece) error {
	for i, piece := range pieces {
		isFirst := i == 0
		if !a.countMembers(piece.members) {
			piece.members = nil
		}
		if piece.isEmpty() {
			if call := a.calls.findCall(piece, isFirst); call != nil {
				call.extensions.addMembers(piece.members)
			}
			continue
		}
		if err := a.countBytes(len(piece.arguments) + len(piece.name) + len(piece.id)); err != nil {
			return err
		}
		if a.calls.isRepetition(piece, isFirst) {
			continue
		}
		call, err := a.calls.findOrAddCall(piece, isFirst)
		if err != nil {
			return err
		}
		if err := a.addCallPiece(call, piece); err != nil {
			return err
		}
	}
	return nil
}

// addCallPiece adds a piece to its call and emits the piece's arguments. A call is announced with its first arguments,
// because its name may be incomplete before that. If the first arguments are {}, addCallPiece stores the call in
// emptyCall and does not emit them yet. Arguments that follow replace the {}.
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
	case a.emptyCall == call: // the {} before these arguments was only a placeholder
		a.emptyCall = nil
		call.arguments, call.scan = nil, llm.ArgumentScanner{}
	case piece.arguments == "{}" && len(call.arguments) == 0:
		a.emptyCall = call
		call.addArguments(piece.arguments)
		return nil
	}
	if len(call.arguments)+len(piece.arguments) > llm.MaxArgumentBytes {
		return newError(llm.ModelError, publicTooLarge, errors.New("the arguments of a call exceed 1 MiB"))
	}
	if err := a.announceCalls(call.index + 1); err != nil {
		return err
	}
	call.addArguments(piece.arguments)
	return a.sendPart(llm.ToolCallArgs{Index: call.index, Delta: piece.arguments})
}

// sendEmptyArguments emits the {} of emptyCall and clears emptyCall. It is called when a piece of another call, or the
// end of the answer, shows that {} is complete. It does nothing if emptyCall is nil.
func (a *assembler) sendEmptyArguments() error {
	call := a.emptyCall
	if call == nil {
		return nil
	}
	a.emptyCall = nil
	if err := a.announceCalls(call.index + 1); err != nil {
		return err
	}
	return a.sendPart(llm.ToolCallArgs{Index: call.index, Delta: string(call.arguments)})
}

// announceCalls emits the starts of the first n calls with unique ids, except those that were emitted before. The names
// of all calls before the latest one are complete, because no endpoint continues a name after the next call has begun.
// announceCalls returns an error for a call without a name.
func (a *assembler) announceCalls(n int) error {
	for _, call := range a.calls[:n] {
		if call.announced {
			continue
		}
		if call.name == "" {
			return newError(llm.ModelError, publicNonsense, errors.New("a tool call without a name"))
		}
		call.announced = true
		call.id = a.calls.uniqueID(call.upstreamID)
		if err := a.sendPart(llm.ToolCallStart{Index: call.index, ID: call.id, Name: call.name}); err != nil {
			return err
		}
	}
	return nil
}

// addExtensions collects what must be sent back with this message in later requests: unknown members, reasoning under
// the name that the endpoint uses, and content.
func (a *assembler) addExtensions(update *delta) {
	if update.hasReasoningContent {
		a.addReasoning("reasoning_content", update.reasoningContent)
	}
	if update.hasReasoning {
		a.addReasoning("reasoning", update.reasoning)
	}
	if a.countMembers(update.members) {
		a.message.addMembers(update.members)
	}
	if update.parts == nil {
		a.content.addText(update.content)
	} else {
		a.content.addParts(update.parts)
	}
}

// addReasoning appends text to the message's string member name. An empty text creates the member. If the members
// exceed maxExtensions, addReasoning only counts the text.
func (a *assembler) addReasoning(name, text string) {
	a.extensionBytes += len(text)
	if a.extensionBytes <= maxExtensions {
		a.message.addText(name, text)
	}
}

// countMembers adds the size of members to extensionBytes, and reports whether the sum is at most maxExtensions.
func (a *assembler) countMembers(members []rawMember) bool {
	for _, m := range members {
		a.extensionBytes += len(m.name) + len(m.value)
	}
	return a.extensionBytes <= maxExtensions
}

// countBytes adds bytes to the size of the answer, and returns an error if the size exceeds maxAnswer.
func (a *assembler) countBytes(bytes int) error {
	a.answerBytes += bytes
	if a.answerBytes > maxAnswer {
		return newError(llm.ModelError, publicTooLarge, errors.New("the answer exceeds 16 MiB"))
	}
	return nil
}

// hasFinished reports whether the model said that its answer is complete.
func (a *assembler) hasFinished() bool { return a.reason != "" }

// truncatedError returns the UpstreamTruncated error for an answer that ended without a finish_reason, because of cause.
// If no part of the answer was emitted, the error allows a retry and a fallback, like a connection that broke before the
// reply.
func (a *assembler) truncatedError(cause error) error {
	modelErr := newError(llm.UpstreamTruncated, publicTruncated, cause)
	modelErr.Retryable, modelErr.Unavailable = true, !a.partSent
	if a.partSent {
		return modelErr
	}
	return &retryableError{err: modelErr}
}

// finishAnswer emits the complete calls, the extensions, the usage and the finish. If no finish_reason has arrived, it
// emits nothing and returns a truncatedError. Otherwise a stream that was cut off would look like a short answer.
func (a *assembler) finishAnswer() error {
	if !a.hasFinished() {
		return a.truncatedError(errNoFinish)
	}
	if err := a.sendEmptyArguments(); err != nil {
		return err
	}
	if err := a.markCutCall(); err != nil {
		return err
	}
	if err := a.announceCalls(len(a.calls)); err != nil { // those without arguments were not announced yet
		return err
	}
	for _, c := range a.calls {
		if err := a.sendPart(llm.ToolCall{Index: c.index, ID: c.id, Name: c.name, Arguments: string(c.arguments)}); err != nil {
			return err
		}
	}
	if extensions := a.extensions(); extensions != nil {
		if err := a.sendPart(*extensions); err != nil {
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

// markCutCall sets the last call's arguments to "{" if the model reached its token limit before it wrote any arguments.
// Otherwise the tool would be called without arguments, although the model was about to write some. An unclosed object
// is invalid, so the call fails like every call whose arguments were cut off.
func (a *assembler) markCutCall() error {
	last := a.calls.last()
	if a.reason != "length" || last == nil || len(last.arguments) > 0 {
		return nil
	}
	return a.addCallPiece(last, callPiece{arguments: "{"})
}

// extensions returns the members to send back with this answer. It returns nil if there are none, or more than
// maxExtensions.
func (a *assembler) extensions() *llm.Extensions {
	if a.extensionBytes > maxExtensions {
		return nil
	}
	extensions := &llm.Extensions{Endpoint: a.endpoint, Message: a.message.encodeMembers(), Content: a.content.encode()}
	for i, c := range a.calls {
		if object := c.extensions.encodeMembers(); object != nil {
			for len(extensions.Calls) < i { // calls without members
				extensions.Calls = append(extensions.Calls, nil)
			}
			extensions.Calls = append(extensions.Calls, object)
		}
	}
	if extensions.Message == nil && extensions.Content == nil && len(extensions.Calls) == 0 {
		return nil
	}
	return extensions
}
