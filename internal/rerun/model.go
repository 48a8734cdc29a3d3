package rerun

import (
	"cmp"
	"context"
	"iter"
	"time"

	"answerd/internal/event"
	"answerd/internal/llm"
)

// modelFunc is a llm.Model.
type modelFunc func(ctx context.Context, r llm.Request) iter.Seq2[llm.Part, error]

// Stream implements llm.Model.
func (f modelFunc) Stream(ctx context.Context, r llm.Request) iter.Seq2[llm.Part, error] {
	return f(ctx, r)
}

// askAs returns a model that asks m under the name id, whatever model a request names.
func askAs(id string, m llm.Model) llm.Model {
	return modelFunc(func(ctx context.Context, r llm.Request) iter.Seq2[llm.Part, error] {
		r.Model, r.Preferred = id, ""
		return m.Stream(ctx, r)
	})
}

// recordedAnswer gives the next recorded answer of the run that ctx belongs to. It does not compare the request:
// what the model was asked follows from the events before. Each part waits until the new run has the event of the time
// limit, if the recorded part came after that event. A conversation that the endpoint refused is refused once more, so
// that the new run shortens it too. Further answers than the recorded ones are an error.
func (s *session) recordedAnswer(ctx context.Context, _ llm.Request) iter.Seq2[llm.Part, error] {
	return func(yield func(llm.Part, error) bool) {
		state := s.runOf(ctx)
		if state == nil {
			yield(nil, &llm.Error{Kind: "internal", Public: "A request of no run was recorded."})
			return
		}
		number, refused := state.nextTurn()
		if refused {
			yield(nil, &llm.Error{Kind: llm.TooLarge, Public: "The conversation is too long.", Err: errRecorded})
			return
		}
		var answer turn // empty if the recorded run ended before this answer: see endUnfinished
		if number < len(state.rec.turns) {
			answer = *state.rec.turns[number]
		} else if _, answered := state.rec.terminalEvent().(event.FinalAnswer); answered || len(state.rec.events) == 0 {
			yield(nil, &llm.Error{Kind: "model_error", Public: "The recording has no further answer of the model."})
			return
		}
		for _, p := range answer.parts {
			state.await(ctx, p.limitSeen)
			if ctx.Err() != nil {
				break
			}
			if !yield(p.Part, nil) {
				return
			}
		}
		state.await(ctx, answer.limitSeen)
		switch {
		case ctx.Err() != nil:
			yield(nil, context.Cause(ctx))
		case answer.end != nil:
			state.endTurn(answer, yield)
		default:
			state.endUnfinished(ctx, number, yield)
		}
	}
}

// nextTurn returns the number of the turn that the model is asked for, from 0, and counts it. refused is true, once,
// if the endpoint refused the conversation of that turn; then the turn is not counted.
func (r *runState) nextTurn() (n int, refused bool) {
	r.session.mu.Lock()
	defer r.session.mu.Unlock()
	n = r.turn
	refused = n < len(r.rec.turns) && r.rec.turns[n].refused && r.refused != n+1
	if refused {
		r.refused = n + 1
	} else {
		r.turn++
	}
	return n, refused
}

// endUnfinished ends an answer that did not end in the recording, in turn n: it fails as the recorded one did, or
// lasts until the run is cancelled or taken over.
func (r *runState) endUnfinished(ctx context.Context, n int, yield func(llm.Part, error) bool) {
	end, failed := r.rec.terminalEvent().(event.RunError)
	switch {
	case failed && end.Code == toolAborted:
		yield(llm.Finish{Reason: "stop"}, nil) // a hook ended the run with the answer
	case failed && n >= len(r.rec.turns)-1 && !endsByItself(end):
		yield(nil, &llm.Error{
			Kind: llm.Kind(end.Code), Public: end.Message, Retryable: end.Retryable, RetryAfter: time.Duration(end.RetryAfter) * time.Second,
			UnknownModel: end.Reason == event.ModelNotFound, Err: errRecorded,
		})
	default:
		<-ctx.Done()
		yield(nil, context.Cause(ctx))
	}
}

// endTurn gives the end of an answer.
func (r *runState) endTurn(t turn, yield func(llm.Part, error) bool) {
	if u := t.end.Usage; u != nil && !yield(llm.Usage{Input: u.InputTokens, Output: u.OutputTokens, Total: u.TotalTokens}, nil) {
		return
	}
	upstream := ""
	if end, ok := r.rec.terminalEvent().(event.FinalAnswer); ok {
		upstream = end.Metadata.UpstreamModel
	}
	yield(llm.Finish{Reason: cmp.Or(t.end.FinishReason, "stop"), Model: upstream}, nil)
}

// endsByItself reports whether a run failed for a reason that is not the model's: its time was used up, or
// its process ended.
func endsByItself(b event.RunError) bool { return b.Code == "budget_exceeded" || isShutdown(b) }
