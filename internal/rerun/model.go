package rerun

import (
	"cmp"
	"context"
	"iter"
	"time"

	"answerd/internal/event"
	"answerd/internal/llm"
)

// modelFunc is a function that implements llm.Model.
type modelFunc func(ctx context.Context, r llm.Request) iter.Seq2[llm.Part, error]

// Stream implements llm.Model.
func (f modelFunc) Stream(ctx context.Context, r llm.Request) iter.Seq2[llm.Part, error] {
	return f(ctx, r)
}

// askAs returns a model that asks m for the model id, regardless of which model a request names.
func askAs(id string, m llm.Model) llm.Model {
	return modelFunc(func(ctx context.Context, r llm.Request) iter.Seq2[llm.Part, error] {
		r.Model, r.Preferred = id, ""
		return m.Stream(ctx, r)
	})
}

// recordedAnswer yields the next recorded answer of the run that ctx belongs to. It does not compare the request with
// the recorded one, because the request follows from the run's earlier events. If a part was recorded after the time
// limit's event, it waits until the new run has that event too. It yields an error if ctx belongs to no run, if
// takeTurn returns one, or if ctx ends. The last error is ctx's cause.
func (s *session) recordedAnswer(ctx context.Context, _ llm.Request) iter.Seq2[llm.Part, error] {
	return func(yield func(llm.Part, error) bool) {
		state := s.runOf(ctx)
		if state == nil {
			yield(nil, &llm.Error{Kind: "internal", Public: "A request of no run was recorded."})
			return
		}
		answer, number, err := state.takeTurn()
		if err != nil {
			yield(nil, err)
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

// takeTurn returns the recorded turn for the run's next request to the model, with its number from 0, and advances to
// the following turn. The turn is empty if the recorded run ended before it (see endUnfinished). If the endpoint
// refused the conversation as too long in this turn, takeTurn first returns that error and does not advance, so that
// the new run shortens the conversation too. It also returns an error if the recorded run needed no further turn.
func (r *runState) takeTurn() (next turn, number int, _ error) {
	r.session.mu.Lock()
	defer r.session.mu.Unlock()
	number = r.turnsTaken
	isRecorded := number < len(r.rec.turns)
	if isRecorded {
		next = *r.rec.turns[number]
	}
	if next.refused && !r.refused {
		r.refused = true
		return turn{}, number, &llm.Error{Kind: llm.TooLarge, Public: "The conversation is too long.", Err: errRecorded}
	}
	r.refused = false
	r.turnsTaken++
	_, hasAnswer := r.rec.terminalEvent().(event.FinalAnswer)
	if !isRecorded && (hasAnswer || len(r.rec.events) == 0) {
		return turn{}, number, &llm.Error{Kind: "model_error", Public: "The recording has no further answer of the model."}
	}
	return next, number, nil
}

// endUnfinished ends the answer of a turn that has no end in the recording. number is the turn's, from 0. The answer
// fails as the recorded one did, or lasts until the run is cancelled or taken over.
func (r *runState) endUnfinished(ctx context.Context, number int, yield func(llm.Part, error) bool) {
	end, failed := r.rec.terminalEvent().(event.RunError)
	isLastTurn := number >= len(r.rec.turns)-1
	switch {
	case failed && end.Code == toolAborted:
		yield(llm.Finish{Reason: "stop"}, nil) // a hook ended the run with the answer
	case failed && isLastTurn && !endsByItself(end):
		yield(nil, &llm.Error{
			Kind:         llm.Kind(end.Code),
			Public:       end.Message,
			Retryable:    end.Retryable,
			RetryAfter:   time.Duration(end.RetryAfter) * time.Second,
			UnknownModel: end.Reason == event.ModelNotFound,
			Err:          errRecorded,
		})
	default:
		<-ctx.Done()
		yield(nil, context.Cause(ctx))
	}
}

// endTurn yields the last parts of the recorded answer t: its usage, if that was recorded, and its finish. The finish
// has the model that the run's final_answer names, or "" if the run has no final_answer.
func (r *runState) endTurn(t turn, yield func(llm.Part, error) bool) {
	if u := t.end.Usage; u != nil {
		usage := llm.Usage{Input: u.InputTokens, Output: u.OutputTokens, Total: u.TotalTokens}
		if !yield(usage, nil) {
			return
		}
	}
	end, _ := r.rec.terminalEvent().(event.FinalAnswer)
	yield(llm.Finish{Reason: cmp.Or(t.end.FinishReason, "stop"), Model: end.Metadata.UpstreamModel}, nil)
}

// endsByItself reports whether a run did not fail because of the model: its time was used up, or its process ended.
func endsByItself(b event.RunError) bool { return b.Code == "budget_exceeded" || isShutdown(b) }
