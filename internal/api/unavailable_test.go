package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/api"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp"
	"answerd/internal/mcp/config"
)

// newServiceWithDownServer returns a service whose agent has the fixture's server under the name calc, and a server
// crm that refuses every connection.
func newServiceWithDownServer(t *testing.T, script llmtest.Script) *service {
	t.Helper()
	crm := httptest.NewServer(http.NotFoundHandler())
	crm.Close()
	return newService(t, script, func(o *agent.Options) {
		calc := agenttest.NewFixture(t, script, nil)
		tools, err := mcp.New([]config.Server{
			{Name: "calc", Type: config.TypeHTTP, URL: calc.Tools.URL},
			{Name: "crm", Type: config.TypeHTTP, URL: crm.URL, ToolPrefix: "crm"},
		}, mcp.Options{Logger: slog.New(slog.DiscardHandler), StartWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tools.Close() })
		tools.Tools(t.Context()) // waits for the first attempts
		o.Tools = tools
	}, nil)
}

func TestUnavailableServersAreNamed(t *testing.T) {
	s := newServiceWithDownServer(t, addingModel())
	const want = "[crm]"
	got := decodeResponse[answer](t, s.do(t, "POST", "/answer", question), 200)
	if names := fmt.Sprint(got.Metadata.UnavailableServers); names != want {
		t.Errorf("metadata.unavailable_servers = %s, want %s", names, want)
	}
	all := readFrames(t, s.do(t, "GET", "/runs/"+got.RunID+"/events", ""), "")
	var start event.Start
	if err := json.Unmarshal(all[0].Data, &start); err != nil {
		t.Fatal(err)
	}
	if names := fmt.Sprint(start.UnavailableServers); names != want {
		t.Errorf("start has unavailable_servers %s, want %s", names, want)
	}
	narrowed := decodeResponse[answer](t, s.do(t, "POST", "/answer", `{"question":"What is 1 + 2?","servers":["calc"]}`), 200)
	if names := narrowed.Metadata.UnavailableServers; names != nil {
		t.Errorf("metadata.unavailable_servers of a question for calc = %v, want none", names)
	}
}

// logThatReturns is a log that is away until a run has settled.
type logThatReturns struct{ event.Log }

func (l logThatReturns) Run(ctx context.Context, id string) (event.Run, error) {
	run, err := l.Log.Run(ctx, id)
	if err == nil && !run.Last.Settled() {
		return event.Run{}, event.ErrUnavailable
	}
	return run, err
}

// A log with servers elsewhere can be away for seconds, for example while they elect a leader.
func TestAnswerWaitsWhileTheLogIsUnavailable(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.Log = logThatReturns{o.Log} })
	if got := decodeResponse[answer](t, s.do(t, "POST", "/answer", question), 200); got.Answer == "" {
		t.Errorf("answer = %+v, want a text", got)
	}
}

// overtakenLog is a log in which another process gives up waiting for the first event of each run.
type overtakenLog struct{ event.Log }

func (overtakenLog) Append(context.Context, string, event.Body) (int64, error) {
	return 0, event.ErrFenced
}

func TestQuestionThatWasNotStartedInTimeNamesNoEarlierRequest(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), func(o *agent.Options) { o.Log = overtakenLog{o.Log} }, nil)
	resp := s.do(t, "POST", "/answer", question)
	if p := wantProblem(t, resp, http.StatusServiceUnavailable, "overloaded"); strings.Contains(p.Detail, "earlier request") {
		t.Errorf("detail of a question without Idempotency-Key = %q, want none about an earlier request", p.Detail)
	}
}

func TestQuestionForUnavailableToolsAsksNoModel(t *testing.T) {
	s := newServiceWithDownServer(t, addingModel())
	for _, c := range []struct {
		path, body string
		refused    bool
	}{
		{"/answer", `{"question":"?","servers":["crm"]}`, true},
		{"/answer", `{"question":"?","tools":["crm_*"]}`, true},
		{"/answer/stream", `{"question":"?","servers":["crm"],"tool_choice":"required"}`, true},
		{"/v1/chat/completions", `{"model":"scripted","messages":[{"role":"user","content":"?"}],"tool_choice":{"type":"function","function":{"name":"crm_add"}},"tools":[]}`, true},
		{"/answer", `{"question":"?","servers":["crm","calc"]}`, false},
		{"/answer", `{"question":"?","tool_choice":"required"}`, false},
		{"/answer", `{"question":"?","servers":["crm"],"tool_choice":"none"}`, false},
		{"/answer", `{"question":"?","servers":[]}`, false},
	} {
		asked := len(s.Model.Requests())
		resp := s.do(t, "POST", c.path, c.body)
		asked = len(s.Model.Requests()) - asked

		if !c.refused {
			if resp.StatusCode != http.StatusOK {
				t.Errorf("POST %s %s = %d, want 200", c.path, c.body, resp.StatusCode)
			}
			continue
		}

		if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
			t.Errorf("POST %s %s = %d with Retry-After %q, want 503 with one", c.path, c.body, resp.StatusCode, resp.Header.Get("Retry-After"))
		}
		if asked != 0 {
			t.Errorf("POST %s %s asked the model %d times, want 0", c.path, c.body, asked)
		}
		if strings.HasPrefix(c.path, "/v1/") {
			continue
		}
		if p := wantProblem(t, resp, http.StatusServiceUnavailable, "tools_unavailable"); !strings.Contains(p.Detail, "crm") {
			t.Errorf("detail of POST %s %s = %q, want it to name crm", c.path, c.body, p.Detail)
		}
	}
}

func TestRequestMetadataComesBack(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	type withMetadata struct {
		RunID           string            `json:"run_id"`
		RequestMetadata map[string]string `json:"request_metadata"`
	}
	const want = "map[team:<a&b>]"
	got := decodeResponse[withMetadata](t, s.do(t, "POST", "/answer", `{"question":"What is 1 + 2?","metadata":{"team":"<a&b>"}}`), 200)
	if fmt.Sprint(got.RequestMetadata) != want {
		t.Errorf("POST /answer has request_metadata %v, want %s", got.RequestMetadata, want)
	}
	run := decodeResponse[withMetadata](t, s.do(t, "GET", "/runs/"+got.RunID, ""), 200)
	if fmt.Sprint(run.RequestMetadata) != want {
		t.Errorf("GET /runs/{run_id} has request_metadata %v, want %s", run.RequestMetadata, want)
	}
}
