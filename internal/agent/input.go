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
	event.Interrupt         // not changed once it is asked
	isAsked         bool    // the log has the question
	operatorLimit   float64 // that the answer cannot exceed, if the question is about a limit; 0 means none
	notifying       bool    // the hook interrupt has not replied yet; suspension.mu protects it once the question is asked

	answer chan resolution // of capacity 1, and there is one answer at most
}

// newInterrupt returns a question that is not asked yet.
func newInterrupt(rec event.Interrupt) *interrupt {
	return &interrupt{Interrupt: rec, answer: make(chan resolution, 1)}
}

// timeLeft returns how long after now, which is the log's time, the question can still be answered.
func (i *interrupt) timeLeft(now time.Time) time.Duration {
	return time.UnixMilli(i.ExpiresAt).Sub(now)
}

// resolution holds the outcome of a question: an answer, or the reason why it was not answered.
type resolution struct {
	Input
	by         auth.Identity
	unanswered error // why the question was not answered; nil if it was
}

// Reasons for which a question was not answered, in addition to ErrExpired.
var (
	errNobodyToAsk = errors.New("no person can be asked")
	errWithdrawn   = errors.New(recorded.Withdrawn)
	errTooManyOpen = errors.New("too many questions are open")
)

// resolvedEvent returns the event with the outcome of the question.
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

// elicitationAction returns the action for the server: decline if no person can be asked, cancel
// if the person did not answer.
func (v resolution) elicitationAction() string {
	switch {
	case v.unanswered == nil:
		return v.Action
	case errors.Is(v.unanswered, errNobodyToAsk):
		return mcp.Decline
	}
	return mcp.Cancel
}

// maxRaised bounds the value of a raised limit: up to it, a float64 represents whole numbers
// exactly.
const maxRaised = 1 << 53

// raisedLimit returns the limit after the answer, which is not above the operator's; 0 means that this has none.
func (v resolution) raisedLimit(limit, operatorLimit float64) float64 {
	if !v.isApproved() {
		return limit
	}
	var args struct{ Max float64 }
	_ = json.Unmarshal(v.Args, &args) // validateBudgetIncrease has checked it
	if operatorLimit > 0 {
		args.Max = min(args.Max, operatorLimit)
	}
	return max(args.Max, limit)
}

// refusalMessage returns the model's message for a call that was not approved.
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

// denialDecision returns the audit-log form of refusalMessage. It omits the person's own words.
func (v resolution) denialDecision() decision {
	if v.unanswered == nil {
		return decision{verdict: denied, by: v.by.Subject, reason: "refused"}
	}
	return decision{verdict: denied, reason: v.unanswered.Error()}
}

// wakeTimeout bounds how long FinishSignIn waits for the log.
const wakeTimeout = 10 * time.Second

// inboxRetry is the pause after the log failed to return inputs.
const inboxRetry = time.Second

// storedInput encodes an Input in the log, with the person who gave it.
type storedInput struct {
	Approved *bool    `json:"approved,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Args     jsonText `json:"args,omitempty"`
	Action   string   `json:"action,omitempty"`
	Content  jsonText `json:"content,omitempty"`
	Issuer   string   `json:"issuer,omitempty"`
	Subject  string   `json:"subject,omitempty"`
	Closed   bool     `json:"closed,omitempty"` // set by the run itself: later answers are refused
}

// closedInput is stored instead of an answer. Each interrupt has one input, so later answers are
// refused.
var closedInput = []byte(`{"closed":true}`)

// encodeInput returns an answer as the log stores it. Only the identity of the person is kept, not their claims.
func encodeInput(in Input, by auth.Identity) []byte {
	data, _ := json.Marshal(storedInput{ // raw JSON that was checked always marshals
		Approved: in.Approved, Reason: in.Reason, Args: in.Args, Action: in.Action, Content: in.Content, Issuer: by.Issuer, Subject: by.Subject,
	})
	return data
}

// decodeInput returns the answer to the interrupt with that id. Data that cannot be decoded
// counts as no answer.
func decodeInput(id string, data []byte) resolution {
	var g storedInput
	if json.Unmarshal(data, &g) != nil || g.Closed {
		return resolution{unanswered: ErrExpired}
	}
	return resolution{
		Input: Input{ID: id, Approved: g.Approved, Reason: g.Reason, Args: g.Args, Action: g.Action, Content: g.Content},
		by:    auth.Identity{Issuer: g.Issuer, Subject: g.Subject},
	}
}

// inbox delivers the inputs of a run to the goroutines of the run that wait for them. Any
// process may have stored an input. The inbox also notices that another process took over the
// run.
type inbox struct {
	run     *run
	stopped chan struct{} // closed when the last input has been delivered

	mu          sync.Mutex // guards the fields below
	cancel      context.CancelFunc
	undelivered map[string]resolution // inputs for interrupts that do not wait yet
	waiting     map[string]*interrupt

	pos int64 // the last position that was received; used by receiveAvailable
}

// newInbox returns an inbox that does not listen. A run listens once it has a job, or at its first question.
func newInbox(r *run) inbox {
	return inbox{run: r, stopped: make(chan struct{}), undelivered: make(map[string]resolution), waiting: make(map[string]*interrupt)}
}

// expectAnswer arranges that i gets its answer, immediately if it has already arrived.
func (b *inbox) expectAnswer(i *interrupt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v, came := b.undelivered[i.ID]; came {
		i.answer <- v
		return
	}
	b.waiting[i.ID] = i
	b.startListeningLocked()
}

// startListening starts the goroutine that receives inputs, once; stopListening ends it.
func (b *inbox) startListening() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.startListeningLocked()
}

// startListeningLocked is startListening for callers that hold mu.
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

// stopListening returns when the goroutine has ended.
func (b *inbox) stopListening() {
	b.mu.Lock()
	cancel := b.cancel
	b.mu.Unlock()
	if cancel != nil {
		cancel()
		<-b.stopped
	}
}

// receiveLoop delivers inputs as they arrive, until ctx ends or the run loses its job. It is also where a run
// that appends nothing, because a server or a model is slow, notices that another process has taken it over.
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

// receiveAvailable delivers the stored inputs and returns them. more is closed when further
// inputs are stored.
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

// deliverInput hands an input to the interrupt that waits for it, or stores it until an
// interrupt does. It never blocks: the log has at most one input of each id, and answer has room for one.
// Only one goroutine at a time may call it, since it moves pos.
func (b *inbox) deliverInput(in event.Input) {
	if in.ID == event.CancelID {
		b.run.cancel(errRequested)
	}
	b.pos = in.Pos
	b.mu.Lock()
	defer b.mu.Unlock()
	v := decodeInput(in.ID, in.Data)
	if i := b.waiting[in.ID]; i != nil {
		i.answer <- v
		delete(b.waiting, in.ID)
		return
	}
	b.undelivered[in.ID] = v
}
