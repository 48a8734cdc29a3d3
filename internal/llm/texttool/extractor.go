package texttool

import (
	"crypto/rand"
	"errors"
	"slices"
	"strings"

	"answerd/internal/llm"
)

// Texts for callers if an answer exceeds the limits of package llm.
const (
	publicTooManyCalls = "The model asked for too many tool calls at once. Ask for less at a time, or choose another model."
	publicTooLarge     = "The model's answer is too large. Ask for a shorter one."
)

// extractor finds calls in the text of one answer, which arrives in pieces. It emits text at once, except for text that
// may turn out to be a call: at most maxHeader bytes, or maxBuffered bytes in another notation. The outcome does not
// depend on how the text is divided into pieces. An extractor is used by one goroutine.
//
// Arguments extend from their opening bracket to the matching closing bracket. If the closing bracket never arrives,
// they end where the next call or a code fence begins, or at the end of the text. The extractor does not check that
// arguments are JSON. It passes on what the model wrote, so that an error can tell the model what was wrong.
//
// The extractor is in one of three states. In each state, one method reads as much of pending as can be decided:
//   - prose: readProse, if neither call nor buffering is set
//   - the arguments of a call: readArguments, while call is set
//   - text that may be a call in another notation: readBuffered, while buffering is set
//
// If a decision depends on text that has not arrived, nothing after that place is emitted, because text that was sent
// to a client cannot be taken back.
type extractor struct {
	emit     func(llm.Part) bool // returns false if the consumer wants no more parts
	tools    toolSet
	disabled bool // treat everything as text
	// auto says that the model was offered the tools natively. Text is then read as a call only if it certainly is a
	// call of a known tool.
	auto      bool
	reminders int // number of earlier answers that were reported to the model as near misses

	pending      string          // text that was not decided yet
	received     llm.Part        // the last text part received, an llm.Text
	leadingSpace string          // white space before the first emitted part
	answerText   strings.Builder // the emitted text, for callMentioned; empty with auto
	started      bool            // text or a call was emitted
	previous     byte            // the last byte before pending; 0 at the start

	ended       bool // the answer has no more text, so all of pending can be decided; set by finishAnswer
	truncated   bool // the answer ended at the model's token limit; set by finishAnswer
	buffering   bool // keep pending until the end of the answer; see notation.go
	noBuffering bool // do not buffer again, because a buffered text was not a call
	discarding  bool // drop the rest of the answer, because the model has begun to invent tool results

	call         *llm.ToolCall       // the call whose arguments are being read, or nil
	arguments    strings.Builder     // the arguments of call so far
	scan         llm.ArgumentScanner // has read arguments
	calls        []llm.ToolCall      // the complete calls; finishAnswer emits them
	afterCall    bool                // only white space, marks and fences have arrived since the last call
	closingMarks int                 // how many marks may still directly follow a call's closing bracket
	openFences   int                 // number of code fences opened before a call and not closed yet
}

// sendPart emits one part. It returns errStopped if the consumer wants no more parts.
func (e *extractor) sendPart(part llm.Part) error {
	if !e.emit(part) {
		return errStopped
	}
	return nil
}

// sendText emits text. If e.received has the same text, sendText emits that part, which saves an allocation.
func (e *extractor) sendText(text string) error {
	if p, ok := e.received.(llm.Text); ok && p.Delta == text {
		return e.sendPart(e.received)
	}
	return e.sendPart(llm.Text{Delta: text})
}

// readText reads the next piece of the answer's text, and emits all parts that can be decided.
func (e *extractor) readText(delta string) error {
	if e.disabled {
		return e.sendText(delta)
	}
	if e.discarding {
		return nil
	}
	e.pending += delta
	return e.readPending()
}

// passNativeCall emits a part of a native call. The first such part disables e, so that the pending text and all later
// text are emitted as text. If e has already found a call in the text, passNativeCall drops the native call, because
// both calls would have the same index.
func (e *extractor) passNativeCall(part llm.Part) error {
	if len(e.calls) > 0 || e.call != nil {
		return nil
	}
	if !e.disabled {
		e.disabled, e.buffering = true, false
		if err := e.emitText(len(e.pending)); err != nil {
			return err
		}
	}
	return e.sendPart(part)
}

// finishAnswer decides the pending text. It then emits the complete calls that were found in the text, followed by
// last. last has the parts that come after the calls, including the answer's Finish.
func (e *extractor) finishAnswer(last ...llm.Part) error {
	e.ended = true
	e.truncated = slices.ContainsFunc(last, func(p llm.Part) bool {
		finish, ok := p.(llm.Finish)
		return ok && finish.Reason == "length"
	})
	if !e.disabled {
		if err := e.readPending(); err != nil {
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
			// The endpoint's members of calls do not belong to the calls that were found in the text. The content
			// repeats that text, which must not be sent back together with the calls.
			extensions.Calls, extensions.Content = nil, nil
			p = extensions
		}
		if err := e.sendPart(p); err != nil {
			return err
		}
	}
	return nil
}

// readPending decides the pending text as far as possible.
func (e *extractor) readPending() error {
	for {
		var again bool
		var err error
		switch {
		case e.buffering:
			again, err = e.readBuffered()
		case e.call != nil:
			again, err = e.readArguments()
		default:
			again, err = e.readProse()
		}
		if err != nil || !again {
			return err
		}
	}
}

// readProse emits the pending text up to the next call, and begins that call: it reads the call's header, or starts to
// buffer the call's text. If an invented result comes first, it discards the rest of the answer. again is true if more
// of the pending text can be decided. Otherwise everything was read, or the rest depends on text that has not arrived.
func (e *extractor) readProse() (again bool, err error) {
	e.dropAfterCall()
	for i := e.nextCandidate(0); i < len(e.pending); i = e.nextCandidate(i + 1) {
		text, at := e.pending[i:], e.positionOf(i)
		invented, notation := noMatch, noMatch
		if len(e.calls) > 0 && at.lineStart {
			invented = matchInventedResult(text, e.ended)
		}
		if !e.noBuffering {
			notation = matchNotation(text, at, e.ended, e.tools)
		}
		header, call := e.matchCallHeader(text)
		if max(invented, notation, call) == noMatch {
			continue // the text is prose up to the next candidate
		}
		if err := e.emitText(i); err != nil {
			return false, err
		}
		switch {
		case invented == matched:
			e.discarding = true
			e.pending = ""
			return false, nil
		case notation == matched:
			e.buffering = true
			return true, nil
		case call == matched:
			return true, e.beginCall(header)
		default: // the decision needs more text
			return false, nil
		}
	}
	return false, e.emitText(len(e.pending))
}

// matchCallHeader matches the beginning of text with the header of a call. With auto, a header counts only if it names
// a known tool and has no raw arguments.
func (e *extractor) matchCallHeader(text string) (toolHeader, matchResult) {
	header, result := matchHeader(text, e.ended, e.tools)
	isCertain := header.raw == "" && e.tools.isKnown(header.name)
	if e.auto && result == matched && !isCertain {
		result = noMatch
	}
	return header, result
}

// positionOf says where the byte at offset i in pending is, relative to lines, inline code and the start of the answer.
func (e *extractor) positionOf(i int) position {
	before := e.byteBefore(i)
	atStart := !e.started && len(e.calls) == 0 && strings.Trim(e.pending[:i], whiteSpace) == ""
	followsCall := i == 0 && e.afterCall
	return position{
		lineStart:   before == '\n' || atStart || followsCall, // a call may follow another call on the same line
		answerStart: atStart,
		inlineCode:  before == '`',
	}
}

// matchInventedResult matches the beginning of text with the words that announce a tool result in the prompt. A model
// that writes these words after a call invents a result. final says that no more text follows.
func matchInventedResult(text string, final bool) matchResult {
	return max(matchPrefix(text, "TOOL RESULT:", final), matchPrefix(text, "TOOL ERROR:", final))
}

// readBuffered parses the buffered text at the end of the answer, and emits the calls in it and the text between them.
// If the text is not a call, or exceeds maxBuffered, readBuffered emits nothing and returns true, so that the text is
// read as prose, which may contain a block in the form of the prompt. In that case it also sets noBuffering, because a
// text full of marks would otherwise be parsed many times.
func (e *extractor) readBuffered() (again bool, err error) {
	if !e.ended && len(e.pending) <= maxBuffered {
		return false, nil
	}
	e.buffering = false
	var segments []segment // nil if the text exceeds maxBuffered
	if e.ended {
		segments = parseBuffered(e.pending, e.tools, e.truncated)
	}
	if segments == nil {
		e.noBuffering = true
		return true, nil
	}
	e.pending = ""
	for _, s := range segments {
		if s.call != nil {
			err = e.addCall(*s.call)
		} else {
			e.pending = s.text
			err = e.emitText(len(s.text))
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// nextCandidate returns the first offset in pending, starting at i, where a call or an invented result may begin. It
// returns len(e.pending) if no such offset exists.
func (e *extractor) nextCandidate(i int) int {
	for i < len(e.pending) && !e.isCandidate(i) {
		i++
	}
	return i
}

// isCandidate reports whether a call or an invented result may begin at offset i in pending, judging by the first
// bytes.
func (e *extractor) isCandidate(i int) bool {
	switch e.pending[i] {
	case '*', '`', '<', '[':
		return true
	case '{', 'A':
		if at := e.positionOf(i); at.answerStart || at.lineStart {
			return true
		}
	case 't', 'T': // may begin TOOL in any case, at the start of a word
		mayBeTool := i+1 == len(e.pending) || e.pending[i+1] == 'o' || e.pending[i+1] == 'O'
		if mayBeTool && !isWordByte(e.byteBefore(i)) {
			return true
		}
	}
	// An answer may begin with the name of a tool (matchWholeAnswer).
	return !e.started && e.tools.hasPrefix(e.pending[i:i+1]) && e.positionOf(i).answerStart
}

// byteBefore returns the byte of the answer before offset i in pending, or 0 at the start of the answer.
func (e *extractor) byteBefore(i int) byte {
	if i > 0 {
		return e.pending[i-1]
	}
	return e.previous
}

// dropAfterCall drops the first bytes of pending if they belong to the previous call: marks that close its bold or
// code, white space, and the end of its code fence.
func (e *extractor) dropAfterCall() {
	for e.afterCall && e.pending != "" {
		c := e.pending[0]
		isFence := strings.HasPrefix(e.pending, "```")
		mayBecomeFence := !e.ended && strings.HasPrefix("```", e.pending) // its first bytes have arrived
		switch {
		case isFence && e.openFences > 0:
			e.openFences--
			e.closingMarks = 0
			e.pending = e.pending[len("```"):]
		case isFence || mayBecomeFence:
			return
		case strings.IndexByte(marks, c) >= 0 && e.closingMarks > 0:
			e.closingMarks--
			e.pending = e.pending[1:]
		case strings.IndexByte(whiteSpace, c) >= 0:
			e.closingMarks = 0
			e.pending = e.pending[1:]
		default:
			return
		}
	}
}

// emitText removes the first n bytes from pending and emits them as text. It keeps white space at the start of the
// answer in leadingSpace until other text follows, so that an answer with only calls has no text.
func (e *extractor) emitText(n int) error {
	if n == 0 {
		return nil
	}
	text := e.pending[:n]
	e.pending = e.pending[n:]
	e.previous = text[n-1]
	e.afterCall = false
	e.openFences = 0
	if !e.started {
		text = e.leadingSpace + text
		if strings.Trim(text, whiteSpace) == "" {
			e.leadingSpace = text
			return nil
		}
		e.leadingSpace = ""
		e.started = true
	}
	if !e.auto && len(e.calls) == 0 && e.answerText.Len() <= maxMentionText {
		e.answerText.WriteString(text)
	}
	return e.sendText(text)
}

// beginCall removes the header from the beginning of pending and starts the header's call. If the header has raw
// arguments, the call is complete. Otherwise the arguments follow in pending.
func (e *extractor) beginCall(header toolHeader) error {
	e.pending = e.pending[header.size:]
	e.openFences += header.fences
	if err := e.startCall(header.name); err != nil {
		return err
	}
	if header.raw == "" {
		return nil
	}
	// If the answer was cut off here, arguments may be missing. Leave raw as it is then, so that the call fails.
	isCutOff := e.truncated && e.pending == ""
	if !isCutOff && saysNoArguments(header.raw) && !e.toolNeedsArguments(header.name) {
		header.raw = "{}"
	}
	if err := e.emitArguments(header.raw); err != nil {
		return err
	}
	e.finishCall()
	return nil
}

// saysNoArguments reports whether raw, the raw arguments of a header, means that the call has no arguments.
// "parameters:" stands for an empty line (matchRawArguments).
func saysNoArguments(raw string) bool {
	switch strings.ToLower(strings.Trim(raw, whiteSpace+marks+"().")) {
	case "parameters:", "", "none", "null", "nothing", "n/a", "no parameters", "empty":
		return true
	}
	return false
}

// toolNeedsArguments reports whether the named tool requires arguments, or was not offered.
func (e *extractor) toolNeedsArguments(name string) bool {
	t, found := e.tools.find(name)
	return !found || needsArguments(t.Schema)
}

// startCall begins a call: it sets e.call and emits an llm.ToolCallStart. If no text was emitted yet, it drops the
// white space kept in leadingSpace. It returns errStopped, or an *llm.Error if the answer has too many calls.
func (e *extractor) startCall(name string) error {
	if len(e.calls) == llm.MaxCalls {
		return &llm.Error{Kind: llm.ModelError, Public: publicTooManyCalls, Err: errors.New("more than 128 tool calls in one answer")}
	}
	e.started = true
	e.leadingSpace = ""
	e.call = &llm.ToolCall{Index: len(e.calls), ID: "call_" + rand.Text(), Name: name}
	return e.sendPart(llm.ToolCallStart{Index: e.call.Index, ID: e.call.ID, Name: name})
}

// emitArguments adds a piece to the arguments of e.call and emits the piece as llm.ToolCallArgs. It returns errStopped,
// or an *llm.Error if the arguments are too large.
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

// finishCall moves e.call, whose arguments are complete, to e.calls. It emits nothing, because finishAnswer emits the
// calls.
func (e *extractor) finishCall() {
	e.call.Arguments = e.arguments.String()
	e.calls = append(e.calls, *e.call)
	e.call = nil
	e.scan = llm.ArgumentScanner{}
	e.arguments.Reset()
	e.afterCall = true
	e.closingMarks = maxMarks // as many marks may close a call as can open it (matchHeader)
	e.previous = '}'          // the actual last byte may belong to a word, and another call could not begin after it
}

// readArguments emits the pending arguments of e.call, up to their end or up to where a decision needs more text. At
// their end, it finishes the call. again is true if the call is finished and more of the pending text can be decided.
func (e *extractor) readArguments() (again bool, err error) {
	for i := 0; i < len(e.pending); i++ {
		// Only a new line can end arguments that were never closed, because JSON contains no bare words, and its
		// strings contain no line breaks.
		next := noMatch
		if e.pending[i] == '\n' {
			next = matchNextCall(e.pending[i+1:], e.ended)
		}
		switch {
		case next == matched:
			return true, e.finishArguments(i)
		case next == needMore:
			return false, e.takeArguments(i)
		case e.scan.Next(e.pending[i]):
			return true, e.finishArguments(i + 1)
		}
	}
	if e.ended {
		return false, e.finishArguments(len(e.pending))
	}
	return false, e.takeArguments(len(e.pending))
}

// finishArguments emits the first n bytes of pending as the last arguments of e.call, and finishes the call.
func (e *extractor) finishArguments(n int) error {
	if err := e.takeArguments(n); err != nil {
		return err
	}
	e.finishCall()
	return nil
}

// takeArguments removes the first n bytes from pending and emits them as arguments.
func (e *extractor) takeArguments(n int) error {
	piece := e.pending[:n]
	e.pending = e.pending[n:]
	return e.emitArguments(piece)
}
