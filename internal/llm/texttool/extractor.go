package texttool

import (
	"crypto/rand"
	"errors"
	"slices"
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

	cut        bool // the answer ended at the model's limit of tokens
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
func (e *extractor) sendPart(p llm.Part) error {
	if !e.emit(p) {
		return errStopped
	}
	return nil
}

// sendText emits text, as the part that was received if it is the same.
func (e *extractor) sendText(text string) error {
	if p, ok := e.received.(llm.Text); ok && p.Delta == text {
		return e.sendPart(e.received)
	}
	return e.sendPart(llm.Text{Delta: text})
}

// readText reads the next piece of the text.
func (e *extractor) readText(delta string) error {
	if e.disabled {
		return e.sendText(delta)
	}
	if e.discarding {
		return nil
	}
	e.pending += delta
	return e.readPending(false)
}

// passNativeCall passes on a part of a native call. In an answer with native calls, everything
// else is text. If a call was already read out of the text, the native call is dropped, because
// both would have the same index.
func (e *extractor) passNativeCall(p llm.Part) error {
	if len(e.calls) > 0 || e.call != nil {
		return nil
	}
	if !e.disabled {
		e.disabled, e.holding = true, false
		if err := e.emitText(len(e.pending)); err != nil {
			return err
		}
	}
	return e.sendPart(p)
}

// finishAnswer reads the rest of the text, and emits the complete calls and then last.
func (e *extractor) finishAnswer(last ...llm.Part) error {
	e.cut = slices.ContainsFunc(last, func(p llm.Part) bool { finish, ok := p.(llm.Finish); return ok && finish.Reason == "length" })
	if !e.disabled {
		if err := e.readPending(true); err != nil {
			return err
		}
		if err := e.callMentioned(); err != nil {
			return err
		}
	}
	for _, c := range e.calls {
		if err := e.sendPart(c); err != nil {
			return err
		}
	}
	for _, p := range last {
		if extensions, ok := p.(llm.Extensions); ok && len(e.calls) > 0 {
			// The calls are those of the text, and its parts repeat them.
			extensions.Calls = nil
			extensions.Content = nil
			p = extensions
		}
		if err := e.sendPart(p); err != nil {
			return err
		}
	}
	return nil
}

// readPending reads the pending text up to where more text is needed for a decision: what is held back, the
// arguments of the call that has begun, or prose. With final there is no more text, so everything is decided.
func (e *extractor) readPending(final bool) error {
	for {
		var again bool
		var err error
		switch {
		case e.holding:
			again, err = e.readHeld(final)
		case e.call != nil:
			again, err = e.readArguments(final)
		default:
			again, err = e.readProse(final)
		}
		if err != nil || !again {
			return err
		}
	}
}

// readProse reads up to the end of the next header. It reports whether more of the pending text
// can be decided.
func (e *extractor) readProse(final bool) (again bool, err error) {
	e.dropAfterCall(final)
	for i := 0; ; i++ {
		i = e.nextCandidate(i)
		if i == len(e.pending) {
			return false, e.emitText(i)
		}
		place := e.placeOf(i)
		if len(e.calls) > 0 && place.lineStart && matchResults(e.pending[i:], final) == matched {
			err := e.emitText(i)
			e.discarding, e.pending = true, ""
			return false, err
		}
		notation := noMatch
		if !e.noHolding {
			notation = matchNotation(e.pending[i:], place, final, e.tools)
		}
		if notation == matched {
			e.holding = true
			return true, e.emitText(i)
		}
		header, result := matchHeader(e.pending[i:], final, e.tools.isKnown)
		if e.auto && result == matched {
			// The text counts only if it is certainly a call.
			isCertain := header.raw == "" && e.tools.isKnown(header.name)
			if !isCertain {
				result = noMatch
			}
		}
		mayBeResults := func() bool {
			return len(e.calls) > 0 && place.lineStart && matchResults(e.pending[i:], final) == needMore
		}
		if result == noMatch && (notation == needMore || mayBeResults()) {
			result = needMore
		}
		switch result {
		case noMatch:
			continue
		case needMore:
			return false, e.emitText(i)
		}
		if err := e.emitText(i); err != nil {
			return false, err
		}
		return true, e.beginCall(header)
	}
}

// placeOf returns the position of the pending byte at offset i relative to lines, code fences
// and the start of the answer.
func (e *extractor) placeOf(i int) notationPlace {
	before := e.previous
	if i > 0 {
		before = e.pending[i-1]
	}
	atStart := !e.started && len(e.calls) == 0 && strings.Trim(e.pending[:i], whiteSpace) == ""
	followsCall := i == 0 && e.afterCall
	return notationPlace{
		lineStart:   before == '\n' || atStart || followsCall,
		answerStart: atStart,
		inlineCode:  before == '`',
	}
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
func (e *extractor) readHeld(final bool) (again bool, err error) {
	if !final && len(e.pending) <= maxHeld {
		return false, nil
	}
	e.holding = false
	segments, found := parseHeld(e.pending, e.tools, e.cut)
	if !final || !found {
		e.noHolding = true
		return true, nil
	}
	e.pending = ""
	for _, s := range segments {
		if s.call == nil {
			e.pending = s.text
			err = e.emitText(len(s.text))
		} else {
			err = e.addCall(*s.call)
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// nextCandidate returns the next offset from i on at which a header may start, or the
// length of the pending text.
func (e *extractor) nextCandidate(i int) int {
	for ; i < len(e.pending); i++ {
		switch e.pending[i] {
		case '*', '`', '<':
			return i
		case '[', '{', 'A':
			if at := e.placeOf(i); e.pending[i] == '[' || at.answerStart || at.lineStart {
				return i
			}
		case 't', 'T':
			before := e.previous
			if i > 0 {
				before = e.pending[i-1]
			}
			notTool := i+1 < len(e.pending) && e.pending[i+1]|0x20 != 'o'
			if !notTool && !isWordByte(before) {
				return i
			}
		}
		if !e.started && e.tools.hasPrefix(e.pending[i:i+1]) && e.placeOf(i).answerStart {
			return i
		}
	}
	return i
}

// dropAfterCall drops pending bytes that belong to the call before them: marks that close
// its bold or code, white space, and the fence around it.
func (e *extractor) dropAfterCall(final bool) {
	// Each iteration drops something or returns. An incomplete fence waits for its remaining
	// bytes, since fences and single marks are treated differently.
	for e.afterCall && e.pending != "" {
		c := e.pending[0]
		switch {
		case strings.IndexByte(marks, c) >= 0 && e.closingMarks > 0 && !strings.HasPrefix(e.pending, "```"):
			if c == '`' && !final && strings.HasPrefix("```", e.pending) {
				return
			}
			e.closingMarks--
			e.pending = e.pending[1:]
		case strings.IndexByte(whiteSpace, c) >= 0:
			e.closingMarks = 0
			e.pending = e.pending[1:]
		case strings.HasPrefix(e.pending, "```") && e.openFences > 0:
			e.openFences--
			e.closingMarks = 0
			e.pending = e.pending[len("```"):]
		default:
			return
		}
	}
}

// emitText emits the first n pending bytes as text. White space at the very beginning waits for
// other text, so that an answer of calls alone has no text.
func (e *extractor) emitText(n int) error {
	if n == 0 {
		return nil
	}
	text := e.pending[:n]
	e.previous, e.pending = text[n-1], e.pending[n:]
	e.afterCall, e.openFences = false, 0
	if !e.started {
		e.leadingSpace += text
		if strings.Trim(text, whiteSpace) == "" {
			return nil
		}
		text, e.leadingSpace, e.started = e.leadingSpace, "", true
	}
	if !e.auto && len(e.calls) == 0 && e.spoken.Len() <= maxMentionText {
		e.spoken.WriteString(text)
	}
	return e.sendText(text)
}

// beginCall starts a call from the header at the beginning of the pending text.
func (e *extractor) beginCall(header toolHeader) error {
	e.pending = e.pending[header.size:]
	e.openFences += header.fences
	if err := e.startCall(header.name); err != nil {
		return err
	}
	switch {
	case header.raw == "":
		return nil
	case e.cut && e.pending == "": // the arguments may be missing
	case saysNoArguments(header.raw) && !e.toolNeedsArguments(header.name):
		header.raw = "{}"
	}
	if err := e.emitArguments(header.raw); err != nil {
		return err
	}
	e.finishCall()
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
func (e *extractor) toolNeedsArguments(name string) bool {
	for _, t := range e.tools {
		if t.Name == name {
			return needsArguments(t.Schema)
		}
	}
	return true
}

// startCall announces a call.
func (e *extractor) startCall(name string) error {
	if len(e.calls) == llm.MaxCalls {
		return &llm.Error{Kind: llm.ModelError, Public: publicTooManyCalls, Err: errors.New("more than 128 tool calls in one answer")}
	}
	e.started, e.leadingSpace = true, ""
	e.call = &llm.ToolCall{Index: len(e.calls), ID: "call_" + rand.Text(), Name: name}
	return e.sendPart(llm.ToolCallStart{Index: e.call.Index, ID: e.call.ID, Name: name})
}

// emitArguments emits a piece of the arguments.
func (e *extractor) emitArguments(piece string) error {
	if piece == "" {
		return nil
	}
	if e.arguments.Len()+len(piece) > llm.MaxArgumentBytes {
		return &llm.Error{Kind: llm.ModelError, Public: publicTooLarge, Err: errors.New("the arguments of a call exceed 1 MiB")}
	}
	e.arguments.WriteString(piece)
	return e.sendPart(llm.ToolCallArgs{Index: e.call.Index, Delta: piece})
}

// finishCall completes the current call.
func (e *extractor) finishCall() {
	e.call.Arguments = e.arguments.String()
	e.calls = append(e.calls, *e.call)
	e.call, e.scan = nil, llm.ArgumentScanner{}
	e.arguments.Reset()
	// As many marks may close a call as open one (matchHeader); the next call may begin at once.
	e.afterCall = true
	e.closingMarks = 6
	e.previous = '}'
}

// readArguments reads up to the end of the arguments. It reports whether more of the pending
// text can be decided.
func (e *extractor) readArguments(final bool) (again bool, err error) {
	for i := 0; i < len(e.pending); i++ {
		c := e.pending[i]
		// Only a new line can end arguments that were never closed: JSON contains no bare words,
		// and its strings contain no line endings.
		if c == '\n' {
			switch matchNextCall(e.pending[i+1:], final) {
			case matched:
				if err := e.takeArguments(i); err != nil {
					return false, err
				}
				e.finishCall()
				return true, nil
			case needMore:
				return false, e.takeArguments(i)
			}
		}
		if e.scan.Next(c) {
			if err := e.takeArguments(i + 1); err != nil {
				return false, err
			}
			e.finishCall()
			return true, nil
		}
	}
	if err := e.takeArguments(len(e.pending)); err != nil || !final {
		return false, err
	}
	e.finishCall()
	return false, nil
}

// takeArguments emits the first n pending bytes as arguments.
func (e *extractor) takeArguments(n int) error {
	piece := e.pending[:n]
	e.pending = e.pending[n:]
	return e.emitArguments(piece)
}
