package delivery

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"answerd/internal/agent/webhook"
	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/event"
	"answerd/internal/event/memory"
)

var secret = auth.NewSecret("a secret of the tests")

// received is one attempt as a receiver saw it.
type received struct {
	id   string
	body body
	raw  []byte
}

// receiver is an http.Handler that checks signatures and remembers attempts.
type receiver struct {
	t *testing.T
	// answer returns the status of the nth attempt, from 1.
	answer func(n int) int

	mu  sync.Mutex // protects the field below
	got []received
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	raw, err := io.ReadAll(q.Body)
	if err != nil {
		return
	}
	a := received{id: q.Header.Get("webhook-id"), raw: raw}
	if err := json.Unmarshal(raw, &a.body); err != nil || q.Header.Get(webhook.SignatureHeader) != webhook.Sign(secret, raw) {
		r.t.Errorf("attempt %s: %v, want JSON with a valid signature", raw, err)
	}
	if a.id != a.body.DeliveryID || q.Header.Get("webhook-timestamp") == "" || a.body.Timestamp == 0 {
		r.t.Errorf("attempt has webhook-id %q, webhook-timestamp %q, body %s; want the same id and a time", a.id, q.Header.Get("webhook-timestamp"), raw)
	}
	r.mu.Lock()
	r.got = append(r.got, a)
	n := len(r.got)
	r.mu.Unlock()
	w.WriteHeader(r.answer(n))
}

func (r *receiver) attempts() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]received(nil), r.got...)
}

func alwaysStatus(status int) func(int) int { return func(int) int { return status } }

// process is a Deliverer with what claims its jobs.
type process struct {
	*Deliverer
	t      *testing.T
	claims context.CancelFunc
	done   sync.WaitGroup
}

func newProcess(t *testing.T, o Options) *process {
	t.Helper()
	o.Secret = secret
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{Deliverer: d, t: t, claims: cancel}
	p.done.Go(func() {
		for {
			job, err := o.Log.Claim(ctx)
			if err != nil {
				return
			}
			d.Resume(job)
		}
	})
	return p
}

// stop drains the process, without time to wait.
func (p *process) stop() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if !p.Local { // as the agent does: what is released is for other processes
		p.claims()
		p.done.Wait()
	}
	p.Drain(ctx)
	p.claims()
	p.done.Wait()
}

// startRun stores an active run.
func (p *process) startRun() event.Run {
	p.t.Helper()
	run := event.Run{ID: p.Log.NewID(), ThreadID: "thr_1", Owner: event.Owner{Subject: "ann"}, Created: p.Log.Now()}
	if err := p.Log.Create(p.t.Context(), run); err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.Log.Append(p.t.Context(), run.ID, event.Start{Question: "?"}); err != nil {
		p.t.Fatal(err)
	}
	return run
}

func (p *process) appendEnd(run event.Run, end event.Body) {
	p.t.Helper()
	if _, err := p.Log.Append(p.t.Context(), run.ID, end); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) prepare(run event.Run, callback string, end event.Body) *Prepared {
	p.t.Helper()
	ready, err := p.Prepare(p.t.Context(), run, "default", callback, end)
	if err != nil {
		p.t.Fatal(err)
	}
	return ready
}

// endRun ends a run and sends what is prepared.
func (p *process) endRun(callback string, end event.Body) event.Run {
	p.t.Helper()
	run := p.startRun()
	ready := p.prepare(run, callback, end)
	p.appendEnd(run, end)
	ready.Send()
	return run
}

func newLog() event.Log { return memory.New(memory.Options{}) }

var answered = event.FinalAnswer{Answer: "Yes.", Metadata: event.Metadata{ToolNames: []string{"add"}, Model: "m"}, FinishReason: "stop"}

func fetchClass(n int) fetch.AddressClass { return fetch.AddressClass(n) }

func contextFor(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}
