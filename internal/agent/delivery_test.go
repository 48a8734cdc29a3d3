package agent_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/delivery"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
)

// endReceiver receives the ends of runs, after it has failed a few times.
type endReceiver struct {
	url      string
	failures int

	mu  sync.Mutex // protects what follows
	got []string   // run_id, path and status of each delivery
}

func newEndReceiver(t *testing.T, failures int) *endReceiver {
	t.Helper()
	e := &endReceiver{failures: failures}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			RunID  string `json:"run_id"`
			Status string
		}
		text, err := io.ReadAll(r.Body)
		if err != nil || json.Unmarshal(text, &body) != nil {
			t.Errorf("delivery %s: %v, want JSON", text, err)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.failures--; e.failures >= 0 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		e.got = append(e.got, body.RunID+" "+r.URL.Path+" "+body.Status)
	}))
	t.Cleanup(web.Close)
	e.url = web.URL
	return e
}

func (e *endReceiver) received() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(slices.Values(e.got))
}

// deliverTo makes an agent deliver to e, with its log in memory.
func deliverTo(t *testing.T, e *endReceiver) func(*agent.Options) {
	return func(o *agent.Options) {
		o.Log = memory.New(memory.Options{})
		d, err := delivery.New(delivery.Options{URL: e.url + "/all", CallbackOrigins: []string{e.url}, Secret: auth.NewSecret("s"), Log: o.Log, Local: true})
		if err != nil {
			t.Fatal(err)
		}
		o.Deliveries = d
	}
}

// The end of a parent is delivered, to its callback too; that of its child is not. Drain waits until a
// receiver that failed has all.
func TestEndOfARunIsDeliveredAndThatOfItsChildIsNot(t *testing.T) {
	t.Parallel() // it waits for the second and the third attempt
	e := newEndReceiver(t, 2)
	h := agenttest.NewFixture(t, scriptPerAgent(map[string]llmtest.Script{
		"a": llmtest.Turns(askAgent("b", "?"), llmtest.Says("Done.")), "b": llmtest.Turns(llmtest.Says("Yes.")),
	}), withAgents(t, fiveAgents, deliverTo(t, e)))
	run := h.StartRun(t, agent.Request{Callback: e.url + "/mine"})
	agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
	h.Drain(t.Context())
	if got, want := e.received(), []string{run.ID + " /all completed", run.ID + " /mine completed"}; !slices.Equal(got, want) {
		t.Errorf("deliveries = %q, want %q", got, want)
	}
	page, err := h.Log.Runs(t.Context(), event.Filter{Children: true})
	if err != nil || len(page.Runs) != 2 {
		t.Errorf("runs of the caller = %d, %v, want the parent and its child: a delivery is nobody's run", len(page.Runs), err)
	}
}

func TestEndOfACancelledRunIsDelivered(t *testing.T) {
	e := newEndReceiver(t, 0)
	h := agenttest.NewFixture(t, llmtest.Turns(newGate().blockAnswer(nil)), deliverTo(t, e))
	run := h.StartRun(t, agent.Request{})
	h.EventsUntil(t, run.ID, func(e event.Event) bool { _, ok := e.Body.(event.TextDelta); return ok })
	cancelRun(t, h, run.ID)
	h.Events(t, run.ID)
	h.Drain(t.Context())
	if got, want := e.received(), []string{run.ID + " /all cancelled"}; !slices.Equal(got, want) {
		t.Errorf("deliveries = %q, want %q", got, want)
	}
}

func TestCallbackNeedsAnAllowedOrigin(t *testing.T) {
	e := newEndReceiver(t, 0)
	for name, options := range map[string]func(*agent.Options){"another origin": deliverTo(t, e), "no deliveries": nil} {
		h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), options)
		_, err := h.Start(t.Context(), auth.Identity{}, agent.Request{Question: "?", Callback: "https://other.example/x"})
		if bad, ok := err.(*agent.InvalidError); !ok || bad.Pointer != "/callback" {
			t.Errorf("%s: Start = %v, want an InvalidError of /callback", name, err)
		}
	}
}

// A process without the settings leaves the deliveries of others alone.
func TestDeliveriesWaitForAProcessThatMakesThem(t *testing.T) {
	e := newEndReceiver(t, 0)
	log := memory.New(memory.Options{})
	d, err := delivery.New(delivery.Options{URL: e.url + "/all", Secret: auth.NewSecret("s"), Log: log})
	if err != nil {
		t.Fatal(err)
	}

	run := event.Run{ID: log.NewID(), Created: time.Now()}
	if err := log.Create(t.Context(), run); err != nil {
		t.Fatal(err)
	}
	ready, err := d.Prepare(t.Context(), run, "default", "", event.FinalAnswer{Answer: "Yes."})
	if err != nil {
		t.Fatal(err)
	}

	ready.Release()
	d.Drain(t.Context())
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), func(o *agent.Options) { o.Log, o.Durable = log, true })
	other := h.StartRun(t, agent.Request{})
	h.Events(t, other.ID)
	h.Drain(t.Context())
	page, err := log.Runs(t.Context(), event.Filter{Owner: event.Owner{Issuer: "\x00answerd", Subject: "delivery"}})
	if err != nil || len(page.Runs) != 1 || page.Runs[0].Last.Terminal() {
		t.Errorf("stored deliveries = %+v, %v, want one that waits", page.Runs, err)
	}
}
