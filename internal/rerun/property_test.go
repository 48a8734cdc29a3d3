package rerun_test

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/definition"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/export"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
	"answerd/internal/rerun"
)

// newRandom returns a source of random numbers that depends on the texts alone.
func newRandom(texts ...string) *rand.Rand {
	h := fnv.New64a()
	for _, s := range texts {
		_, _ = h.Write([]byte(s)) // never fails
	}
	return rand.New(rand.NewPCG(h.Sum64(), 1))
}

// randomAnswer answers each request in a way that depends on its conversation.
func randomAnswer(r llmtest.Request) llmtest.Answer {
	var texts []string
	for _, m := range r.Messages {
		texts = append(texts, m.Role, m.Content)
	}

	rnd := newRandom(texts...)
	if len(r.Tools) == 0 || rnd.IntN(3) == 0 {
		return llmtest.Says("Because ", strconv.Itoa(rnd.IntN(100)), ".")
	}
	if rnd.IntN(25) == 0 {
		return llmtest.Fails(400, "no")
	}

	offered := func(name string) bool {
		for _, t := range r.Tools {
			if t.Function.Name == name {
				return true
			}
		}
		return false
	}

	var calls []llmtest.Call
	for range 1 + rnd.IntN(4) {
		n := rnd.IntN(100)
		all := []llmtest.Call{
			{Name: "add", Args: fmt.Sprintf(`{"a":%d,"b":%d}`, n, rnd.IntN(9))}, {Name: "echo", Args: fmt.Sprintf(`{"text":"x%d"}`, n)},
			{Name: "add", Args: fmt.Sprintf(`{"a":"%d","b":1}`, n)}, {Name: "add", Args: `{"a":true}`}, {Name: "echo", Args: `{"text":`},
			{Name: "fail", Args: `{}`}, {Name: "steps", Args: `{}`}, {Name: "none", Args: `{}`}, {Name: "ask", Args: `{}`},
		}
		if offered("ask_b") {
			all = append(all, llmtest.Call{Name: "ask_b", Args: fmt.Sprintf(`{"question":"Why %d?"}`, n)})
		}
		calls = append(calls, all[rnd.IntN(len(all))])
	}
	return llmtest.SaysAndCalls([]string{"", "Let me see."}[rnd.IntN(2)], calls...)
}

// answerAll answers every question of a run, and cancels some runs that wait.
func answerAll(ctx context.Context, h *agenttest.Fixture, id string, rnd *rand.Rand) error {
	for pos := int64(0); ; {
		page, err := h.Log.After(ctx, id, pos)
		if err != nil || page.Ended {
			return err
		}
		for _, e := range page.Events {
			pos = e.Seq
		}
		if n := len(page.Events); n > 0 {
			waits, ok := page.Events[n-1].Body.(event.Suspended)
			if !ok {
				continue
			}
			if rnd.IntN(10) == 0 {
				if err := h.Cancel(ctx, id); err != nil {
					return err
				}
				continue
			}
			i := waits.Interrupts[rnd.IntN(len(waits.Interrupts))]
			in := agent.Input{ID: i.ID, Approved: new(rnd.IntN(3) > 0)}
			if i.Kind == event.KindBudget && *in.Approved {
				in.Args = json.RawMessage(fmt.Sprintf(`{"max":%v}`, i.Used+5))
			}
			if i.Kind == event.KindElicitation {
				in = agent.Input{ID: i.ID, Action: "accept", Content: json.RawMessage(`{"people":3}`)}
			}
			if err := h.Answer(ctx, auth.Identity{}, id, in); err != nil {
				return err
			}
			continue
		}
		select {
		case <-page.More:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// randomRuns returns the number of runs of TestRandomRunsRunAgain. a larger one is for
// a machine that has time.
func randomRuns(t *testing.T) int {
	t.Helper()
	n := 100
	if text := os.Getenv("ANSWERD_TEST_REPLAYS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func TestRandomRunsRunAgain(t *testing.T) {
	h := agenttest.NewFixture(t, randomAnswer, func(o *agent.Options) {
		o.Agents = []definition.Agent{{ID: "a", Prompt: "You are a.", Agents: []string{"b"}}, {ID: "b", Prompt: "You are b."}}
	}, agenttest.Stateless, func(s *config.Server) { s.ApproveTools = []string{"add"} })

	n := randomRuns(t)
	docs, errs := make([]*export.Document, n), make([]error, n)
	runInParallel(n, 16, func(i int) {
		rnd := newRandom(strconv.Itoa(i))
		r := agent.Request{Question: fmt.Sprintf("Question %d?", i), MaxTurns: 1 + rnd.IntN(4), Interactive: rnd.IntN(4) > 0, AskAtLimit: rnd.IntN(2) == 0}
		if rnd.IntN(3) == 0 {
			r.Budget = agent.Budget{ToolCalls: 1 + rnd.IntN(4), TotalTokens: int64(20 + rnd.IntN(100))}
		}
		run, err := h.Start(t.Context(), auth.Identity{}, r)
		if err == nil {
			err = answerAll(t.Context(), h, run.ID, rnd)
		}
		if err == nil {
			docs[i], err = h.Export(t.Context(), run.ID)
		}
		errs[i] = err
	})

	results, events := make([]*rerun.Result, n), 0
	began := time.Now()

	runInParallel(n, 8, func(i int) {
		if errs[i] == nil {
			results[i], errs[i] = rerun.Run(t.Context(), docs[i], rerun.Options{Stall: 10 * time.Second})
		}
	})

	took := time.Since(began)
	different := 0
	for i, result := range results {
		if errs[i] != nil {
			t.Errorf("run %d: %v, want no error", i, errs[i])
			continue
		}
		events += len(result.Events)
		if len(result.Differences) == 0 {
			continue
		}
		if different++; different > 3 {
			continue
		}

		for _, d := range result.Differences {
			t.Errorf("run %d: %v, want no difference", i, d)
		}

		var lines []string
		for _, doc := range append([]export.Document{*docs[i]}, docs[i].Children...) {
			for _, line := range doc.Events {
				lines = append(lines, string(line))
			}
		}
		t.Logf("recorded:\n%s", strings.Join(lines, "\n"))
	}
	t.Logf("%d runs with %d events ran again in %v, %d with a difference", n, events, took.Round(time.Millisecond), different)
}

// runInParallel calls f with 0 to n-1, several at a time.
func runInParallel(n, workers int, f func(i int)) {
	next := make(chan int)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}
