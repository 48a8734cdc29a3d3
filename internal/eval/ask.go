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
	maxInterrupts = 100                    // for one run
	maxRun        = 10 * time.Minute       // limit of a run without max_seconds
	maxBusy       = 5 * time.Minute        // that one question waits in all while the service is too busy
	inputWait     = 100 * time.Millisecond // pause until a suspended run has processed its answers
	cancelTimeout = 5 * time.Second        // of a request that cancels a run
)

// question is what ask asks. The fields before the blank line are the body of POST /answer.
type question struct {
	Question     string            `json:"question"`
	Agent        string            `json:"agent,omitempty"`
	Model        string            `json:"model,omitempty"`
	ToolChoice   string            `json:"tool_choice,omitempty"`
	Instructions string            `json:"instructions,omitempty"`
	OutputSchema json.RawMessage   `json:"output_schema,omitempty"`
	Metadata     map[string]string `json:"metadata,omitempty"`

	approve bool          // approve calls that need an approval; false declines them
	limit   time.Duration // longest duration of the run
}

// outcome says how a run ended.
type outcome struct {
	runID    string
	answer   string
	output   json.RawMessage
	calls    []string      // tool names, in the order of the calls
	cost     *float64      // nil if the model has no price
	elapsed  time.Duration // duration of the run, without waits for a busy service
	declined []string      // requests to a person that were declined
	failure  error         // why the run has no answer; nil if it has one
	tooLong  bool          // the run failed because it reached its time limit
}

// reply is the body of a response of POST /answer. A response 200 has the members before the blank line, and a response
// 202 has Interrupts.
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

// ask asks q and waits at most q.limit for the end of the run. The time does not count while the service is too busy to
// start the run. If the limit has passed or ctx ends, ask closes the connection of POST /answer, and answerd then
// cancels the run. A run that was suspended outlives that connection, so ask cancels it by a request if there is no
// answer.
//
// ask returns an error only if ctx ends. All other failures, such as a reached limit, are part of the outcome.
func (e *evaluator) ask(ctx context.Context, q question) (*outcome, error) {
	r := &outcome{}
	began := time.Now()
	limitCtx, cancel := context.WithCancel(ctx) // not WithTimeout, because its timer could not be stopped
	defer cancel()
	timer := time.AfterFunc(q.limit, cancel)
	defer timer.Stop()
	pause := func(delay time.Duration) error {
		if r.runID != "" { // the run has begun, so the pause counts
			return wait(limitCtx, delay)
		}
		timer.Stop()
		err := wait(limitCtx, delay)
		timer.Reset(q.limit)
		began = time.Now()
		return err
	}
	reply, err := e.awaitAnswer(limitCtx, q, r, pause)
	r.elapsed = time.Since(began)
	if err != nil && r.runID != "" {
		e.cancelRun(ctx, r.runID)
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case limitCtx.Err() != nil:
		r.tooLong = true
		r.failure = fmt.Errorf("the run took more than %g s and was cancelled", q.limit.Seconds())
	case err != nil:
		r.failure = err
	default:
		r.answer, r.output = reply.Answer, reply.Output
		r.calls, r.cost = reply.Metadata.ToolNames, reply.Metadata.Cost
	}
	return r, nil
}

// cancelRun cancels a run, also if ctx has ended. It ignores errors: the case fails anyway, and the run may have
// ended. A run that waits for a person ends by itself later.
func (e *evaluator) cancelRun(ctx context.Context, runID string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer cancel()
	_, _ = e.client.Send(ctx, http.MethodPost, client.RunPath(runID, "/cancel"), nil, nil, nil)
}

// awaitAnswer sends the question until the run has an answer, and returns the answer. Each time the run is suspended,
// it answers the new interrupts and sends the question again. The idempotency key attaches the repeated question to the
// same run. While the service is too busy for one of these requests, awaitAnswer calls pause with the time to wait and
// sends the question again, until it has waited for maxBusy in all. It sets r.runID and r.declined.
func (e *evaluator) awaitAnswer(ctx context.Context, q question, r *outcome, pause func(time.Duration) error) (*reply, error) {
	header := http.Header{"Idempotency-Key": {rand.Text()}}
	answered := make(map[string]bool) // by interrupt id
	waited := time.Duration(0)
	for {
		var got reply
		status, err := e.client.Send(ctx, http.MethodPost, "/answer", q, header, &got)
		switch {
		case err == nil && status != http.StatusAccepted:
			r.runID = got.RunID
			return &got, nil
		case err == nil:
			r.runID = got.RunID
			err = e.answerNewInterrupts(ctx, r, got.Interrupts, q.approve, answered)
		case r.setFailedRun(err): // the same key would attach to the run
			return nil, err
		}
		p, isProblem := errors.AsType[*client.Problem](err)
		isBusy := isProblem && p.IsBusy() && p.RetryAfter > 0
		if isBusy && waited < maxBusy {
			waited += p.RetryAfter
			err = pause(p.RetryAfter)
		}
		if err != nil {
			return nil, err
		}
	}
}

// setFailedRun sets r.runID if err, of the request with the question, is about a run. It reports whether that run has
// failed: the run of a process that shuts down continues in another one.
func (r *outcome) setFailedRun(err error) (hasFailed bool) {
	p, ok := errors.AsType[*client.Problem](err)
	if !ok || p.FailedRun() == "" {
		return false
	}
	r.runID = p.FailedRun()
	return p.Code != "draining"
}

// answerNewInterrupts answers the interrupts that answered does not have yet, and adds the ids of those that it has
// answered to answered. If there is none, the run has not processed the answers yet, and answerNewInterrupts waits for
// inputWait. It returns an error if a run has more than maxInterrupts.
func (e *evaluator) answerNewInterrupts(ctx context.Context, r *outcome, interrupts []event.Interrupt, approve bool, answered map[string]bool) error {
	answeredBefore := len(answered)
	for _, interrupt := range interrupts {
		if answered[interrupt.ID] {
			continue
		}
		if len(answered) >= maxInterrupts {
			return fmt.Errorf("the run asked a person more than %d times", maxInterrupts)
		}
		if err := e.answerInterrupt(ctx, r, interrupt, approve); err != nil {
			return err
		}
		answered[interrupt.ID] = true
	}
	if len(answered) == answeredBefore {
		return wait(ctx, inputWait)
	}
	return nil
}

// wait waits until d has passed. If ctx ends first, it returns the error of ctx.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answerInterrupt answers an interrupt. It approves calls if approve is true and declines them otherwise. It declines
// forms and higher limits, because an evaluation has no user who could answer. It adds what it has declined to
// r.declined.
func (e *evaluator) answerInterrupt(ctx context.Context, r *outcome, interrupt event.Interrupt, approve bool) error {
	input := map[string]any{"id": interrupt.ID}
	declined := ""
	switch {
	case interrupt.Kind == event.KindElicitation:
		input["action"] = "decline"
		declined = "a form of " + interrupt.Server
	case interrupt.Kind == event.KindApproval && approve:
		input["approved"] = true
	default:
		input["approved"], input["reason"] = false, "nobody approves calls in this evaluation"
		declined = "more of " + interrupt.Limit
		if interrupt.Kind == event.KindApproval {
			declined = "the call of " + interrupt.Tool
		}
	}
	err := e.client.SendInput(ctx, r.runID, input)
	if p, ok := errors.AsType[*client.Problem](err); ok && p.IsTooLate() {
		err = nil // it expired or was answered elsewhere, and the run continues without this answer
	}
	if err == nil && declined != "" {
		r.declined = append(r.declined, declined)
	}
	return err
}

// checkAgents asks the service for its agents. So a wrong address, a missing token or an unknown agent is reported
// before the first question. An agent that the service does not have is an *Error.
func (e *evaluator) checkAgents(ctx context.Context, suite Suite) error {
	var list struct{ Agents []struct{ ID string } }
	if _, err := e.client.Send(ctx, http.MethodGet, "/agents", nil, nil, &list); err != nil {
		return err
	}
	known := make(map[string]bool)
	for _, agent := range list.Agents {
		known[agent.ID] = true
	}
	known[""] = true // the default agent
	for _, testCase := range suite.Cases {
		if !known[testCase.Agent] {
			return &Error{
				Case: printable(testCase.Name, maxCaseName), Line: testCase.Line,
				Detail: fmt.Sprintf("%s has no agent %s", e.client.URL(), testCase.Agent),
			}
		}
	}
	if suite.Judge != nil && !known[suite.Judge.Agent] {
		return &Error{Detail: fmt.Sprintf("judge.agent: %s has no agent %s", e.client.URL(), suite.Judge.Agent)}
	}
	return nil
}
