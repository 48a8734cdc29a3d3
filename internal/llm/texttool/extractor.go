package texttool

import (
	"crypto/rand"
	"errors"
	"strings"

	"answerd/internal/llm"
)

// Texts for callers when an answer exceeds the bounds of package llm.
const (
	publicTooManyCalls = "The model asked for too many tool calls at once. Ask for less at a time, or choose another model."
	publicTooLarge     = "The model's answer is too large. Ask for a shorter one."
)

// extractor finds calls in a text that arrives in pieces. It emits text at once, except for a
// part that may become a call, which is at most maxHeader bytes. The outcome does not depend on
// how the text is divided into pieces.
//
// Arguments extend from their opening bracket to the matching closing bracket. If that never
// arrives, they end where the next call or a code fence begins, or with the text. The extractor
// does not check that they are JSON. It passes on what the model wrote, so that an error can
// tell the model what was wrong.
//
// It is in one of three states, of which each has a method that reads as much of pending as it can
// decide: prose (readProse), the arguments of a call (readArguments, while call is set), and text that
// is held back because it may be a call in another notation (readHeld, while holding is set). Every
// decision is about the text from a candidate on. If it depends on text that has not arrived, nothing
// from there on is emitted: what a client was sent cannot be taken back. Only one goroutine uses it.
type extractor struct {
	emit     func(llm.Part) bool // reports whether the consumer wants more
	tools    toolSet
	disabled bool // treat everything as text
	// auto means that the model was offered the tools natively. Then only a text that is
	// certainly a call of a known tool is read as a call.
	auto      bool
	reminders int // how often the conversation already explained the form of a call to the model

	pending      string          // text that is not decided yet
	received     llm.Part        // the last part of the text
	leadingSpace string          // white space before the first emitted part
	spoken       strings.Builder // the text so far, for callMentioned; empty with auto
	started      bool            // text or a call was emitted
	previous     byte            // the last byte before pending, 0 at the start

	holding    bool // pending is held back until the end of the answer, see notation.go
	noHolding  bool // a text that was held back was not a call, so none is held back again
	discarding bool // the model invents results of tools, which are dropped

	call         *llm.ToolCall // the call whose arguments are being read
	arguments    strings.Builder
	scan         llm.ArgumentScanner
	calls        []llm.ToolCall
	afterCall    bool // only white space has arrived since the last call
	closingMarks int  // how many marks may still follow a call's closing bracket directly
	openFences   int  // code fences that were opened before a call and are not closed yet
}

// sendPart emits one part.
func (x *extractor) sendPart(p llm.Part) error {
	if !x.emit(p) {
		return errStopped
	}
	return nil
}

// sendText emits text, as the part that was received if it is the same.
func (x *extractor) sendText(text string) error {
	if p, ok := x.received.(llm.Text); ok && p.Delta == text {
		return x.sendPart(x.received)
	}
	return x.sendPart(llm.Text{Delta: text})
}

// readText reads the next piece of the text.
func (x *extractor) readText(delta string) error {
	if x.disabled {
		return x.sendText(delta)
	}
	if x.discarding {
		return nil
	}
	x.pending += delta
	return x.readPending(false)
}

// passNativeCall passes on a part of a native call. In an answer with native calls, everything
// else is text. If a call was already read out of the text, the native call is dropped, because
// both would have the same index.
func (x *extractor) passNativeCall(p llm.Part) error {
	if len(x.calls) > 0 || x.call != nil {
		return nil
	}
	if !x.disabled {
		x.disabled, x.holding = true, false
		if err := x.emitText(len(x.pending)); err != nil {
			return err
		}
	}
	return x.sendPart(p)
}

// finishAnswer reads the rest of the text, and emits the complete calls and then last.
func (x *extractor) finishAnswer(last ...llm.Part) error {
	if !x.disabled {
		if err := x.readPending(true); err != nil {
			return err
		}
		if err := x.callMentioned(); err != nil {
			return err
		}
	}
	for _, c := range x.calls {
		if err := x.sendPart(c); err != nil {
			return err
		}
	}
	for _, p := range last {
		if e, ok := p.(llm.Extensions); ok && len(x.calls) > 0 {
			// The calls are those of the text, and its parts repeat them.
			e.Calls, e.Content = nil, nil
			p = e
		}
		if err := x.sendPart(p); err != nil {
			return err
		}
	}
	return nil
}

// readPending reads the pending text up to where more text is needed for a decision.
func (x *extractor) readPending(final bool) error {
	for {
		var again bool
		var err error
		if x.holding {
			again, err = x.readHeld(final)
		} else if x.call == nil {
			again, err = x.readProse(final)
		} else {
			again, err = x.readArguments(final)
		}
		if err != nil || !again {
			return err
		}
	}
}

// readProse reads up to the end of the next header. It reports whether more of the pending text
// can be decided.
func (x *extractor) readProse(final bool) (again bool, err error) {
	x.dropAfterCall(final)
	for i := 0; ; i++ {
		i = x.nextCandidate(i)
		if i == len(x.pending) {
			return false, x.emitText(i)
		}
		place := x.placeOf(i)
		if len(x.calls) > 0 && place.lineStart && matchResults(x.pending[i:], final) == matched {
			err := x.emitText(i)
			x.discarding, x.pending = true, ""
			return false, err
		}
		notation := noMatch
		if !x.noHolding {
			notation = matchNotation(x.pending[i:], place, final, x.tools)
		}
		if notation == matched {
			x.holding = true
			return true, x.emitText(i)
		}
		header, result := matchHeader(x.pending[i:], final, x.tools.isKnown)
		if x.auto && (header.raw != "" || !x.tools.isKnown(header.name)) && result == matched {
			result = noMatch
		}
		if result == noMatch && (notation == needMore || len(x.calls) > 0 && place.lineStart && matchResults(x.pending[i:], final) == needMore) {
			result = needMore
		}
		switch result {
		case noMatch:
			continue
		case needMore:
			return false, x.emitText(i)
		}
		if err := x.emitText(i); err != nil {
			return false, err
		}
		return true, x.beginCall(header)
	}
}

// placeOf returns the position of the pending byte at offset i relative to lines, code fences
// and the start of the answer.
func (x *extractor) placeOf(i int) notationPlace {
	before := x.previous
	if i > 0 {
		before = x.pending[i-1]
	}
	atStart := !x.started && len(x.calls) == 0 && strings.Trim(x.pending[:i], whiteSpace) == ""
	return notationPlace{lineStart: before == '\n' || atStart || i == 0 && x.afterCall, answerStart: atStart, inlineCode: before == '`'}
}

// matchResults looks for the words with which the prompt announces a tool's result. A model that
// continues after a call invents such a result.
func matchResults(text string, final bool) matchResult {
	return max(matchPrefix(text, "TOOL RESULT:", final), matchPrefix(text, "TOOL ERROR:", final))
}

// readHeld reads the text that was held back, at the end of the answer or when it is too long
// for a call. A text that turns out not to be a call is read once more as prose, since it may have a
// block in the form of the prompt in it, but nothing of the answer is held back any more: a text full of
// marks would otherwise be parsed again and again.
func (x *extractor) readHeld(final bool) (again bool, err error) {
	if !final && len(x.pending) <= maxHeld {
		return false, nil
	}
	x.holding = false
	segments, found := parseHeld(x.pending, x.tools)
	if !final || !found {
		x.noHolding = true
		return true, nil
	}
	x.pending = ""
	for _, s := range segments {
		if s.call == nil {
			x.pending = s.text
			err = x.emitText(len(s.text))
		} else {
			err = x.addCall(*s.call)
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// nextCandidate returns the next offset from i on at which a header may start, or the
// length of the pending text.
func (x *extractor) nextCandidate(i int) int {
	for ; i < len(x.pending); i++ {
		switch x.pending[i] {
		case '*', '`', '<':
			return i
		case '[', '{', 'A':
			if at := x.placeOf(i); x.pending[i] == '[' || at.answerStart || at.lineStart {
				return i
			}
		case 't', 'T':
			before := x.previous
			if i > 0 {
				before = x.pending[i-1]
			}
			notTool := i+1 < len(x.pending) && x.pending[i+1]|0x20 != 'o'
			if !notTool && !isWordByte(before) {
				return i
			}
		}
		if !x.started && x.tools.hasPrefix(x.pending[i:i+1]) && x.placeOf(i).answerStart {
			return i
		}
	}
	return i
}

// dropAfterCall drops pending bytes that belong to the call before them: marks that close
// its bold or code, white space, and the fence around it.
func (x *extractor) dropAfterCall(final bool) {
	// Each iteration drops something or returns. An incomplete fence waits for its remaining
	// bytes, since fences and single marks are treated differently.
	for x.afterCall && x.pending != "" {
		switch c := x.pending[0]; {
		case strings.IndexByte(marks, c) >= 0 && x.closingMarks > 0 && !strings.HasPrefix(x.pending, "```"):
			if c == '`' && !final && strings.HasPrefix("```", x.pending) {
				return
			}
			x.closingMarks--
			x.pending = x.pending[1:]
		case strings.IndexByte(whiteSpace, c) >= 0:
			x.closingMarks = 0
			x.pending = x.pending[1:]
		case strings.HasPrefix(x.pending, "```") && x.openFences > 0:
			x.openFences--
			x.closingMarks = 0
			x.pending = x.pending[len("```"):]
		default:
			return
		}
	}
}

// emitText emits the first n pending bytes as text. White space at the very beginning waits for
// other text, so that an answer of calls alone has no text.
func (x *extractor) emitText(n int) error {
	if n == 0 {
		return nil
	}
	text := x.pending[:n]
	x.previous, x.pending = text[n-1], x.pending[n:]
	x.afterCall, x.openFences = false, 0
	if !x.started {
		x.leadingSpace += text
		if strings.Trim(text, whiteSpace) == "" {
			return nil
		}
		text, x.leadingSpace, x.started = x.leadingSpace, "", true
	}
	if !x.auto && len(x.calls) == 0 && x.spoken.Len() <= maxMentionText {
		x.spoken.WriteString(text)
	}
	return x.sendText(text)
}

// beginCall starts a call from the header at the beginning of the pending text.
func (x *extractor) beginCall(h toolHeader) error {
	x.pending = x.pending[h.size:]
	x.openFences += h.fences
	if err := x.startCall(h.name); err != nil {
		return err
	}
	switch {
	case h.raw == "":
		return nil
	case saysNoArguments(h.raw) && !x.toolNeedsArguments(h.name):
		h.raw = "{}"
	}
	if err := x.emitArguments(h.raw); err != nil {
		return err
	}
	x.finishCall()
	return nil
}

// saysNoArguments reports whether the text after "PARAMETERS:" means that there are no
// arguments, such as "none".
func saysNoArguments(raw string) bool {
	switch strings.ToLower(strings.Trim(raw, whiteSpace+marks+"().")) {
	case "parameters:", "", "none", "null", "nothing", "n/a", "no parameters", "empty":
		return true
	}
	return false
}

// toolNeedsArguments reports whether the named tool requires arguments.
func (x *extractor) toolNeedsArguments(name string) bool {
	for _, t := range x.tools {
		if t.Name == name {
			return needsArguments(t.Schema)
		}
	}
	return true
}

// startCall announces a call.
func (x *extractor) startCall(name string) error {
	if len(x.calls) == llm.MaxCalls {
		return &llm.Error{Kind: llm.ModelError, Public: publicTooManyCalls, Err: errors.New("more than 128 tool calls in one answer")}
	}
	x.started, x.leadingSpace = true, ""
	x.call = &llm.ToolCall{Index: len(x.calls), ID: "call_" + rand.Text(), Name: name}
	return x.sendPart(llm.ToolCallStart{Index: x.call.Index, ID: x.call.ID, Name: name})
}

// emitArguments emits a piece of the arguments.
func (x *extractor) emitArguments(piece string) error {
	if piece == "" {
		return nil
	}
	if x.arguments.Len()+len(piece) > llm.MaxArgumentBytes {
		return &llm.Error{Kind: llm.ModelError, Public: publicTooLarge, Err: errors.New("the arguments of a call exceed 1 MiB")}
	}
	x.arguments.WriteString(piece)
	return x.sendPart(llm.ToolCallArgs{Index: x.call.Index, Delta: piece})
}

// finishCall completes the current call.
func (x *extractor) finishCall() {
	x.call.Arguments = x.arguments.String()
	x.calls = append(x.calls, *x.call)
	x.call, x.scan = nil, llm.ArgumentScanner{}
	x.arguments.Reset()
	// As many marks may close a call as open one (matchHeader); the next call may begin at once.
	x.afterCall, x.closingMarks, x.previous = true, 6, '}'
}

// readArguments reads up to the end of the arguments. It reports whether more of the pending
// text can be decided.
func (x *extractor) readArguments(final bool) (again bool, err error) {
	for i := 0; i < len(x.pending); i++ {
		c := x.pending[i]
		// Only a new line can end arguments that were never closed: JSON contains no bare words,
		// and its strings contain no line endings.
		if c == '\n' {
			switch matchNextCall(x.pending[i+1:], final) {
			case matched:
				if err := x.takeArguments(i); err != nil {
					return false, err
				}
				x.finishCall()
				return true, nil
			case needMore:
				return false, x.takeArguments(i)
			}
		}
		if x.scan.Next(c) {
			if err := x.takeArguments(i + 1); err != nil {
				return false, err
			}
			x.finishCall()
			return true, nil
		}
	}
	if err := x.takeArguments(len(x.pending)); err != nil || !final {
		return false, err
	}
	x.finishCall()
	return false, nil
}

// takeArguments emits the first n pending bytes as arguments.
func (x *extractor) takeArguments(n int) error {
	piece := x.pending[:n]
	x.pending = x.pending[n:]
	return x.emitArguments(piece)
}
