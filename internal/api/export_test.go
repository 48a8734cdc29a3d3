package api_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	contract "answerd/api"
	"answerd/internal/agent"
	"answerd/internal/api"
	"answerd/internal/event"
	"answerd/internal/export"
	"answerd/internal/llm/llmtest"
	"answerd/internal/receipt"
)

// getExport returns the export of a run, which must conform to the schema that the service serves.
func getExport(t *testing.T, s *service, run string) *export.Document {
	t.Helper()
	resp := s.do(t, "GET", "/runs/"+run+"/export", "")
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET export = %d %v %s, want %d", resp.StatusCode, err, body, http.StatusOK)
	}
	text, err := fs.ReadFile(contract.OpenAPI, "openapi/export.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	validator, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		t.Fatal(err)
	}
	if err := validator.Validate(value); err != nil {
		t.Errorf("the export violates its schema: %v, want a document that conforms to it\n%s", err, body)
	}
	doc, err := export.Decode(body)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestExportHasTheWholeRun(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), func(o *agent.Options) { o.RecordModelRequests = true }, nil)
	run := s.StartRun(t, agent.Request{Question: "What is 1 + 2?", History: []agent.Message{{Role: "user", Content: "Hello"}, {Role: "assistant", Content: "Hello."}}})
	events := s.Events(t, run.ID)
	doc := getExport(t, s, run.ID)
	if len(doc.Missing) > 0 {
		t.Errorf("missing = %q, want nothing", doc.Missing)
	}
	if len(doc.Events) != len(events) {
		t.Errorf("events = %d, want %d", len(doc.Events), len(events))
	}
	if doc.Request.Question != "What is 1 + 2?" || doc.Request.Model != "scripted" || doc.Run.Status != "completed" {
		t.Errorf("request = %+v, run = %+v, want the question, the model and completed", doc.Request, doc.Run)
	}
	if len(doc.Messages) != 3 || doc.History != 2 || doc.Messages[2].Text != "What is 1 + 2?" {
		t.Errorf("messages = %+v, history = %d, want two of the history and the question", doc.Messages, doc.History)
	}
	if doc.SystemPrompt == nil || !strings.Contains(doc.SystemPrompt.Text, "assistant") {
		t.Errorf("system prompt = %+v, want the rendered text", doc.SystemPrompt)
	}

	var add *export.Tool
	for i, tool := range doc.Tools {
		if tool.Name == "add" {
			add = &doc.Tools[i]
		}
		if tool.Hash() != tool.SHA256 {
			t.Errorf("the hash of %s = %s, want %s", tool.Name, tool.Hash(), tool.SHA256)
		}
	}
	if add == nil || add.Version == "" || !strings.Contains(string(add.InputSchema), `"a"`) {
		t.Errorf("tool add = %+v, want its definition and its version", add)
	}
	if n := len(doc.ModelRequests); n != 2 || len(doc.ModelRequests[1].Messages) != 6 {
		t.Errorf("model requests = %+v, want two, the second one with six messages", doc.ModelRequests)
	}
}

func TestExportOfAnActiveRunIsAConflict(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"}), llmtest.Says("Done.")), nil, nil)
	run := s.StartRun(t, agent.Request{})
	<-s.Tools.Entered
	wantProblem(t, s.do(t, "GET", "/runs/"+run.ID+"/export", ""), http.StatusConflict, "conflict")
	wantProblem(t, s.do(t, "GET", "/runs/run_none/export", ""), http.StatusNotFound, "not_found")
}

// A run that cost much before costs little more: tools and prompts are stored once for all runs.
func TestRunsStoreLittleMoreThanTheirEvents(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	var events, more int
	for range 5 {
		run := s.StartRun(t, agent.Request{Question: "What is 1 + 2?"})
		for _, e := range s.Events(t, run.ID) {
			events += len(e.AppendJSON(nil))
		}
		notes, err := s.Log.Notes(t.Context(), run.ID)
		if err != nil || len(notes) == 0 {
			t.Fatalf("%d notes, %v, want some", len(notes), err)
		}
		for _, n := range notes {
			more += len(n.Data)
		}
	}

	t.Logf("events: %d bytes a run; for exports: %d bytes a run", events/5, more/5)
	if more/5 > 300 {
		t.Errorf("%d bytes a run are stored for exports, want at most 300", more/5)
	}
}

func TestExportHasChildRuns(t *testing.T) {
	t.Parallel()
	s := newService(t, func(r llmtest.Request) llmtest.Answer {
		if r.Messages[0].Content == "You are b." && r.Messages[len(r.Messages)-1].Role == "user" {
			return llmtest.Calls(llmtest.Call{Name: "ask_a", Args: `{"question":"Why?"}`})
		}
		return llmtest.Says("{}")
	}, func(o *agent.Options) {
		withAgents(o)
		o.Agents[1].Tools = nil
	}, nil)

	run := s.StartRun(t, agent.Request{Agent: "b"})
	agentEvents := s.Events(t, run.ID)
	doc := getExport(t, s, run.ID)
	if _, ok := agentEvents[len(agentEvents)-1].Body.(event.FinalAnswer); !ok || len(doc.Children) != 1 || doc.Children[0].Request.Question != "Why?" {
		t.Fatalf("children = %+v, want one, which was asked Why?", doc.Children)
	}
	if c := doc.Children[0]; c.Run.ParentID != run.ID || len(c.Missing) > 0 || c.Request.Level != 1 {
		t.Errorf("child = %+v, missing %q, want a run at level 1 with the parent %s", c.Run, c.Missing, run.ID)
	}
}

// withReceipts makes the service sign receipts with a new key.
func withReceipts(t *testing.T) func(*api.Options) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := receipt.ParseKeys(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	return func(o *api.Options) { o.Receipts = signer }
}

func TestReceiptIsAboutTheExport(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, withReceipts(t))
	run := s.StartRun(t, agent.Request{})
	s.Events(t, run.ID)
	readFile := func(path string) []byte {
		resp := s.do(t, "GET", path, "")
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("GET %s = %d %v %s, want %d", path, resp.StatusCode, err, body, http.StatusOK)
		}
		if got := resp.Header.Get("Cache-Control"); strings.HasPrefix(path, "/runs/") && got != "no-store" {
			t.Errorf("GET %s has Cache-Control %q, want no-store, because it is the caller's alone", path, got)
		}
		return body
	}
	keys, err := receipt.ParseJWKS(readFile("/.well-known/jwks.json"))
	if err != nil {
		t.Fatal(err)
	}
	data := readFile("/runs/" + run.ID + "/export")
	statement, err := receipt.Verify(string(readFile("/runs/"+run.ID+"/receipt")), data, keys)
	if err != nil || statement.Run != run.ID || len(statement.Calls) != 1 {
		t.Errorf("statement = %+v, %v, want one about the run with its call", statement, err)
	}

	without := newService(t, addingModel(), nil, nil)
	run = without.StartRun(t, agent.Request{})
	without.Events(t, run.ID)
	wantProblem(t, without.do(t, "GET", "/runs/"+run.ID+"/receipt", ""), http.StatusNotFound, "not_found")
	wantProblem(t, without.do(t, "GET", "/.well-known/jwks.json", ""), http.StatusNotFound, "not_found")
}

// disconnectedWriter is the ResponseWriter of a caller who has left: the header is accepted, and the body is not.
type disconnectedWriter struct{ *httptest.ResponseRecorder }

func (disconnectedWriter) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestDocumentsEndQuietlyWhenTheCallerHasLeft(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	configure := withReceipts(t)
	s := newService(t, addingModel(), nil, func(o *api.Options) {
		configure(o)
		o.OpenAPI, o.Logger = contract.OpenAPI, slog.New(slog.NewTextHandler(&log, nil))
	})

	run := s.StartRun(t, agent.Request{})
	s.Events(t, run.ID)

	for path, contentType := range map[string]string{
		"/runs/" + run.ID + "/export": "application/json", "/runs/" + run.ID + "/receipt": "application/jose",
		"/.well-known/jwks.json": "application/jwk-set+json", "/openapi.yaml": "application/yaml",
	} {
		w := disconnectedWriter{httptest.NewRecorder()}
		s.handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1"+path, nil))
		if got := w.Header().Get("Content-Type"); w.Code != http.StatusOK || got != contentType {
			t.Errorf("GET %s = %d with content type %q, want 200 with %q and no problem document after it", path, w.Code, got, contentType)
		}
	}

	if log.Len() > 0 {
		t.Errorf("the log has\n%s\nwant nothing", &log)
	}
}
