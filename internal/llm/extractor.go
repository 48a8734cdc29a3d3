package llm

import (
	"crypto/rand"
	"errors"
	"strings"
)

// extractor reads calls out of a text that arrives in pieces. Text goes on at once but
// for what may turn out to be the beginning of a call, at most maxHeader bytes; the
// pieces make no difference to the outcome.
//
// Arguments go from their opening bracket to the one that closes it. If that never
// comes, they end where the next call or a code fence begins, or with the text. Whether
// they are JSON is not asked here: what the model wrote is the call's arguments, so that
// it can be told what was wrong.
type extractor struct {
	emit  emitter
	tools []Tool
	off   bool // all is text
	told  bool // the model was told before what a call looks like, for want of one

	held     string // not decided yet
	lead     string // white space before anything else was said
	said     strings.Builder
	begun    bool // text or a call was handed out
	previous byte // the last byte before held, 0 at the start

	call    *ToolCall // whose arguments are being read
	args    strings.Builder
	scan    objectScan
	calls   []ToolCall
	after   bool // nothing but white space came since the last call
	closing int  // marks that may still follow a call's closing bracket directly
	fences  int  // code fences opened before a call and not closed behind it
}

// send hands out one part.
func (x *extractor) send(p Part) error {
	if !x.emit(p) {
		return errStopped
	}
	return nil
}

// feed takes the next piece of the text.
func (x *extractor) feed(delta string) error {
	if x.off {
		return x.send(Text{Delta: delta})
	}
	x.held += delta
	return x.run(false)
}

// close takes the end of the text and hands out what closes the answer: complete calls
// and then last.
func (x *extractor) close(last ...Part) error {
	if !x.off {
		if err := x.run(true); err != nil {
			return err
		}
		if err := x.fallback(); err != nil {
			return err
		}
	}
	for _, c := range x.calls {
		if err := x.send(c); err != nil {
			return err
		}
	}
	for _, p := range last {
		if err := x.send(p); err != nil {
			return err
		}
	}
	return nil
}

// run decides over as much of the held text as can be decided.
func (x *extractor) run(final bool) error {
	for {
		var again bool
		var err error
		if x.call == nil {
			again, err = x.prose(final)
		} else {
			again, err = x.arguments(final)
		}
		if err != nil || !again {
			return err
		}
	}
}

// prose takes text up to and including the next header. It reports whether there is
// more to decide.
func (x *extractor) prose(final bool) (bool, error) {
	x.tidy(final)
	for i := 0; ; i++ {
		i = x.candidate(i)
		if i == len(x.held) {
			return false, x.text(i)
		}
		h, v := matchHeader(x.held[i:], final, x.known)
		switch v {
		case no:
			continue
		case more:
			return false, x.text(i)
		}
		if err := x.text(i); err != nil {
			return false, err
		}
		return true, x.begin(h)
	}
}

// candidate returns where, from offset i on, a header may start, else the length of
// the held text.
func (x *extractor) candidate(i int) int {
	for ; i < len(x.held); i++ {
		switch x.held[i] {
		case '*', '`':
			return i
		case 't', 'T':
			before := x.previous
			if i > 0 {
				before = x.held[i-1]
			}
			notTool := i+1 < len(x.held) && x.held[i+1]|0x20 != 'o'
			if !notTool && !wordByte(before) {
				return i
			}
		}
	}
	return i
}

// wordByte reports whether c belongs to a word, so that "multitool:" is none of ours. A
// byte of another script does not: text without spaces may stand right before a call.
func wordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// tidy drops what belongs to the call before: marks that close its bold or code, white
// space, and the fence around it.
func (x *extractor) tidy(final bool) {
	// Each turn drops something or returns. What may be a fence that is not complete
	// waits for the rest of it, since fences and single marks are treated differently.
	for x.after && x.held != "" {
		switch c := x.held[0]; {
		case strings.IndexByte(marks, c) >= 0 && x.closing > 0 && !strings.HasPrefix(x.held, "```"):
			if c == '`' && !final && strings.HasPrefix("```", x.held) {
				return
			}
			x.closing--
			x.held = x.held[1:]
		case strings.IndexByte(whiteSpace, c) >= 0:
			x.closing = 0
			x.held = x.held[1:]
		case strings.HasPrefix(x.held, "```") && x.fences > 0:
			x.fences--
			x.closing = 0
			x.held = x.held[len("```"):]
		default:
			return
		}
	}
}

// text hands out the first n held bytes as text. White space at the very beginning
// waits for something to follow, so that an answer of calls alone has no text.
func (x *extractor) text(n int) error {
	if n == 0 {
		return nil
	}
	t := x.held[:n]
	x.previous, x.held = t[n-1], x.held[n:]
	x.after, x.fences = false, 0
	if !x.begun {
		x.lead += t
		if strings.Trim(t, whiteSpace) == "" {
			return nil
		}
		t, x.lead, x.begun = x.lead, "", true
	}
	if len(x.calls) == 0 && x.said.Len() <= maxSpoken {
		x.said.WriteString(t) // for the fallback
	}
	return x.send(Text{Delta: t})
}

// known reports whether there is a tool of this name. Calls of others are calls, too,
// and for the caller to refuse.
func (x *extractor) known(name string) bool {
	for _, t := range x.tools {
		if t.Name == name {
			return true
		}
	}
	return false
}

// begin starts the call of h, whose header is at the start of the held text.
func (x *extractor) begin(h header) error {
	x.held = x.held[h.size:]
	x.fences += h.fences
	if err := x.start(h.name); err != nil {
		return err
	}
	if h.raw == "" {
		return nil
	}
	if err := x.argument(h.raw); err != nil {
		return err
	}
	x.finish()
	return nil
}

// start announces a call.
func (x *extractor) start(name string) error {
	if len(x.calls) == maxCalls {
		return failed(ModelError, publicTooManyCalls, errors.New("more than 128 tool calls in one answer"))
	}
	x.begun, x.lead = true, ""
	x.call = &ToolCall{Index: len(x.calls), ID: "call_" + rand.Text(), Name: name}
	return x.send(ToolCallStart{Index: x.call.Index, ID: x.call.ID, Name: name})
}

// argument hands out a piece of the arguments.
func (x *extractor) argument(piece string) error {
	if piece == "" {
		return nil
	}
	if x.args.Len()+len(piece) > maxArguments {
		return failed(ModelError, publicTooLarge, errors.New("the arguments of a call exceed 1 MiB"))
	}
	x.args.WriteString(piece)
	return x.send(ToolCallArgs{Index: x.call.Index, Delta: piece})
}

// finish completes the call under way.
func (x *extractor) finish() {
	x.call.Arguments = x.args.String()
	x.calls = append(x.calls, *x.call)
	x.call, x.scan = nil, objectScan{}
	x.args.Reset()
	x.after, x.closing, x.previous = true, 6, '}'
}

// arguments takes text up to the end of the arguments. It reports whether there is
// more to decide.
func (x *extractor) arguments(final bool) (bool, error) {
	for i := 0; i < len(x.held); i++ {
		c := x.held[i]
		// Only at a new line can arguments that were never closed be told from those that
		// go on: JSON has no bare words, and no line endings within strings.
		if c == '\n' {
			switch matchNextCall(x.held[i+1:], final) {
			case yes:
				return true, x.cut(i)
			case more:
				return false, x.take(i)
			}
		}
		if x.scan.next(c) {
			if err := x.take(i + 1); err != nil {
				return false, err
			}
			x.finish()
			return true, nil
		}
	}
	if err := x.take(len(x.held)); err != nil || !final {
		return false, err
	}
	x.finish()
	return false, nil
}

// cut ends arguments that were never closed before the held byte i.
func (x *extractor) cut(i int) error {
	if err := x.take(i); err != nil {
		return err
	}
	x.finish()
	return nil
}

// take hands out the first n held bytes as arguments.
func (x *extractor) take(n int) error {
	piece := x.held[:n]
	x.held = x.held[n:]
	return x.argument(piece)
}
