package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"unicode/utf8"

	"answerd/internal/event"
)

// Bounds of one turn.
const (
	maxCallsPerTurn = 32
	maxArgs         = 64 << 10 // bytes of one call's arguments
)

type jsonText = json.RawMessage

// call is one tool call of a turn.
type call struct {
	event.Call
	args     jsonText // a JSON object; nil if the model wrote something else
	argsText string   // then this is what it wrote
	bad      string   // and this is what is wrong with it
	client   bool     // the caller executes it
	edited   bool     // args are a person's, not the model's
	found    []string // the names of the tools that it found, if it was a search for some
}

// parse reads the arguments as the model wrote them. They are never guessed: what is
// not a JSON object is kept as text and answered with what is wrong (S1.3).
func (c *call) parse(text string) {
	trimmed := bytes.TrimSpace([]byte(text))
	if len(trimmed) == 0 {
		trimmed = []byte("{}")
	}
	var object map[string]json.RawMessage
	switch err := json.Unmarshal(trimmed, &object); {
	case len(text) > maxArgs:
		c.bad = fmt.Sprintf("they are longer than %d bytes", maxArgs)
		text = text[:maxArgs]
	case !utf8.Valid(trimmed):
		c.bad = "they are not valid UTF-8"
	case err != nil:
		c.bad = "they are not a JSON object: " + err.Error()
	case object == nil:
		c.bad = "they are not a JSON object but null"
	default:
		c.args = trimmed
		return
	}
	c.argsText = text
}

// written is the arguments as the model wrote them, for the conversation.
func (c *call) written() string {
	if c.args != nil {
		return string(c.args)
	}
	return c.argsText
}

// params is the arguments in the metadata, where every element is an object.
func (c *call) params() jsonText {
	if c.args != nil {
		return c.args
	}
	quoted, _ := json.Marshal(map[string]string{"args_text": c.argsText})
	return quoted
}

// note tells the model that what was called is not what it wrote.
func (c *call) note() string {
	if !c.edited {
		return ""
	}
	return "[A person changed the arguments of this call to " + string(c.args) + "]\n"
}

// callAll runs the calls of a turn at the same time. Every call gets its ending
// and its event, whatever happens to the others; the error is one that ends the run.
// When a hook ends it, or the time for tools is over, the calls under way are given up.
func (l *loop) callAll(ctx context.Context, calls []*call, last bool) ([]ending, error) {
	endings := make([]ending, len(calls))
	errs := make([]error, len(calls))
	turn, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(l.run.clock.tools, func() { end(errToolTime) })()
	l.run.waits.begin(turn, l.recallCalls(ctx, calls, endings))
	var wg sync.WaitGroup
	for i, c := range calls {
		if endings[i].ended() {
			continue
		}
		refusal := ""
		switch {
		case last:
			refusal = "No tool can be called any more in this run."
		case i >= maxCallsPerTurn:
			refusal = fmt.Sprintf("Only %d calls can be made in one turn.", maxCallsPerTurn)
		}
		wg.Go(func() {
			defer recovered(&errs[i])
			defer func() { errs[i] = errors.Join(errs[i], l.run.waits.end(c.CallID)) }()
			defer l.budget.passCall(i)
			endings[i], errs[i] = l.callOne(turn, c, i, refusal)
			if abort, ok := errors.AsType[*abortError](errs[i]); ok {
				end(abort)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return endings, err
	}
	return endings, errors.Join(errs...)
}

// callOne takes one call to its tool_result or tool_error. place is where it stands in
// its turn.
func (l *loop) callOne(ctx context.Context, c *call, place int, refusal string) (ending, error) {
	tool, known := l.tools[c.Tool]
	in := invocation{
		call: c, tool: tool, known: known, refusal: refusal, context: l.run.req.Context, runID: l.run.ID, caller: l.run.caller,
		said: &sayings{run: l.run, call: c.Call}, loop: l, place: place, past: l.past.known(c.CallID),
	}
	if l.search != nil && c.Tool == l.search.tool.Name {
		in.tool, in.known, in.own = l.search.tool, true, l.search.search
	}
	end, err := l.agent.perform(ctx, in)
	if err == nil {
		err = l.withdraw(ctx, in.past)
	}
	if err != nil {
		return ending{}, err
	}
	// Whatever became of the turn: what was opened is closed.
	if ctx := context.WithoutCancel(ctx); end.failed != nil {
		err = l.run.out.Append(ctx, *end.failed)
	} else {
		err = l.run.out.Append(ctx, *end.worked)
	}
	if err == nil && end.abort != nil {
		err = end.abort
	}
	return end, err
}
