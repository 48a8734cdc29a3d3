package agent

import (
	"context"
	"strings"
	"time"

	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp"
)

// summingUp asks for the last turn of a run that was cut off (S1.8).
const summingUp = "You have reached the limit of this run and cannot call any more tools. " +
	"Answer the question now with what you have, and say what is missing."

// loop is one run on its way through its turns. Only the run's goroutine uses it;
// the calls of a turn work on elements of their own.
type loop struct {
	agent   *Agent
	run     *run
	started time.Time

	catalogue *catalogue
	tools     map[string]mcp.Tool // that the run may call, by the name that the model knows
	offered   []llm.Tool          // that the model is shown
	search    *toolSearch         // by which it finds others; nil where it is shown all
	client    []llm.Tool          // that the caller executes; shown to the model, too
	messages  []llm.Message
	history   int             // of these, how many behind the first are from before the question
	given     map[string]bool // ids of the calls that came with the request
	window    window          // what the model can take of them
	step      int             // the current or last step, from 1
	said      strings.Builder // the text of the current step
	parts     int             // text and reasoning parts so far
	callIDs   map[string]bool
	budget    *budget
	shown     gallery
	meta      event.Metadata
	metaSize  int    // bytes of the calls in meta
	cutOff    string // why the summing-up turn came, as finish_reason; "" if it did not
	spent     bool   // a limit is used up, and nobody raises it
	past      *past  // what the run did before it came here; nil if it began here
}

// answer takes the run to its final answer, turn by turn. Each turn is one model
// call and the tool calls that it asks for.
func (l *loop) answer(ctx context.Context) (end event.Body, err error) {
	defer recovered(&err)
	if err := l.prepare(ctx); err != nil {
		return nil, err
	}
	for turn := 1; ; turn++ {
		last := l.cutOff != ""
		if last {
			l.messages = append(l.messages, llm.Message{Role: llm.User, Text: summingUp})
		}
		said, err := l.think(ctx, turn, last)
		if err != nil {
			return nil, err
		}
		l.window.learn(said.usage)
		if err := l.budget.spendTokens(ctx, l.run.out, said.usage); err != nil {
			return nil, err
		}
		if len(said.calls) == 0 {
			return l.finalAnswer(said), nil
		}
		if err := l.mayCall(ctx, turn, said, last); err != nil {
			return nil, err
		}
		if err := l.act(ctx, said, last); err != nil {
			return nil, err
		}
		if last {
			return l.finalAnswer(said), nil
		}
		if said.asksClient() {
			said.finish = "tool_calls"
			return l.finalAnswer(said), nil
		}
		if err := l.cut(ctx, turn); err != nil {
			return nil, err
		}
	}
}

// cut decides whether the next turn is the last one. Where the log has more of the run,
// that was decided before, perhaps by time that is over only now.
func (l *loop) cut(ctx context.Context, turn int) error {
	if s := l.past.step(l.step); s != nil {
		l.budget.raiseAll(s.raised)
		if s.cut != "" || l.step < len(l.past.steps) {
			l.cutOff = s.cut
			return nil
		}
	}
	if !l.spent {
		if err := l.reachesLimit(ctx, turn); err != nil {
			return err
		}
	}
	switch {
	case l.spent:
		l.cutOff = "budget_exceeded"
	case turn == l.run.req.MaxTurns:
		l.cutOff = "max_turns"
	default:
		return nil
	}
	return l.run.note(ctx, noteCut, l.cutOff)
}

// prepare takes the catalogue and the prompt of this run, once: a tool that comes
// or goes meanwhile does not change the conversation.
func (l *loop) prepare(ctx context.Context) (err error) {
	req := l.run.req
	all := l.agent.catalogues.of(l.agent.ToolsFor(ctx, l.run.caller), req)
	l.catalogue, l.tools = all, all.byName
	tools := all.tools
	if l.search = l.agent.ToolSearch.newToolSearch(all, req); l.search != nil {
		tools = []mcp.Tool{l.search.tool}
	}
	l.client = req.clientTools(all, l.search)
	l.offer()
	profile := l.agent.Profiles[req.Model]
	l.callIDs, l.given = make(map[string]bool), make(map[string]bool)
	if err = l.open(tools, profile); err == nil && req.Prompt != nil {
		l.messages, err = l.withPrompt(ctx, l.messages, *req.Prompt)
	}
	l.window = newWindow(profile)
	if req.MaxTokens > 0 {
		l.window.reserve = min(l.window.reserve, req.MaxTokens)
	}
	l.budget = newBudget(req, profile.Price, &l.run.clock, &l.run.waits)
	l.shown = gallery{profile: profile, budget: l.budget}
	l.meta = event.Metadata{ToolNames: []string{}, ToolParams: []jsonText{}, ToolResults: []jsonText{}, Model: req.Model}
	l.remember()
	return err
}

// offers are the tools that the model may call.
func (l *loop) offers(last bool) []llm.Tool {
	if last {
		return nil
	}
	return l.offered
}

func (l *loop) request(turn int, last bool) llm.Request {
	req := &l.run.req
	r := llm.Request{Model: req.Model, Messages: l.messages, ToolChoice: llm.None, MaxTokens: req.MaxTokens, Sampling: req.Sampling}
	if tools := l.offers(last); len(tools) > 0 {
		r.Tools, r.ToolChoice = tools, llm.Auto
		if turn == 1 && req.ToolChoice == ToolRequired {
			// Only the first turn: a model that must always call never answers.
			r.ToolChoice, r.MustCall = llm.Required, req.ForcedTool
		}
	}
	return r
}

func (l *loop) finalAnswer(said reply) event.Body {
	l.meta.Steps = l.step
	l.meta.FinishReason = said.finish
	if l.cutOff != "" {
		l.meta.FinishReason = l.cutOff
	}
	l.meta.Cost = l.budget.costOf(l.meta.Usage)
	return event.FinalAnswer{Answer: said.text, Metadata: l.meta, FinishReason: l.meta.FinishReason}
}

// act runs the calls of a turn and takes their results into the conversation, in
// call order (S0.7).
func (l *loop) act(ctx context.Context, said reply, last bool) error {
	l.messages = append(l.messages, llm.Message{Role: llm.Assistant, Text: said.text, Calls: said.asked()})
	endings, err := l.callAll(ctx, said.served(), last)
	sampled := l.budget.takeSampled()
	l.meta.Usage.InputTokens += sampled.InputTokens
	l.meta.Usage.OutputTokens += sampled.OutputTokens
	l.meta.Usage.TotalTokens += sampled.TotalTokens
	if err != nil {
		return err
	}
	l.shown.nextTurn()
	for _, c := range said.calls {
		if c.client {
			l.recordAsked(c)
			continue
		}
		l.messages = append(l.messages, l.message(c, endings[0]))
		l.record(c, endings[0])
		endings = endings[1:]
	}
	if l.search != nil && l.search.take(said.calls) {
		l.offer()
	}
	if last {
		return nil
	}
	return l.budget.endTurn(ctx, l.run.out)
}
