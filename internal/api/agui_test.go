package api_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

type aguiEvent struct {
	Type, ToolCallID, Delta string
	Outcome                 struct {
		Type       string
		Interrupts []struct{ ID, Reason, ToolCallID string }
	}
}

// readAGUIRun reads the stream of an AG-UI run: its events, and their types in one line.
func readAGUIRun(t *testing.T, resp *http.Response) (list []aguiEvent, types string) {
	t.Helper()
	var names []string
	for _, f := range readFrames(t, resp, "") {
		var e aguiEvent
		if err := json.Unmarshal(f.Data, &e); err != nil || f.ID != "" || f.Event != "" {
			t.Fatalf("%+v: %v, want ID empty, Event empty, no error", f, err)
		}
		list, names = append(list, e), append(names, e.Type)
	}
	return list, strings.Join(names, " ")
}

func aguiInput(run, members string) string {
	return `{"threadId":"t","runId":"` + run + `","messages":[{"id":"u","role":"user","content":"And?"}]` + members + `}`
}

// Two calls wait, one for an approval and one for a form: the next AG-UI run answers both,
// or neither.
func TestAGUIRunResumesWhenAllInterruptsAreAnswered(t *testing.T) {
	t.Parallel()
	script := llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "echo", Args: `{"text":"x"}`}, llmtest.Call{Name: "ask"}), llmtest.Says("Done."))
	s := newService(t, script, nil, nil, func(c *config.Server) { c.ApproveTools = []string{"echo"} })
	first, types := readAGUIRun(t, s.do(t, "POST", "/agui", aguiInput("r1", "")))
	end := first[len(first)-1]
	if !strings.HasPrefix(types, "RUN_STARTED CUSTOM STEP_STARTED ") || end.Outcome.Type != "interrupt" || len(end.Outcome.Interrupts) != 2 {
		t.Fatalf(`types %s %+v, want types starting with "RUN_STARTED CUSTOM STEP_STARTED ", Outcome.Type interrupt, 2 Outcome.Interrupts`, types, end)
	}

	answers := make(map[string]string)
	for _, i := range end.Outcome.Interrupts {
		answers[i.Reason] = `{"interruptId":"` + i.ID + `","status":"resolved","payload":`
	}

	yes, form := answers["tool_call"]+`{"approved":true}}`, answers["input_required"]+`{"people":2}}`
	resume := func(list ...string) string { return aguiInput("r2", `,"resume":[`+strings.Join(list, ",")+`]`) }
	for body, pointer := range map[string]string{
		resume(yes): "/resume", resume(form): "/resume", resume(form, answers["tool_call"]+`{}}`): "/resume/1/payload",
	} {
		if p := wantProblem(t, s.do(t, "POST", "/agui", body), 400, "invalid_request"); len(p.Errors) != 1 || p.Errors[0].Pointer != pointer {
			t.Errorf("%s: %+v, want 1 Errors with Pointer %s", body, p, pointer)
		}
	}

	// Where one does not fit, none is taken.
	for pointer, body := range map[string]string{
		"/resume/1/payload/people":          resume(yes, answers["input_required"]+`{"people":"x"}}`),
		"/resume/0/payload/editedArgs/text": resume(answers["tool_call"]+`{"approved":true,"editedArgs":{"text":{}}}}`, form),
		"/resume/0/payload/editedArgs/max":  resume(answers["tool_call"]+`{"approved":true,"editedArgs":{"text":"","max":1}}}`, form),
	} {
		if p := wantProblem(t, s.do(t, "POST", "/agui", body), 422, "unprocessable"); len(p.Errors) != 1 || p.Errors[0].Pointer != pointer {
			t.Errorf("%s: %+v, want 1 Errors with Pointer %s", body, p, pointer)
		}
	}

	rest, types := readAGUIRun(t, s.do(t, "POST", "/agui", resume(yes, form)))
	if strings.Contains(types, "TOOL_CALL_START") || rest[len(rest)-1].Outcome.Type != "success" {
		t.Errorf("types %s %+v, want types without TOOL_CALL_START, Outcome.Type success", types, rest[len(rest)-1])
	}
	wantProblem(t, s.do(t, "POST", "/agui", resume(yes, form)), 409, "conflict")
}

func TestRunAgentInputIsValidated(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	for body, pointer := range map[string]string{
		`{"threadId":"t"}`: "/runId",
		aguiInput("r", `,"forwardedProps":{"answerd":{"servers":["nosuch"]}}`): "/forwardedProps/answerd/servers/0",
		aguiInput("r", `,"forwardedProps":{"answerd":{"x":1}}`):                "/forwardedProps/answerd/x",
		aguiInput("r", `,"tools":[{"name":"a b"}]`):                            "/tools/0/name",
	} {
		if p := wantProblem(t, s.do(t, "POST", "/agui", body), 400, "invalid_request"); len(p.Errors) != 1 || p.Errors[0].Pointer != pointer {
			t.Errorf("%s: %+v, want 1 Errors with Pointer %s", body, p, pointer)
		}
	}
	if c := decodeResponse[map[string]any](t, s.do(t, "GET", "/agui/capabilities", ""), 200); c["transport"] == nil {
		t.Errorf(`c %v, want ["transport"] non-nil`, c)
	}
}

// Clients offer their users only the kinds of files that the capabilities declare.
func TestAGUICapabilitiesDeclareEveryKindOfFileThatIsRead(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Says("Yes.")), func(o *agent.Options) {
		o.Profiles = map[string]llm.Profile{"scripted": {ID: "scripted", PDF: true}}
	}, nil)
	readAGUIRun(t, s.do(t, "POST", "/agui", `{"threadId":"t","runId":"r","messages":[{"id":"m","role":"user","content":[`+
		`{"type":"document","source":{"type":"data","mimeType":"application/pdf","value":"JVBERi0xLjQK"}}]}]}`))
	if body := string(s.Model.Requests()[0].Body); !strings.Contains(body, "data:application/pdf;base64,JVBERi0xLjQK") {
		t.Errorf("got the request %s, want the PDF in it", body)
	}
	got := decodeResponse[struct {
		Multimodal struct{ Input map[string]bool }
	}](t, s.do(t, "GET", "/agui/capabilities", ""), 200).Multimodal.Input
	if want := map[string]bool{"image": true, "audio": true, "pdf": true}; !maps.Equal(got, want) {
		t.Errorf("got the kinds %v, want %v", got, want)
	}
}
