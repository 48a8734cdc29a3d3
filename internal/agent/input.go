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

// Input holds a person's answer to an interrupt. An approval or a budget increase sets Approved,
// an elicitation sets Action.
type Input struct {
	ID string // of the interrupt

	Approved *bool
	Reason   string // for the model; usually explains a refusal
	// Args, a JSON object, replaces the arguments of an approved call; nil keeps them. For a
	// budget increase it is {"max": N}.
	Args jsonText

	Action string // accept, decline or cancel
	// Content holds the values of an accepted form, a JSON object; nil otherwise.
	Content jsonText
}

// Reasons for which an answer is refused.
var (
	ErrUnknownInterrupt = errors.New("the run has no open interrupt with that id")
	ErrAnswered         = errors.New("the interrupt has been answered already")
	ErrExpired          = errors.New("the interrupt has expired")
)

// interrupt holds a question that a run waits for its owner to answer. Its event determines
// which answers are valid, so any process can check them.
type interrupt struct {
	event.Interrupt         // not changed once the question is asked
	isAsked         bool    // the log has the question
	operatorLimit   float64 // the highest limit that an answer can set, if the question is about a limit; 0 means any
	notifying       bool    // the hook interrupt has not replied yet; suspension.mu protects it once the question is asked

	answer chan resolution // gets at most one answer; capacity 1, so that deliverInput does not block
}

// newInterrupt returns the question rec, which is not marked as asked.
func newInterrupt(rec event.Interrupt) *interrupt {
	return &interrupt{Interrupt: rec, answer: make(chan resolution, 1)}
}

// timeLeft returns how long the question can still be answered; now is the log's time. It is negative if the question
// has expired.
func (i *interrupt) timeLeft(now time.Time) time.Duration {
	return time.UnixMilli(i.ExpiresAt).Sub(now)
}

// resolution holds the outcome of a question: an answer, or the reason why it was not answered.
type resolution struct {
	Input
	by         auth.Identity // the person who answered
	unanswered error         // why the question was not answered; nil if it was
}

// Reasons for which a question was not answered, in addition to ErrExpired.
var (
	errNobodyToAsk = errors.New("no person can be asked")
	errWithdrawn   = errors.New(recorded.Withdrawn)
	errTooManyOpen = errors.New("too many questions are open")
)

// resolvedEvent returns the event that resolves the question with res.
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

// isApproved reports whether a person has approved. An expired or withdrawn question counts as refused.
func (v resolution) isApproved() bool { return v.unanswered == nil && v.Approved != nil && *v.Approved }

// elicitationAction returns the action for the server: the person's, decline if no person can be asked, or cancel if
// the question was not answered for another reason.
func (v resolution) elicitationAction() string {
	switch {
	case v.unanswered == nil:
		return v.Action
	case errors.Is(v.unanswered, errNobodyToAsk):
		return mcp.Decline
	}
	return mcp.Cancel
}

// maxRaised bounds the value of a raised limit. A float64 represents all whole numbers up to it exactly.
const maxRaised = 1 << 53

// raisedLimit returns the run's limit after the answer: the limit that a person allowed, but at most operatorLimit, if
// that is above 0, and at least limit. If they did not approve, it returns limit.
func (v resolution) raisedLimit(limit, operatorLimit float64) float64 {
	if !v.isApproved() {
		return limit
	}
	var args struct {
		Max float64 `json:"max"`
	}
	_ = json.Unmarshal(v.Args, &args) // validateBudgetIncrease has checked the arguments
	if operatorLimit > 0 {
		args.Max = min(args.Max, operatorLimit)
	}
	return max(args.Max, limit)
}

// refusalMessage returns the message for the model about a call that was not approved.
func (v resolution) refusalMessage() string {
	switch {
	case v.unanswered == nil && v.Reason != "":
		return recorded.RefusedByPerson + " Their reason: " + v.Reason
	case v.unanswered == nil:
		return recorded.RefusedByPerson
	case errors.Is(v.unanswered, ErrExpired):
		return recorded.NotApproved + "nobody gave it in time."
	}
	return recorded.NotApproved + v.unanswered.Error() + "."
}

// denialDecision returns the decision of a call that was not approved, for the audit line. It omits the reason that
// the person gave.
func (v resolution) denialDecision() decision {
	if v.unanswered == nil {
		return decision{verdict: denied, by: v.by.Subject, reason: "refused"}
	}
	return decision{verdict: denied, reason: v.unanswered.Error()}
}

// wakeTimeout bounds how long FinishSignIn and wakeParent wait for the log.
const wakeTimeout = 10 * time.Second

// inboxRetry is the pause before receiveLoop asks the log again after an error.
const inboxRetry = time.Second

// storedInput is the JSON form of an Input in the log, with the person who gave it.
type storedInput struct {
	Approved *bool    `json:"approved,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Args     jsonText `json:"args,omitempty"`
	Action   string   `json:"action,omitempty"`
	Content  jsonText `json:"content,omitempty"`
	Issuer   string   `json:"issuer,omitempty"`
	Subject  string   `json:"subject,omitempty"`
	Closed   bool     `json:"closed,omitempty"` // the run itself has closed the question without an answer
}

// closedInput is stored to close a question without an answer. The log accepts one input for each interrupt, so it
// refuses later answers.
var closedInput = []byte(`{"closed":true}`)

// encodeInput returns an answer as the log stores it. It has the issuer and subject of the person, not their claims.
func encodeInput(in Input, by auth.Identity) []byte {
	data, _ := json.Marshal(storedInput{ // the raw JSON in it was validated, so it always marshals
		Approved: in.Approved, Reason: in.Reason, Args: in.Args, Action: in.Action, Content: in.Content, Issuer: by.Issuer, Subject: by.Subject,
	})
	return data
}

// isTooLate reports whether an input was not stored because its question is resolved or its run has ended.
func isTooLate(err error) bool {
	return errors.Is(err, event.ErrDuplicateInput) || errors.Is(err, event.ErrEnded) || errors.Is(err, event.ErrGone) || errors.Is(err, event.ErrNotFound)
}

// decodeInput returns the resolution of the interrupt with that id from its stored input. A closed question, and data
// that cannot be decoded, count as expired.
func decodeInput(id string, data []byte) resolution {
	var stored storedInput
	if json.Unmarshal(data, &stored) != nil || stored.Closed {
		return resolution{unanswered: ErrExpired}
	}
	return resolution{
		Input: Input{
			ID: id, Approved: stored.Approved, Reason: stored.Reason, Args: stored.Args, Action: stored.Action, Content: stored.Content,
		},
		by: auth.Identity{Issuer: stored.Issuer, Subject: stored.Subject},
	}
}

// inbox delivers the inputs of a run to the goroutines of the run that wait for them. Any process may have stored an
// input. A cancellation is an input too: it cancels the run. The inbox also relinquishes the run when another process
// has taken it over.
type inbox struct {
	run     *run
	stopped chan struct{} // closed when the goroutine that receives inputs has ended

	mu          sync.Mutex            // guards cancel, undelivered and waiting
	cancel      context.CancelFunc    // ends the goroutine; nil before startListening
	undelivered map[string]resolution // by id: inputs whose interrupt was not passed to expectAnswer yet
	waiting     map[string]*interrupt // by id: interrupts that were passed to expectAnswer and have no input yet

	pos int64 // the position of the last input that was delivered; only one goroutine at a time uses it
}

// newInbox returns an inbox that does not listen. A run listens once it has a job, or at its first question.
func newInbox(r *run) inbox {
	return inbox{run: r, stopped: make(chan struct{}), undelivered: make(map[string]resolution), waiting: make(map[string]*interrupt)}
}

// expectAnswer makes the inbox send the answer to question.answer, at once if it has arrived already. It starts
// listening.
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

// startListening starts the goroutine that receives inputs, unless it was started before. stopListening ends it.
func (b *inbox) startListening() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.startListeningLocked()
}

// startListeningLocked starts the goroutine that receives inputs, unless it was started before. The caller holds mu.
func (b *inbox) startListeningLocked() {
	if b.cancel != nil {
		return
	}
	// Inputs are received even after the run's context has ended: withdrawing a question needs
	// to know whether an answer arrived first.
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.run.ctx))
	b.cancel = cancel
	go func() {
		defer close(b.stopped)
		b.run.runGuarded(func() { b.receiveLoop(ctx) })
	}()
}

// stopListening ends the goroutine that receives inputs, and returns when it has ended. It does nothing if the
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

// receiveLoop delivers inputs as they arrive, until ctx ends. If the run loses its job, receiveLoop relinquishes the
// run and returns. A run that appends nothing, because a server or a model is slow, learns only here that another
// process has taken it over.
func (b *inbox) receiveLoop(ctx context.Context) {
	var lost <-chan struct{}
	if b.run.job != nil {
		lost = b.run.job.Lost()
	}
	for {
		_, more, err := b.receiveAvailable(ctx)
		var retry <-chan time.Time
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

// receiveAvailable delivers the stored inputs after b.pos and returns them. more is closed when further inputs are
// stored. With an error, it returns the inputs that were delivered before. Only one goroutine at a time may call it.
func (b *inbox) receiveAvailable(ctx context.Context) (all []event.Input, more <-chan struct{}, _ error) {
	for {
		page, err := b.run.agent.Log.Inputs(ctx, b.run.ID, b.pos)
		if err != nil || len(page.Inputs) == 0 {
			return all, page.More, err
		}
		for _, in := range page.Inputs {
			b.deliverInput(in)
		}
		all = append(all, page.Inputs...)
	}
}

// deliverInput sends an input to the interrupt that waits for it, or keeps it until expectAnswer is called for its
// interrupt. A cancellation cancels the run. deliverInput does not block, since the log has at most one input of each
// id and i.answer has room for one. It sets b.pos, so only one goroutine at a time may call it.
func (b *inbox) deliverInput(in event.Input) {
	if in.ID == event.CancelID { // it is kept below too, where no interrupt has its id
		b.run.cancel(errRequested)
	}
	b.pos = in.Pos
	b.mu.Lock()
	defer b.mu.Unlock()
	answer := decodeInput(in.ID, in.Data)
	if i := b.waiting[in.ID]; i != nil {
		i.answer <- answer
		delete(b.waiting, in.ID)
		return
	}
	b.undelivered[in.ID] = answer
}
