package agent

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"answerd/internal/agent/recorded"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/mcp"
)

// Input holds a person's answer to an interrupt. The answer to an approval or a budget question sets Approved, and the
// answer to an elicitation sets Action. The log stores it in JSON, without the id.
type Input struct {
	ID string `json:"-"` // of the interrupt

	Approved *bool  `json:"approved,omitempty"`
	Reason   string `json:"reason,omitempty"` // for the model; usually explains a refusal
	// Args is a JSON object. In the answer to an approval it replaces the call's arguments; nil keeps them. In the
	// answer to a budget question it is {"max": N}.
	Args jsonText `json:"args,omitempty"`

	Action string `json:"action,omitempty"` // accept, decline or cancel
	// Content is a JSON object with the values of an accepted form; nil otherwise.
	Content jsonText `json:"content,omitempty"`
}

// Reasons why an answer is refused.
var (
	ErrUnknownInterrupt = errors.New("the run has no open interrupt with that id")
	ErrAnswered         = errors.New("the interrupt has been answered already")
	ErrExpired          = errors.New("the interrupt has expired")
)

// interrupt holds a question that a run has for its owner. The question's event determines which answers are valid, so
// that any process can check them.
type interrupt struct {
	event.Interrupt         // must not change after the question was asked
	isAsked         bool    // the log has the question
	operatorLimit   float64 // the highest limit that an answer may set, for a budget question; 0 means any
	notifying       bool    // the interrupt hook has not replied yet; protected by suspension.mu once the question is asked

	answer chan resolution // gets at most one answer; capacity 1, so that deliverInput does not block
}

// newInterrupt returns question as an interrupt that is not asked yet.
func newInterrupt(question event.Interrupt) *interrupt {
	return &interrupt{Interrupt: question, answer: make(chan resolution, 1)}
}

// timeLeft returns how long the question can still be answered. now must be the log's time. The result is negative if
// the question has expired.
func (i *interrupt) timeLeft(now time.Time) time.Duration {
	return time.UnixMilli(i.ExpiresAt).Sub(now)
}

// resolution says how a question ended: with an answer, or without one for a reason.
type resolution struct {
	Input
	by         auth.Identity // the person who answered
	unanswered error         // why the question was not answered; nil if it was
}

// Reasons why a question was not answered, in addition to ErrExpired.
var (
	errNobodyToAsk = errors.New("no person can be asked")
	errWithdrawn   = errors.New(recorded.Withdrawn)
	errTooManyOpen = errors.New("too many questions are open")
)

// resolvedEvent returns the event that records res as the question's resolution.
func (i *interrupt) resolvedEvent(res resolution) event.Body {
	reason := res.Reason
	if res.unanswered != nil {
		reason = res.unanswered.Error()
	}
	switch i.Kind {
	case event.KindApproval:
		return event.ApprovalResolved{Call: i.Call, InterruptID: i.ID, Approved: res.isApproved(), Reason: reason, By: res.by.Subject}
	case event.KindBudget:
		return event.BudgetResolved{
			InterruptID: i.ID,
			Limit:       i.Limit,
			Approved:    res.isApproved(),
			Max:         res.raisedLimit(i.Max, i.operatorLimit),
			Reason:      reason,
			By:          res.by.Subject,
		}
	}
	return event.ElicitationResolved{Call: i.Call, InterruptID: i.ID, Action: res.elicitationAction()}
}

// isApproved reports whether a person approved. A question that expired or was withdrawn counts as refused.
func (res resolution) isApproved() bool {
	return res.unanswered == nil && res.Approved != nil && *res.Approved
}

// elicitationAction returns the action to send to the server: what the person chose, decline if no person can be asked,
// or cancel if the question was not answered for another reason.
func (res resolution) elicitationAction() string {
	switch {
	case res.unanswered == nil:
		return res.Action
	case errors.Is(res.unanswered, errNobodyToAsk):
		return mcp.Decline
	}
	return mcp.Cancel
}

// maxRaised is the highest value for a raised limit: a float64 represents all whole numbers up to it exactly.
const maxRaised = 1 << 53

// raisedLimit returns what the run's limit is after the answer. If a person approved, it is the limit that they
// allowed, but at least limit, and at most operatorLimit unless that is 0. Otherwise it is limit.
func (res resolution) raisedLimit(limit, operatorLimit float64) float64 {
	if !res.isApproved() {
		return limit
	}
	var args struct {
		Max float64 `json:"max"`
	}
	_ = json.Unmarshal(res.Args, &args) // validateBudgetIncrease has checked the arguments
	if operatorLimit > 0 {
		args.Max = min(args.Max, operatorLimit)
	}
	return max(args.Max, limit)
}

// refusalMessage tells the model why its call was not approved.
func (res resolution) refusalMessage() string {
	switch {
	case res.unanswered == nil && res.Reason != "":
		return recorded.RefusedByPerson + " Their reason: " + res.Reason
	case res.unanswered == nil:
		return recorded.RefusedByPerson
	case errors.Is(res.unanswered, ErrExpired):
		return recorded.NotApproved + "nobody gave it in time."
	}
	return recorded.NotApproved + res.unanswered.Error() + "."
}

// denialDecision returns the decision about a call that was not approved, for the audit line. It leaves out the reason
// that the person gave.
func (res resolution) denialDecision() decision {
	if res.unanswered == nil {
		return decision{verdict: denied, by: res.by.Subject, reason: "refused"}
	}
	return decision{verdict: denied, reason: res.unanswered.Error()}
}

// wakeTimeout is how long FinishSignIn and wakeParent wait for the log.
const wakeTimeout = 10 * time.Second

// inboxRetry is how long receiveLoop waits after an error before it asks the log again.
const inboxRetry = time.Second

// storedInput is an Input as the log stores it, in JSON, with the person who gave it.
type storedInput struct {
	Input
	Issuer  string `json:"issuer,omitempty"`
	Subject string `json:"subject,omitempty"`
	Closed  bool   `json:"closed,omitempty"` // the run closed the question without an answer
}

// closedInput is the input that closes a question without an answer. The log accepts one input per interrupt, so it
// refuses any later answer.
var closedInput = []byte(`{"closed":true}`)

// encodeInput returns an answer in the form that the log stores. It contains the person's issuer and subject, but not
// their claims.
func encodeInput(in Input, by auth.Identity) []byte {
	// Without HTML escapes, so that arguments that a person sends back unchanged stay equal to those of the model.
	data, _ := event.MarshalJSON(storedInput{Input: in, Issuer: by.Issuer, Subject: by.Subject}) // its raw JSON was validated
	return data
}

// isTooLate reports whether err means that an input came too late: its question is resolved or its run has ended.
func isTooLate(err error) bool {
	isEnded := errors.Is(err, event.ErrEnded) || errors.Is(err, event.ErrGone) || errors.Is(err, event.ErrNotFound)
	return isEnded || errors.Is(err, event.ErrDuplicateInput)
}

// decodeInput returns the resolution of the interrupt with this id from its stored input. A closed question counts as
// expired, and so does data that cannot be decoded.
func decodeInput(id string, data []byte) resolution {
	var stored storedInput
	if json.Unmarshal(data, &stored) != nil || stored.Closed {
		return resolution{unanswered: ErrExpired}
	}
	stored.ID = id
	return resolution{Input: stored.Input, by: auth.Identity{Issuer: stored.Issuer, Subject: stored.Subject}}
}

// inbox passes a run's inputs to the goroutines of the run that wait for them. Any process may have stored an input. A
// cancellation is also an input; the inbox then cancels the run. The inbox also relinquishes the run once another
// process has taken it over.
type inbox struct {
	run     *run
	stopped chan struct{} // closed when the receiving goroutine has ended

	mu          sync.Mutex            // guards cancel, undelivered and waiting
	cancel      context.CancelFunc    // ends the receiving goroutine; nil before startListening
	undelivered map[string]resolution // inputs, by id, whose interrupt was not passed to expectAnswer yet
	waiting     map[string]*interrupt // interrupts, by id, that were passed to expectAnswer and have no input yet

	pos int64 // the position of the last delivered input; only one goroutine at a time uses it
}

// newInbox returns an inbox that does not listen yet. It starts when the run gets a job, or at the run's first
// question.
func newInbox(r *run) inbox {
	return inbox{run: r, stopped: make(chan struct{}), undelivered: make(map[string]resolution), waiting: make(map[string]*interrupt)}
}

// expectAnswer makes the inbox send the question's answer to question.answer. If the answer has arrived already, it is
// sent at once. Otherwise the inbox starts to listen for it.
func (b *inbox) expectAnswer(question *interrupt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if answer, arrived := b.undelivered[question.ID]; arrived {
		question.answer <- answer
		return
	}
	b.waiting[question.ID] = question
	b.startListeningLocked()
}

// startListening starts the goroutine that receives inputs, unless it has been started before. stopListening ends it.
func (b *inbox) startListening() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.startListeningLocked()
}

// startListeningLocked is startListening for callers that hold b.mu.
func (b *inbox) startListeningLocked() {
	if b.cancel != nil {
		return
	}
	// Receive inputs even after the run's context has ended: the code that then withdraws a question must know whether
	// an answer arrived first.
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.run.ctx))
	b.cancel = cancel
	go func() {
		defer close(b.stopped)
		b.run.runGuarded(func() { b.receiveLoop(ctx) })
	}()
}

// stopListening ends the goroutine that receives inputs, and waits until it has ended. It does nothing if that
// goroutine was never started.
func (b *inbox) stopListening() {
	b.mu.Lock()
	cancel := b.cancel
	b.mu.Unlock()
	if cancel != nil {
		cancel()
		<-b.stopped
	}
}

// receiveLoop delivers inputs as they arrive, until ctx ends. If this process loses the run's job, receiveLoop
// relinquishes the run and returns. A run that appends nothing, because a server or a model is slow, has no other way
// to learn that another process has taken it over.
func (b *inbox) receiveLoop(ctx context.Context) {
	var lost <-chan struct{} // without a job it stays nil, from which a receive blocks
	if b.run.job != nil {
		lost = b.run.job.Lost()
	}
	for {
		_, more, err := b.receiveAvailable(ctx)
		var retry <-chan time.Time // nil unless the log failed
		if err != nil {
			retry = time.After(inboxRetry)
		}
		select {
		case <-more:
		case <-retry:
		case <-lost:
			b.run.relinquish(errTakenOver)
			return
		case <-ctx.Done():
			return
		}
	}
}

// receiveAvailable delivers the inputs that are stored after b.pos, and returns them. more is closed when further
// inputs are stored. After an error, it returns the inputs that it delivered before. Only one goroutine at a time may
// call it.
func (b *inbox) receiveAvailable(ctx context.Context) (received []event.Input, more <-chan struct{}, _ error) {
	for {
		page, err := b.run.agent.Log.Inputs(ctx, b.run.ID, b.pos)
		if err != nil || len(page.Inputs) == 0 {
			return received, page.More, err
		}
		for _, in := range page.Inputs {
			b.deliverInput(in)
		}
		received = append(received, page.Inputs...)
	}
}

// deliverInput sends an input to the interrupt that waits for it, or keeps it until expectAnswer is called for its
// interrupt. A cancellation cancels the run. deliverInput sets b.pos, so only one goroutine at a time may call it. It
// never blocks: the log has at most one input per id, and the channel answer has capacity 1.
func (b *inbox) deliverInput(in event.Input) {
	if in.ID == event.CancelID { // it also ends up in undelivered, which does no harm
		b.run.cancel(errRequested)
	}
	b.pos = in.Pos
	b.mu.Lock()
	defer b.mu.Unlock()
	answer := decodeInput(in.ID, in.Data)
	if question := b.waiting[in.ID]; question != nil {
		question.answer <- answer
		delete(b.waiting, in.ID)
		return
	}
	b.undelivered[in.ID] = answer
}

// wakeParent stores an input in the child's parent, so that a parked parent continues. It does nothing if child is not
// a child run. id is the id of a question that was resolved in the child, and that the parent asks under the same id,
// or at the child's end the child's own id. If the question is still open in the parent, input resolves it there: with
// the answer that the child got, or without one (closedInput). An answer that the parent already has stays. Errors are
// only logged.
func (a *Agent) wakeParent(child *run, id string, input []byte) {
	if child.req.parent.Run == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(child.ctx), wakeTimeout)
	defer cancel()
	if err := a.Log.AddInput(ctx, child.req.parent.Run, id, input); err != nil && !isTooLate(err) {
		a.Logger.WarnContext(ctx, "a run was not informed of its child; it continues when its question expires",
			"run_id", child.req.parent.Run, "child_run_id", child.ID, "error", err)
	}
}
