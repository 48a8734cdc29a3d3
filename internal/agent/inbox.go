package agent

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"answerd/internal/auth"
	"answerd/internal/event"
)

// inboxRetry is how long a log that does not answer is left alone.
const inboxRetry = time.Second

// givenInput is an Input as the log keeps it, and by whom it is.
type givenInput struct {
	Approved *bool    `json:"approved,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Args     jsonText `json:"args,omitempty"`
	Action   string   `json:"action,omitempty"`
	Content  jsonText `json:"content,omitempty"`
	Issuer   string   `json:"issuer,omitempty"`
	Subject  string   `json:"subject,omitempty"`
	Closed   bool     `json:"closed,omitempty"` // it is the run's own: the time to answer is over
}

// closedInput takes the place of an answer, so that none can come any more.
var closedInput = []byte(`{"closed":true}`)

func encodeInput(in Input, by auth.Identity) []byte {
	data, _ := json.Marshal(givenInput{ // of checked JSON
		Approved: in.Approved, Reason: in.Reason, Args: in.Args, Action: in.Action, Content: in.Content, Issuer: by.Issuer, Subject: by.Subject,
	})
	return data
}

// decodeInput is the answer to the question of that id. What cannot be read is none.
func decodeInput(id string, data []byte) verdict {
	var g givenInput
	if json.Unmarshal(data, &g) != nil || g.Closed {
		return verdict{why: ErrExpired}
	}
	return verdict{
		Input: Input{ID: id, Approved: g.Approved, Reason: g.Reason, Args: g.Args, Action: g.Action, Content: g.Content},
		by:    auth.Identity{Issuer: g.Issuer, Subject: g.Subject},
	}
}

// inbox takes what is given to a run, on whichever process, to those in the run who wait
// for it.
type inbox struct {
	run  *run
	over chan struct{} // closed when nothing comes any more

	mu      sync.Mutex // protects what follows
	cancel  context.CancelFunc
	given   map[string]verdict // that nobody has asked for yet
	waiting map[string]*interrupt

	pos int64 // what came up to here was taken; of who loads
}

func newInbox(r *run) inbox {
	return inbox{run: r, over: make(chan struct{}), given: make(map[string]verdict), waiting: make(map[string]*interrupt)}
}

// expect has the answer to i taken to it, even if it has come already.
func (b *inbox) expect(i *interrupt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v, came := b.given[i.ID]; came {
		i.answer <- v
		return
	}
	b.waiting[i.ID] = i
	b.listenLocked()
}

// listen begins to take inputs from the log, until close.
func (b *inbox) listen() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listenLocked()
}

func (b *inbox) listenLocked() {
	if b.cancel != nil {
		return
	}
	// Not with the run's own context: who gives up a question has to know what came first.
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.run.ctx))
	b.cancel = cancel
	go func() {
		defer close(b.over)
		b.run.guard(func() { b.read(ctx) })
	}()
}

// close returns when nothing is taken any more.
func (b *inbox) close() {
	b.mu.Lock()
	cancel := b.cancel
	b.mu.Unlock()
	if cancel != nil {
		cancel()
		<-b.over
	}
}

// read takes what comes. It also watches whether the run is still ours to execute.
func (b *inbox) read(ctx context.Context) {
	var lost <-chan struct{}
	if b.run.job != nil {
		lost = b.run.job.Lost()
	}
	for {
		_, more, err := b.load(ctx)
		var retry <-chan time.Time
		if err != nil {
			retry = time.After(inboxRetry)
		}
		select {
		case <-more:
		case <-retry:
		case <-lost:
			b.run.leave(errTaken)
			return
		case <-ctx.Done():
			return
		}
	}
}

// load takes what there is, and returns it and what is closed when there is more.
func (b *inbox) load(ctx context.Context) (all []event.Input, more <-chan struct{}, _ error) {
	for {
		page, err := b.run.agent.Log.Inputs(ctx, b.run.ID, b.pos)
		if err != nil || len(page.Inputs) == 0 {
			return all, page.More, err
		}
		for _, in := range page.Inputs {
			b.deliver(in)
		}
		all = append(all, page.Inputs...)
	}
}

// deliver takes one input to who waits for it.
func (b *inbox) deliver(in event.Input) {
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
	b.given[in.ID] = v
}
