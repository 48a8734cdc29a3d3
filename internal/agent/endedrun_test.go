package agent

import (
	"context"
	"iter"
	"runtime"
	"testing"
	"time"
	"weak"

	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm"
	"answerd/internal/mcp"
)

// heldModel answers once it is released.
type heldModel struct{ released chan struct{} }

func (m heldModel) Stream(context.Context, llm.Request) iter.Seq2[llm.Part, error] {
	return func(yield func(llm.Part, error) bool) {
		<-m.released
		for _, p := range []llm.Part{llm.Text{Delta: "Yes."}, llm.Usage{Input: 1, Output: 1, Total: 2}, llm.Finish{Reason: "stop"}} {
			if !yield(p, nil) {
				return
			}
		}
	}
}

// The log keeps the events of a run that has ended. They must not keep the rest of the run, which
// has the whole conversation.
func TestEndedRunLeavesNothingButItsEvents(t *testing.T) {
	tools, err := mcp.New(nil, mcp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tools.Close()
	model := heldModel{make(chan struct{})}
	a, err := New(Options{Log: memory.New(memory.Options{}), Model: model, Tools: tools, MaxTurns: 9, DisconnectGrace: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := a.Start(t.Context(), auth.Identity{}, Request{Question: "Is it?"})
	if err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	run := weak.Make(a.active[rec.ID])
	a.mu.Unlock()
	close(model.released)
	a.Drain(t.Context())
	end, err := a.Log.Run(t.Context(), rec.ID)
	if _, answered := end.Last.Body.(event.FinalAnswer); err != nil || !answered {
		t.Fatalf("the run ended with %+v, %v, want a final answer", end.Last.Body, err)
	}

	for range 3 {
		runtime.GC()
	}

	if run.Value() != nil {
		t.Error("the run that has ended is still in memory, want only its events there")
	}
	runtime.KeepAlive(a)
}
