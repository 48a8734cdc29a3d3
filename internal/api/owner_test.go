package api_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"

	"answerd/internal/api"
)

// allRoutes returns all routes of a service, as "METHOD /path/{id}".
func allRoutes(t *testing.T, s *service) (all []string) {
	t.Helper()
	err := chi.Walk(s.handler.Handler.(chi.Routes), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if method != http.MethodHead {
			all = append(all, method+" "+route)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// CVE-2026-45349, CVE-2026-52870: a caller who knows the id of another caller's run gets the same
// answer as for an id that does not exist, and changes nothing. The owner is the issuer and the
// subject. A token of another issuer is refused, so the same subject of that issuer is not tested.
func TestRunsOfOtherCallersDoNotExist(t *testing.T) {
	t.Parallel()
	m := newMint(t)
	s := newService(t, addingModel(), nil, func(o *api.Options) { o.Verifier = m.newVerifier(t, nil) }, addNeedsApproval)
	ada, eve := []string{"Authorization", "Bearer " + m.validToken(nil, nil)}, []string{"Authorization", "Bearer " + m.validToken(nil, fields{"sub": "eve"})}

	path, position, waits := readInterrupt(t, s.do(t, "POST", "/answer/stream", question, append(ada, "Idempotency-Key", "k")...))
	run, _, _ := strings.Cut(position, ":")
	response := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("x"), ada...), 200).ID
	readFrames(t, s.do(t, "POST", "/api/chat", chatBody("c", "1 + 2?"), ada...), "")
	readFrames(t, s.do(t, "POST", "/api/chat", chatBody("chat-of-ada", "1 + 2?"), ada...), "")
	readFrames(t, s.do(t, "POST", "/agui", aguiInput("r", ""), ada...), "")
	approval := `{"id":"` + waits.ID + `","approved":true}`
	noRun := run[:len("run_")] + "aaaaaaaa" + run[len("run_aaaaaaaa"):] // of this process, which its last characters name

	// Where the id of a run is, by route: in the path, a header or the body.
	formats := map[string][]struct{ path, body, header, id, none string }{
		"GET /runs/{run_id}":                          {{"/runs/ID", "", "", run, "run_none"}},
		"DELETE /runs/{run_id}":                       {{"/runs/ID", "", "", run, "run_none"}},
		"GET /runs/{run_id}/events":                   {{"/runs/ID/events", "", "", run, "run_none"}, {"/runs/ID/events?after=99", "", "", run, "run_none"}, {"/runs/ID/events", "", "ID:1", run, "run_none"}},
		"GET /runs/{run_id}/results/{call_id}":        {{"/runs/ID/results/" + waits.CallID, "", "", run, "run_none"}},
		"GET /runs/{run_id}/export":                   {{"/runs/ID/export", "", "", run, "run_none"}},
		"GET /runs/{run_id}/receipt":                  {{"/runs/ID/receipt", "", "", run, "run_none"}},
		"POST /runs/{run_id}/input":                   {{"/runs/ID/input", approval, "", run, "run_none"}},
		"POST /runs/{run_id}/cancel":                  {{"/runs/ID/cancel", "", "", run, "run_none"}},
		"POST /answer/stream":                         {{"/answer/stream", question, "ID:1", run, "run_none"}},
		"GET /answer/stream":                          {{"/answer/stream", "", "ID:1", run, "run_none"}},
		"GET /threads/{thread_id}":                    {{"/threads/ID", "", "", "chat-of-ada", "none"}},
		"PATCH /threads/{thread_id}":                  {{"/threads/ID", `{"title":"mine"}`, "", "chat-of-ada", "none"}},
		"DELETE /threads/{thread_id}":                 {{"/threads/ID", "", "", "chat-of-ada", "none"}},
		"GET /threads":                                {{"/threads", "", "", "", ""}},
		"GET /runs":                                   {{"/runs?thread_id=ID", "", "", "c", "none"}, {"/runs?status=suspended", "", "", "", ""}},
		"GET /v1/responses/{response_id}":             {{"/v1/responses/ID", "", "", response, "resp_none"}, {"/v1/responses/ID?stream=true", "", "", response, "resp_none"}, {"/v1/responses/ID", "", "", run, noRun}, {"/v1/responses/ID?stream=true", "", "", run, noRun}},
		"DELETE /v1/responses/{response_id}":          {{"/v1/responses/ID", "", "", response, "resp_none"}, {"/v1/responses/ID", "", "", run, noRun}},
		"GET /v1/responses/{response_id}/input_items": {{"/v1/responses/ID/input_items", "", "", response, "resp_none"}, {"/v1/responses/ID/input_items", "", "", run, noRun}},
		"POST /v1/responses/{response_id}/cancel":     {{"/v1/responses/ID/cancel", "", "", response, "resp_none"}, {"/v1/responses/ID/cancel", "", "", run, noRun}},
		"POST /v1/responses":                          {{"/v1/responses", responsesBody("y", `,"previous_response_id":"ID"`), "", response, "resp_none"}, {"/v1/responses", responsesBody("y", `,"previous_response_id":"ID"`), "", run, noRun}, {"/v1/responses", responsesBody(`[{"type":"mcp_approval_response","approval_request_id":"ID","approve":true}]`), "", "mcpr_" + strings.TrimPrefix(response, "resp_"), "mcpr_none"}},
		"GET /api/chat/{id}/stream":                   {{"/api/chat/ID/stream", "", "", "c", "none"}, {"/api/chat/ID/stream", "", "", run, noRun}},
		"POST /api/chat/{id}/stop":                    {{"/api/chat/ID/stop", "", "", "c", "none"}, {"/api/chat/ID/stop", "", "", run, noRun}},
		"POST /api/chat":                              {{"/api/chat", chatBody("ID", "1 + 2?"), "", run, noRun}},
		"POST /agui":                                  {{"/agui", `{"threadId":"ID","runId":"r2","resume":[{"interruptId":"` + waits.ID + `","status":"cancelled"}]}`, "", "t", "none"}},
	}
	// These routes have no id of something that a caller owns.
	shared := []string{"{name}", "{model}", "/agents/{id}", "/agui/{agent}", "{file}", "/console/*"}
	for _, route := range allRoutes(t, s) {
		named := strings.Contains(route, "{") || strings.Contains(route, "*")
		for _, id := range shared {
			named = named && !strings.Contains(route, id)
		}
		if named && formats[route] == nil {
			t.Errorf("%s is not in the table, want one", route)
		}
	}
	for route, ways := range formats {
		method, _, _ := strings.Cut(route, " ")
		for _, way := range ways {
			responseOf := func(id string) (int, string) {
				header := eve
				if way.header != "" {
					header = append([]string{"Last-Event-ID", strings.ReplaceAll(way.header, "ID", id)}, eve...)
				}
				resp := s.do(t, method, strings.ReplaceAll(way.path, "ID", id), strings.ReplaceAll(way.body, "ID", id), header...)
				body, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				text := string(body)
				if len(id) > 1 {
					text = strings.ReplaceAll(text, id, "ID")
				}
				return resp.StatusCode, text
			}
			status, body := responseOf(way.id)
			noStatus, noBody := responseOf(way.none)
			if status != noStatus || body != noBody {
				t.Errorf("%s: another's is %d %s, none is %d %s, want %d and %s", route, status, body, noStatus, noBody, noStatus, noBody)
			}
			if (strings.Contains(route, "_id}") || way.none == noRun) && status != http.StatusNotFound || strings.Contains(body, "1 + 2") {
				t.Errorf("%s: %d %s, want 404 for an ID, nothing of another's question", route, status, body)
			}
		}
	}
	// The same key of another caller is another run.
	mine, other := decodeResponse[answer](t, s.do(t, "GET", path, "", ada...), 200), readFrames(t, s.do(t, "POST", "/answer/stream", question, append(eve, "Idempotency-Key", "k")...), "")
	if mine.Status != "suspended" || strings.HasPrefix(other[0].ID, run) {
		t.Errorf("the run is %s; the stranger's stream begins with %s, want Status suspended, ID not starting with %s", mine.Status, other[0].ID, run)
	}
	readFrames(t, s.do(t, "POST", path+"/input", approval, append(ada, "Accept", "text/event-stream")...), "final_answer")
}

// llama.cpp#25790: what a page of another site makes a browser send reaches nothing, whether
// callers bring tokens or not, GET included: a question asked by an image's address would
// run tools too. Pages look at what is public, and browsers come back with a state.
func TestCrossSiteRequestsReachNothing(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, func(o *api.Options) {
		o.Metrics, o.Console = http.NotFoundHandler(), http.NotFoundHandler()
	})

	public := []string{"/healthz", "/readyz", "/metrics", "/openapi.yaml", "/openapi/{file}", "/oauth/callback", "/", "/console/*", "/.well-known/jwks.json", "/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"}
	open := make(map[string]bool)
	for _, path := range public {
		open["GET "+path] = true
	}

	for _, route := range allRoutes(t, s) {
		method, path, _ := strings.Cut(route, " ")
		for name, header := range map[string][]string{
			"a page of another site": {"Sec-Fetch-Site", "cross-site"}, "a sibling": {"Sec-Fetch-Site", "same-site"}, "an older browser": {"Origin", "https://evil.example"},
			"a sandboxed frame": {"Origin", "null"}, "one that lies": {"Origin", s.URL, "Sec-Fetch-Site", "cross-site"}, "another port": {"Origin", "http://127.0.0.1:1"},
		} {
			body := ""
			if method == http.MethodPost {
				body = question
			}
			resp := s.do(t, method, strings.Replace(path, "{", "x{", 1)+"?question=a", body, header...)
			if refused := resp.StatusCode == http.StatusForbidden; refused == open[route] {
				t.Errorf("route %s, %s: %d, refused %v, want other than %v", route, name, resp.StatusCode, refused, open[route])
			}
		}
	}

	if len(s.Model.Requests()) != 0 {
		t.Errorf("a question was asked: %d requests, want 0", len(s.Model.Requests()))
	}
}

// A thread's id is the caller's own: the same id of another caller is another thread, in every format.
func TestThreadOfAnotherCallerIsAnotherThread(t *testing.T) {
	t.Parallel()
	m := newMint(t)

	s := newService(t, countingModel, nil, func(o *api.Options) { o.Verifier = m.newVerifier(t, nil) })
	ada, eve := []string{"Authorization", "Bearer " + m.validToken(nil, nil)}, []string{"Authorization", "Bearer " + m.validToken(nil, fields{"sub": "eve"})}
	for _, f := range threadFormats {
		ask := func(question string, who []string) {
			resp := s.do(t, "POST", f.path, f.body(f.name, question, ""), append(who, f.header...)...)
			if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s %s, %v, want 200", f.name, resp.Status, body, err)
			}
		}
		ask("canary", ada)
		ask("What did I ask?", eve)
		if got, want := s.lastConversation(), "user:What did I ask?"; got != want {
			t.Errorf("%s: conversation of the other caller %s, want %s", f.name, got, want)
		}
	}

	for _, th := range s.threadList(t, "", eve...).Threads {
		if th.Title != "What did I ask?" || th.Runs != 1 {
			t.Errorf("the other caller's thread %+v, want their own question only", th)
		}
	}

	if resp := s.do(t, "DELETE", "/threads/native", "", eve...); resp.StatusCode != http.StatusNoContent {
		t.Errorf("DELETE of their own: %s, want 204", resp.Status)
	}
	if got := s.threadList(t, "?q=CANARY", ada...).Threads; len(got) != len(threadFormats) {
		t.Errorf("%d threads are left, want %d", len(got), len(threadFormats))
	}
}
