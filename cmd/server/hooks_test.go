package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"answerd/internal/agent/webhook/webhooktest"
	"answerd/internal/demo"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
)

// allHooks returns the settings with which every hook is asked.
func allHooks(hooks *webhooktest.Service) []string {
	return []string{"HOOKS_URL", hooks.URL, "HOOKS_SECRET", webhooktest.Secret.Reveal(), "HOOKS_EVENTS", "pre_model_call, model_result, interrupt, run_end"}
}

// askedHooks returns the names of the hooks that a service was asked, sorted.
func askedHooks(s *webhooktest.Service) string {
	var names []string
	for _, q := range s.Questions() {
		names = append(names, q.Hook)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// S0.2, S0.5: a service that checks signatures is asked about everything that happens in a run, and
// its replies reach the model, the events and the answer.
func TestHooksSeeAndChangeAWholeRun(t *testing.T) {
	t.Parallel()
	hooks := webhooktest.New(t, func(q webhooktest.Question) string {
		switch {
		case q.Hook == "pre_model_call" && q.Step == 1:
			return `{"instructions":"Answer in Latin.","messages":[{"role":"user","content":"The customer is a bat."}]}`
		case q.Hook == "tool_result":
			return `{"content":[{"type":"text","text":"a hundred"},{"type":"resource_link","uri":"https://docs.example/100","name":"hundred"}],"structured":{"result":100,"by":"hook"}}`
		}
		return `{}`
	})
	w := newTestWorld(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "calculate", Args: `{"expression":"12.5 * 8"}`}), llmtest.Says("Centum.")))
	file := filepath.Join(t.TempDir(), "mcp.json")
	text := fmt.Sprintf(`{"mcpServers":{"demo":{"url":%q,"auth":{"type":"jwt"},"approval":"always"}}}`, w.tools.url+demo.MCPPath)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startAnswerd(t, w.environment(append(allHooks(hooks), "MCP_URL", "", "MCP_CONFIG_PATH", file)...))
	c := newClient(t)

	// Ask, approve the call, and read the run to its end.
	var waits struct {
		RunID      string `json:"run_id"`
		Interrupts []event.Interrupt
	}
	resp := post(t, c, s.url+"/answer", `{"question":"What is 12.5 * 8?"}`)
	if err := json.NewDecoder(resp.Body).Decode(&waits); err != nil || resp.StatusCode != http.StatusAccepted || len(waits.Interrupts) != 1 {
		t.Fatalf("got %s, %+v, %v, want 202 and one interrupt", resp.Status, waits, err)
	}
	if resp := post(t, c, s.url+"/runs/"+waits.RunID+"/input", `{"id":"`+waits.Interrupts[0].ID+`","approved":true}`); resp.StatusCode != http.StatusOK {
		t.Fatalf("approval: got %s, want 200", resp.Status)
	}
	readStream(t, get(t, c, s.url+"/runs/"+waits.RunID+"/events")) // to its end

	// The answer has what the hook made of the result.
	var whole struct {
		Answer   string
		Metadata struct {
			ToolResults []json.RawMessage `json:"tool_results"`
		}
	}
	_, body := getBody(t, c, s.url+"/runs/"+waits.RunID)
	if err := json.Unmarshal([]byte(body), &whole); err != nil || whole.Answer != "Centum." || len(whole.Metadata.ToolResults) != 1 || string(whole.Metadata.ToolResults[0]) != `{"result":100,"by":"hook"}` {
		t.Errorf("got %s, %v, want the answer Centum. and the hook's structured content", body, err)
	}

	// What the hook adds to the first model request is not in the second one.
	requests := w.model.Requests()
	if first := string(requests[0].Body); !strings.Contains(first, "Answer in Latin.") || !strings.Contains(first, "The customer is a bat.") {
		t.Errorf("got first model request %s, want what the hook adds", first)
	}
	if second := string(requests[1].Body); strings.Contains(second, "Latin") || !strings.Contains(second, "a hundred") || !strings.Contains(second, "https://docs.example/100") {
		t.Errorf("got second model request %s, want the hook's result, and nothing of what was added to the first", second)
	}

	// Every hook was asked, with the identifiers of this run.
	s.stop()
	if err := <-s.done; err != nil { // the hook interrupt is asked while the run continues
		t.Fatal(err)
	}
	if got, want := askedHooks(hooks), "interrupt model_result model_result pre_model_call pre_model_call pre_tool_call run_end tool_result"; got != want {
		t.Errorf("got hooks %s, want %s", got, want)
	}
	for _, q := range hooks.Questions() {
		switch {
		case q.RunID != waits.RunID:
			t.Errorf("%s: got run %s, want %s", q.Hook, q.RunID, waits.RunID)
		case q.Hook == "interrupt" && q.Interrupt.ID != waits.Interrupts[0].ID:
			t.Errorf("got interrupt %s, want %s", q.Interrupt.ID, waits.Interrupts[0].ID)
		case q.Hook == "run_end" && (q.Status != "completed" || q.Result.Answer != "Centum."):
			t.Errorf("run_end: got %s, %+v, want completed, Centum.", q.Status, q.Result)
		}
	}
}

// A hook refuses a model request: the caller learns the reason, and no model is asked.
func TestHookRefusesAModelRequest(t *testing.T) {
	t.Parallel()
	hooks := webhooktest.New(t, func(q webhooktest.Question) string {
		if q.Hook == "pre_model_call" {
			return `{"abort":true,"reason":"no questions about people"}`
		}
		return `{}`
	})

	w := newTestWorld(t, newTwoCallScript())
	s := startAnswerd(t, w.environment(allHooks(hooks)...))
	resp := post(t, newClient(t), s.url+"/answer", e2eQuestion)
	var p struct{ Code, Detail string }
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != http.StatusUnprocessableEntity ||
		p.Code != "tool_aborted" || p.Detail != "A hook ended the run: no questions about people" {
		t.Errorf("got %s, %+v, %v, want 422 tool_aborted with the reason", resp.Status, p, err)
	}
	if n := len(w.model.Requests()); n != 0 {
		t.Errorf("got %d model requests, want none", n)
	}
	if q := hooks.Questions(); len(q) != 2 || q[1].Hook != "run_end" || q[1].Status != "failed" || q[1].Error.Code != "tool_aborted" {
		t.Errorf("got %+v, want pre_model_call, and run_end with status failed and code tool_aborted", q)
	}
}

// A reply that cannot be used is logged with its defect, and nothing of it is in the log; the run goes
// on as after {}.
func TestInvalidRepliesOfHooksAreLoggedAndIgnored(t *testing.T) {
	t.Parallel()
	replies := map[string]string{
		"pre_model_call": `{"instructions":7,"x":"canary"}`, "model_result": `{"content":"canary"}`, "run_end": `{"abort":true,"reason":"canary"}`,
		"tool_result": `{"content":[{"type":"image","data":"canary!","mimeType":"image/png"}]}`,
	}

	hooks := webhooktest.New(t, func(q webhooktest.Question) string {
		if reply, ok := replies[q.Hook]; ok {
			return reply
		}
		return `{}`
	})

	w := newTestWorld(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "calculate", Args: `{"expression":"12.5 * 8"}`}), llmtest.Says("100.")))
	s := startAnswerd(t, w.environment(allHooks(hooks)...))
	a := postQuestion(t, newClient(t), s.url, `{"question":"What is 12.5 * 8?"}`)
	if a.Answer != "100." || !strings.Contains(string(a.Metadata), `"result":100`) {
		t.Errorf("got %+v, want the answer 100. and the tool's own result", a)
	}

	for hook := range replies {
		want := `"hook":"` + hook + `"`
		if !slices.ContainsFunc(strings.Split(s.log.String(), "\n"), func(line string) bool {
			return strings.Contains(line, `"hook failed"`) && strings.Contains(line, want) && strings.Contains(line, "the reply")
		}) {
			t.Errorf("got log %s, want hook failed with %s", s.log, want)
		}
	}

	if strings.Contains(s.log.String(), "canary!") || strings.Contains(s.log.String(), `"canary"`) {
		t.Errorf("got log %s, want nothing of the replies", s.log)
	}
}

// A process is killed while it asks run_end. The next one asks again, with the same delivery id, so
// that a service which remembers ids takes it once, and then appends the terminal event.
func TestHookRunEndIsAskedAgainAfterAKilledProcess(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}, 1), make(chan struct{})
	hooks := webhooktest.New(t, func(q webhooktest.Question) string {
		if q.Hook == "run_end" {
			asked <- struct{}{}
			<-release
		}
		return `{}`
	})

	w := newTestWorld(t, llmtest.Turns(llmtest.Says("Hello.")))
	var env []string
	all := append(allHooks(hooks), "EVENTS_URL", "file:"+t.TempDir())
	for i := 0; i < len(all); i += 2 {
		env = append(env, all[i]+"="+all[i+1])
	}

	env = append(w.environ(), env...)
	first := spawnAnswerd(t, env)
	c := newClient(t)
	resp := post(t, c, first.url(t)+"/answer", `{"question":"Hi?","background":true}`)
	var run struct {
		RunID string `json:"run_id"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&run); err != nil {
		t.Fatal(err)
	}
	<-asked
	_ = first.cmd.Process.Kill()
	_ = first.wait() // killed
	close(release)
	second := spawnAnswerd(t, env)
	url := second.url(t)
	frames := readStream(t, get(t, c, url+"/runs/"+run.RunID+"/events"))
	if last := frames[len(frames)-1]; last.Event != "final_answer" || !strings.Contains(string(last.Data), `"Hello."`) {
		t.Errorf("got the last event %s %s, want final_answer, Hello.", last.Event, last.Data)
	}
	if got, want := askedHooks(hooks), "model_result pre_model_call run_end"; got != want {
		t.Errorf("got hooks %s, want %s", got, want)
	}
	if n := hooks.Repeated(); n != 1 {
		t.Errorf("got %d deliveries again, want run_end once", n)
	}
	if n := len(w.model.Requests()); n != 1 {
		t.Errorf("got %d model requests, want 1", n)
	}
}
