package eval

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"answerd/internal/client"
	"answerd/internal/event"
)

const (
	maxInterrupts = 100                    // of one run
	maxRun        = 10 * time.Minute       // of a run without max_seconds
	maxRetries    = 5                      // of a question that is refused because the service is busy
	inputWait     = 100 * time.Millisecond // until a suspended run that has its answers is looked at again
)

// question is the body of POST /answer.
type question struct {
	Question     string            `json:"question"`
	Agent        string            `json:"agent,omitempty"`
	Model        string            `json:"model,omitempty"`
	ToolChoice   string            `json:"tool_choice,omitempty"`
	Instructions string            `json:"instructions,omitempty"`
	OutputSchema json.RawMessage   `json:"output_schema,omitempty"`
	Metadata     map[string]string `json:"metadata,omitempty"`
}

// outcome is how a run ended.
type outcome struct {
	runID    string
	answer   string
	output   json.RawMessage
	calls    []string      // the names of the tools, in the order of the calls
	cost     *float64      // nil if the model has no price
	elapsed  time.Duration // of the last try, without the waits for a busy service
	declined []string      // what the run asked a person for and did not get
	failure  error         // why the run has no answer; nil if it has one
	tooLong  bool          // failure is that the run was cancelled at its limit
}

// reply is the answer of POST /answer: of 200 the first part, of 202 the second.
type reply struct {
	RunID    string          `json:"run_id"`
	Answer   string          `json:"answer"`
	Output   json.RawMessage `json:"output"`
	Metadata struct {
		ToolNames []string `json:"tool_names"`
		Cost      *float64 `json:"cost"`
	} `json:"metadata"`

	Interrupts []event.Interrupt `json:"interrupts"`
}

// ask asks a question and waits for the end of the run, for at most limit. The time during which the service is too
// busy to begin the run does not count. If the limit is reached or ctx ends, ask closes the connection of POST /answer,
// and answerd then cancels the run. In the second case ask returns the error of ctx. All other failures are part of the
// outcome.
func (e *evaluator) ask(ctx context.Context, q question, approve bool, limit time.Duration) (*outcome, error) {
	r := &outcome{}
	began := time.Now()
	asking, cancel := context.WithCancel(ctx) // not WithTimeout, because the time can be stopped
	defer cancel()
	timer := time.AfterFunc(limit, cancel)
	defer timer.Stop()
	reply, err := e.awaitAnswer(asking, q, approve, r, func(delay time.Duration) error {
		if r.runID != "" { // the run has begun, so its time must not stop
			return wait(asking, delay)
		}
		timer.Stop()
		err := wait(asking, delay)
		timer.Reset(limit)
		began = time.Now()
		return err
	})
	r.elapsed = time.Since(began)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case asking.Err() != nil:
		r.tooLong = true
		r.failure = fmt.Errorf("the run took more than %g s and was cancelled", limit.Seconds())
	case err != nil:
		r.failure = err
	default:
		r.answer, r.output = reply.Answer, reply.Output
		r.calls, r.cost = reply.Metadata.ToolNames, reply.Metadata.Cost
	}
	return r, nil
}

// awaitAnswer sends the question until the run has an answer, and returns that answer. Each time that the run is
// suspended, it answers the new interrupts and sends the question again. Because of its idempotency key, the repeated
// question attaches to the same run. If the service is too busy, awaitAnswer calls pause with the time to wait and tries
// again, maxRetries times in all. It sets r.runID and r.declined.
func (e *evaluator) awaitAnswer(ctx context.Context, q question, approve bool, r *outcome, pause func(time.Duration) error) (*reply, error) {
	header := http.Header{"Idempotency-Key": {rand.Text()}}
	answered := make(map[string]bool) // by the id of the interrupt
	for retries := 0; ; {
		var got reply
		status, err := e.client.Send(ctx, http.MethodPost, "/answer", q, header, &got)
		if p, ok := errors.AsType[*client.Problem](err); ok && p.IsBusy() && p.RetryAfter > 0 && retries < maxRetries {
			retries++
			if err := pause(p.RetryAfter); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		r.runID = got.RunID
		if status != http.StatusAccepted {
			return &got, nil
		}
		answeredBefore := len(answered)
		if err := e.decideNew(ctx, r, got.Interrupts, approve, answered); err != nil {
			return nil, err
		}
		if len(answered) == answeredBefore { // The run is still suspended, since it has not processed the answers yet.
			if err := wait(ctx, inputWait); err != nil {
				return nil, err
			}
		}
	}
}

// decideNew decides about the interrupts whose ids are not in answered, and adds their ids. If a run has more than
// maxInterrupts in all, decideNew returns an error.
func (e *evaluator) decideNew(ctx context.Context, r *outcome, all []event.Interrupt, approve bool, answered map[string]bool) error {
	for _, interrupt := range all {
		if answered[interrupt.ID] {
			continue
		}
		if len(answered) >= maxInterrupts {
			return fmt.Errorf("the run asked a person more than %d times", maxInterrupts)
		}
		answered[interrupt.ID] = true
		if err := e.decide(ctx, r, interrupt, approve); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for d, or returns the error of ctx.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// decide answers an interrupt of a run. It decides about an approval as the case says, and declines forms and higher
// limits, since no person takes part. What it declined is added to r.declined.
func (e *evaluator) decide(ctx context.Context, r *outcome, interrupt event.Interrupt, approve bool) error {
	input := map[string]any{"id": interrupt.ID}
	switch {
	case interrupt.Kind == event.KindElicitation:
		input["action"] = "decline"
		r.declined = append(r.declined, "a form of "+interrupt.Server)
	case interrupt.Kind == event.KindApproval && approve:
		input["approved"] = true
	default:
		input["approved"], input["reason"] = false, "nobody approves calls in this evaluation"
		if interrupt.Kind == event.KindApproval {
			r.declined = append(r.declined, "the call of "+interrupt.Tool)
		} else {
			r.declined = append(r.declined, "more of "+interrupt.Limit)
		}
	}
	err := e.client.SendInput(ctx, r.runID, input)
	if p, ok := errors.AsType[*client.Problem](err); ok && p.IsTooLate() {
		return nil // The interrupt was resolved in another way, which the answer of the run will show.
	}
	return err
}

// checkAgents asks the service for its agents, so that a wrong address, a missing token and an unknown
// agent are reported before a question is asked.
func (e *evaluator) checkAgents(ctx context.Context, suite Suite) error {
	var got struct {
		Agents []struct {
			ID string `json:"id"`
		} `json:"agents"`
	}
	if _, err := e.client.Send(ctx, http.MethodGet, "/agents", nil, nil, &got); err != nil {
		return err
	}
	known := make(map[string]bool)
	for _, a := range got.Agents {
		known[a.ID] = true
	}
	for _, one := range suite.Cases {
		if one.Agent != "" && !known[one.Agent] {
			return &Error{Case: printable(one.Name, 64), Line: one.Line, Detail: fmt.Sprintf("%s has no agent %s", e.client.URL(), one.Agent)}
		}
	}
	if suite.Judge != nil && suite.Judge.Agent != "" && !known[suite.Judge.Agent] {
		return &Error{Detail: fmt.Sprintf("judge.agent: %s has no agent %s", e.client.URL(), suite.Judge.Agent)}
	}
	return nil
}
