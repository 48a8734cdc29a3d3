package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// Runs on each endpoint that refuses requests without its own members are interrupted in every way
// that a run survives. Their later requests still have these members.
func TestProviderMembersSurvive(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	file := func(t *testing.T) string { return "file:" + t.TempDir() }

	cluster := func(*testing.T) string { return "" }
	kill := func(_ *testing.T, f *replicas) { f.killReplica(0) }
	stop := func(t *testing.T, f *replicas) { f.stopReplica(t, 0) }
	for name, c := range map[string]struct {
		log       func(*testing.T) string
		suspended bool // rather than waiting for the model
		interrupt func(*testing.T, *replicas)
		another   bool // replica continues, rather than the same one started again
	}{
		"an approval":                            {file, true, nil, false},
		"kill -9 while suspended":                {file, true, kill, false},
		"a restart while suspended":              {file, true, stop, false},
		"the loss of a replica, while suspended": {cluster, true, kill, true},
		"kill -9 during a model call":            {file, false, kill, false},
		"a restart during a model call":          {file, false, stop, false},
		"a take-over during a model call":        {cluster, false, kill, true},
		"a hand-over during a model call":        {cluster, false, stop, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			// Start the endpoint of each provider that refuses requests without its members.
			release, models, mux := make(chan struct{}), []string{}, http.NewServeMux()
			endpoints, asked := make(map[string]*endpoint), make(map[string]chan int)
			for id, p := range providers {
				if p.refuse == nil || id == "Azure" || id == "Mistral" {
					continue
				}
				id = strings.ReplaceAll(id, " ", "-")
				e := &endpoint{provider: p, rounds: [][]string{
					{callOf("work", id+"-0"), callOf("careful", id+"-1")}, {callOf("careful", id+"-2")},
				}}
				if rounds := make(chan int, 16); !c.suspended {
					e.rounds = [][]string{{callOf("work", id+"-0"), callOf("work", id+"-1")}, {callOf("work", id+"-2")}}
					e.release, e.begin, asked[id] = release, func(round int) { rounds <- round }, rounds
				}
				endpoints[id] = e
				mux.Handle("/"+id+"/v1/", e)
			}
			server := httptest.NewServer(mux)
			t.Cleanup(server.Close)
			for id := range endpoints {
				models = append(models, fmt.Sprintf(`{"id":%q,"base_url":"%s/%s/v1"}`, id, server.URL, id))
			}

			// Start the replicas, and prepare a question for each provider.
			f, ctx := newReplicas(t, c.log(t), "MODELS_FILE="+modelsFile(t, "["+strings.Join(models, ",")+"]"), "DRAIN_TIMEOUT=0s"), longContext(t)
			f.env = slices.DeleteFunc(f.env, func(s string) bool { return strings.HasPrefix(s, "DEFAULT_MODEL_ID=") })
			n := 1
			if c.another {
				n = 2
			}
			f.startAll(t, n)
			readers := make(map[string]*runReader)
			for id := range endpoints {
				readers[id] = f.newRunReader(id, "", 0)
				readers[id].body = fmt.Sprintf(`{"question":"Q","model":%q}`, id)
			}

			// interrupt interrupts all runs where they are; it returns the replica that continues them.
			interrupt := func() (replica int) {
				if c.interrupt != nil {
					c.interrupt(t, f)
				}
				switch {
				case c.another:
					replica = 1
				case c.interrupt != nil:
					f.startReplica(t, 0)
				}
				return replica
			}
			forEachReader := func(do func(id string, j *runReader) error) {
				t.Helper()
				for id, j := range readers {
					if err := do(id, j); err != nil {
						t.Fatalf("%s: %v", id, err)
					}
				}
			}

			// Run until the interruption and continue after it.
			replica := 0
			if c.suspended {
				forEachReader(func(_ string, j *runReader) error { return j.readUntil(ctx, 0, "suspended") })
				forEachReader(func(_ string, j *runReader) error { return f.approve(ctx, 0, j) })
				forEachReader(func(_ string, j *runReader) error { return j.readUntil(ctx, 0, "suspended") })
				replica = interrupt()
				forEachReader(func(_ string, j *runReader) error { return f.approve(ctx, replica, j) })
			} else {
				forEachReader(func(_ string, j *runReader) error { return j.readUntil(ctx, 0, "step_end") })
				forEachReader(func(id string, _ *runReader) error {
					for {
						select {
						case round := <-asked[id]:
							if round == 1 {
								return nil
							}
						case <-ctx.Done():
							return ctx.Err()
						}
					}
				})
				replica = interrupt()
				close(release)
			}

			// Every run ends with its answer, and no call is lost or repeated.
			forEachReader(func(id string, j *runReader) error {
				if err := j.readUntil(ctx, replica, ""); err != nil {
					return err
				}
				e, want := endpoints[id], int64(0)
				if id == "DeepSeek-R1" || id == "DeepSeek-silent" || id == "Groq-strict" {
					want = -1 // they refuse what they have sent, and are asked again
				}
				if got := j.lastFrame(); got.Event != "final_answer" || !strings.Contains(string(got.Data), `"answer":"Done."`) || want == 0 && e.refused.Load() > 0 {
					t.Errorf("%s: got %s and %d refused requests, want an answer and none", id, got.Data, e.refused.Load())
				}
				return nil
			})
			f.ledger.checkCalls(t)
			if got, want := f.ledger.totalCalls(), 3*len(endpoints); got != want {
				t.Errorf("got %d calls, want %d", got, want)
			}
		})
	}
}

// callOf returns a call of the ledger's tool.
func callOf(tool, key string) string {
	return fmt.Sprintf(`{"name":%q,"arguments":"{\"key\":\"%s\"}"}`, tool, key)
}

// approve approves what a run waits for.
func (f *replicas) approve(ctx context.Context, replica int, j *runReader) error {
	var waits struct{ Interrupts []struct{ ID string } }
	if err := json.Unmarshal(j.lastFrame().Data, &waits); err != nil {
		return err
	}
	for _, i := range waits.Interrupts {
		if status, err := f.post(ctx, replica, "/runs/"+j.run+"/input", fmt.Sprintf(`{"id":%q,"approved":true}`, i.ID)); err != nil || status != http.StatusOK {
			return fmt.Errorf("approve: %d, %w", status, err)
		}
	}
	return nil
}
