package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/auth"
	"answerd/internal/auth/sealed"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/oauth/oauthtest"
)

// signInServer is an MCP server whose users have to sign in.
type signInServer struct {
	as        *oauthtest.Server
	url       string
	toolCalls atomic.Int64 // calls of its tool
}

func newSignInServer(t *testing.T) *signInServer {
	t.Helper()
	c := &signInServer{as: oauthtest.New(t)}
	server := sdk.NewServer(&sdk.Implementation{Name: "crm", Version: "1"}, nil)
	sdk.AddTool(server, &sdk.Tool{Name: "who"}, func(_ context.Context, r *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
		c.toolCalls.Add(1)
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "You are " + r.Extra.Header.Get("X-Subject")}}}, nil, nil
	})
	c.url = c.as.Protect(t, sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{Stateless: true})).URL + "/mcp"
	return c
}

// newSignIns returns a store of sign-ins that processes share.
func newSignIns(t *testing.T) *sealed.Store {
	t.Helper()
	s, err := sealed.NewInMemory(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newProcess starts a process that uses the crm. signIns may be nil.
func (c *signInServer) newProcess(t *testing.T, script llmtest.Script, signIns *sealed.Store, set func(*agent.Options)) *agenttest.Fixture {
	t.Helper()
	tools, err := mcp.New([]config.Server{{Name: "crm", URL: c.url, ToolPrefix: "crm", Auth: config.AuthAuthorizationCode}}, mcp.Options{
		Logger: slog.New(slog.DiscardHandler), StartWait: time.Minute, RedirectURL: "http://127.0.0.1:7/oauth/callback", SignIns: signIns,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tools.Close() })
	return agenttest.NewFixture(t, script, func(o *agent.Options) {
		o.Tools = tools
		if set != nil {
			set(o)
		}
	})
}

// listTools makes the tools known to a process, as a user who has signed in before would.
func (c *signInServer) listTools(t *testing.T, h *agenttest.Fixture) {
	t.Helper()
	bob := auth.Identity{Subject: "bob"}
	h.ToolsFor(t.Context(), bob)
	call := mcp.Call{Tool: "crm_sign_in", Principal: bob, Waiter: "nobody"}
	res, err := h.Agent.Tools.Call(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	if res.SignIn != nil {
		c.visitPage(t, h, res.SignIn.URL)
		call.SignIn = res.SignIn
		if _, err := h.Agent.Tools.Call(t.Context(), call); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := h.Agent.Tools.Tool("crm_who"); !ok {
		t.Fatal("crm_who is unknown, want it known")
	}
}

// visitPage signs in at page and follows the redirect to the process h. It returns the query of that redirect.
func (c *signInServer) visitPage(t *testing.T, h *agenttest.Fixture, page string) url.Values {
	t.Helper()
	query := oauthtest.Browse(t, page)
	if found, err := h.FinishSignIn(t.Context(), query); !found || err != nil {
		t.Fatalf("FinishSignIn = %v, %v, want true and no error", found, err)
	}
	return query
}

func whoScript() llmtest.Script {
	return llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "crm_who"}), llmtest.Says("Done."))
}

// TestSignInIsCompletedInAnotherProcess suspends a run for a sign-in. Then its process ends, and the browser comes back
// to another process. That one makes the call, once, and no secret is in the log.
func TestSignInIsCompletedInAnotherProcess(t *testing.T) {
	for tool, want := range map[string]string{"crm_who": "You are ann", "crm_sign_in": "from the next question on: crm_who"} {
		t.Run(tool, func(t *testing.T) {
			crm, log, signIns := newSignInServer(t), newMemoryLog(), newSignIns(t)
			var lines bytes.Buffer
			script := llmtest.Turns(llmtest.Calls(llmtest.Call{Name: tool}), llmtest.Says("Done."))
			a := crm.newProcess(t, script, signIns, func(o *agent.Options) {
				withDurableLog(log)(o)
				o.Logger = slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug}))
			})
			if tool == "crm_who" {
				crm.listTools(t, a)
			}

			// A run asks its person to sign in, and its process ends.
			run := a.StartRun(t, agent.Request{Interactive: true}).ID
			waits := waitUntilSuspended(t, a, run, 1)
			i := waits[0]
			if i.HeldOpen || i.Kind != event.KindElicitation || i.Mode != "url" || i.Tool != tool {
				t.Errorf("the interrupt is %+v, want a page to open for %s, not held open", i, tool)
			}
			if !strings.HasPrefix(i.URL, crm.as.URL) || i.ExpiresAt-i.CreatedAt > (10*time.Minute).Milliseconds() {
				t.Errorf("the interrupt is %+v, want a page of the authorization server, for at most 10 min", i)
			}
			drainAtOnce(a)

			// The person signs in, and another process continues the run.
			b := crm.newProcess(t, script, signIns, withDurableLog(log))
			query := crm.visitPage(t, b, waits[0].URL)
			events := b.Events(t, run)
			if got, want := typesFrom(events, "suspended"), "suspended elicitation_resolved tool_result step_start text_start text_delta text_end step_end final_answer"; got != want {
				t.Errorf("events after the sign-in: %s, want %s", got, want)
			}
			if r := agenttest.EventsOf[event.ToolResult](events); len(r) != 1 || !strings.Contains(string(r[0].Payload), want) {
				t.Errorf("results %+v, want one with %q", r, want)
			}
			if n := crm.toolCalls.Load(); n != map[string]int64{"crm_who": 1}[tool] {
				t.Errorf("%d calls of the server's tool, want one of crm_who", n)
			}
			if found, err := b.FinishSignIn(t.Context(), query); found || err != nil {
				t.Errorf("a second FinishSignIn = %v, %v, want false", found, err)
			}

			// No secret of the sign-in is in the events, the notes or the log.
			notes, err := log.Notes(t.Context(), run)
			if err != nil {
				t.Fatal(err)
			}
			secrets := []string{"canary", query.Get("code")}
			for _, r := range crm.as.Granted("authorization_code") {
				secrets = append(secrets, r.Form.Get("code_verifier"))
			}
			for _, secret := range secrets {
				for _, e := range events {
					if bytes.Contains(e.JSON, []byte(secret)) {
						t.Errorf("the event %s has %q, want no secret of the sign-in", e.JSON, secret)
					}
				}
				for _, n := range notes {
					if bytes.Contains(n.Data, []byte(secret)) {
						t.Errorf("the note %s has %q, want no secret of the sign-in", n.Data, secret)
					}
				}
				if strings.Contains(lines.String(), secret) {
					t.Errorf("the log has %q, want no secret of the sign-in", secret)
				}
			}
		})
	}
}

// TestSignInWhoseUserAnswersFirst lets the person say that they have signed in before their browser is
// back, at a process that does not know the tools.
func TestSignInWhoseUserAnswersFirst(t *testing.T) {
	t.Parallel()
	crm, log, signIns := newSignInServer(t), newMemoryLog(), newSignIns(t)
	a := crm.newProcess(t, whoScript(), signIns, withDurableLog(log))
	crm.listTools(t, a)
	run := a.StartRun(t, agent.Request{Interactive: true}).ID
	waits := waitUntilSuspended(t, a, run, 1)
	drainAtOnce(a)
	b := crm.newProcess(t, whoScript(), signIns, withDurableLog(log))
	answerInterrupt(t, b, run, agent.Input{ID: waits[0].ID, Action: "accept"})
	crm.visitPage(t, b, waits[0].URL)
	events := b.Events(t, run)
	if r := agenttest.EventsOf[event.ToolResult](events); len(r) != 1 || !strings.Contains(string(r[0].Payload), "You are ann") {
		t.Errorf("results %+v, want one of ann: %s", r, agenttest.TypesOf(events))
	}
}

// TestSignInThatIsRefusedEndsItsCall checks the ways in which a person does not sign in.
func TestSignInThatIsRefusedEndsItsCall(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refuse func(*testing.T, *signInServer, *agenttest.Fixture, string, event.Interrupt)
		set    func(*agent.Options)
		want   string
	}{
		"declined": {func(t *testing.T, _ *signInServer, h *agenttest.Fixture, run string, i event.Interrupt) {
			answerInterrupt(t, h, run, agent.Input{ID: i.ID, Action: "decline"})
		}, nil, "sign-in required"},
		"expired": {func(*testing.T, *signInServer, *agenttest.Fixture, string, event.Interrupt) {}, func(o *agent.Options) { o.InputTimeout = 50 * time.Millisecond }, "sign-in required"},
		"refused by the authorization server": {func(t *testing.T, c *signInServer, h *agenttest.Fixture, run string, i event.Interrupt) {
			c.as.Lock()
			c.as.Response = func(q url.Values) { q.Del("code"); q.Set("error", "access_denied") }
			c.as.Unlock()
			if found, err := h.FinishSignIn(t.Context(), oauthtest.Browse(t, i.URL)); !found || err == nil {
				t.Errorf("FinishSignIn = %v, %v, want true and an error", found, err)
			}
		}, nil, "signing in failed"},
	} {
		t.Run(name, func(t *testing.T) {
			crm := newSignInServer(t)
			h := crm.newProcess(t, whoScript(), newSignIns(t), func(o *agent.Options) {
				if withDurableLog(newMemoryLog())(o); c.set != nil {
					c.set(o)
				}
			})

			crm.listTools(t, h)
			run := h.StartRun(t, agent.Request{Interactive: true}).ID
			c.refuse(t, crm, h, run, waitUntilSuspended(t, h, run, 1)[0])
			events := h.Events(t, run)
			if failed := agenttest.EventsOf[event.ToolError](events); len(failed) != 1 || failed[0].Kind != "denied" || !strings.Contains(failed[0].Payload, c.want) {
				t.Errorf("errors %+v, want one, denied, with %q", failed, c.want)
			}
			if crm.toolCalls.Load() != 0 {
				t.Errorf("%d calls were made, want 0", crm.toolCalls.Load())
			}
			agenttest.TerminalEvent[event.FinalAnswer](t, events)
		})
	}
}

// TestSignInInMemoryIsAskedForAgain checks a log that is durable while sign-ins are not: another process
// cannot complete the sign-in, so it asks for another one.
func TestSignInInMemoryIsAskedForAgain(t *testing.T) {
	crm, log := newSignInServer(t), newMemoryLog()
	a := crm.newProcess(t, whoScript(), nil, withDurableLog(log))
	crm.listTools(t, a)
	run := a.StartRun(t, agent.Request{Interactive: true}).ID
	first := waitUntilSuspended(t, a, run, 1)[0]
	if !first.HeldOpen {
		t.Errorf("the interrupt is %+v, want it held open", first)
	}
	drainAtOnce(a)
	b := crm.newProcess(t, whoScript(), nil, withDurableLog(log))
	second := waitUntilSuspended(t, b, run, 2)
	if len(second) != 1 || second[0].ID == first.ID || second[0].URL == first.URL {
		t.Fatalf("open interrupts after the change of process: %+v, want another page than %s", second, first.URL)
	}
	if found, _ := b.FinishSignIn(t.Context(), oauthtest.Browse(t, first.URL)); found {
		t.Error("FinishSignIn of the other process's sign-in = true, want false")
	}
	crm.visitPage(t, b, second[0].URL)
	events := b.Events(t, run)
	if r := agenttest.EventsOf[event.ToolResult](events); len(r) != 1 || !strings.Contains(string(r[0].Payload), "You are ann") {
		t.Errorf("results %+v, want one of ann: %s", r, agenttest.TypesOf(events))
	}
}

// TestSignInContinuesWhereverItsProcessDied ends the process after each of its operations. The call is then
// made once, or ends as unknown_outcome.
func TestSignInContinuesWhereverItsProcessDied(t *testing.T) {
	t.Parallel()
	crm, signIns := newSignInServer(t), newSignIns(t)
	origin := &recordingLog{Log: memory.New(memory.Options{})}
	first := crm.newProcess(t, whoScript(), signIns, withDurableLog(origin))
	crm.listTools(t, first)
	run := first.StartRun(t, agent.Request{Interactive: true, Background: true})
	crm.visitPage(t, first, waitUntilSuspended(t, first, run.ID, 1)[0].URL)
	first.Events(t, run.ID)

	sent, required := 0, 0
	for n, operation := range origin.recordedOperations() {
		t.Run(fmt.Sprintf("%02d_%s", n, operation.what), func(t *testing.T) {
			log, before := origin.diedAfter(t, run, n), crm.toolCalls.Load()
			ended, _ := toolCallsSoFar(t, log, run.ID)

			h := crm.newProcess(t, whoScript(), signIns, withDurableLog(log))
			asked := make(map[string]bool)
			events := h.EventsUntil(t, run.ID, func(e event.Event) bool {
				switch b := e.Body.(type) {
				case event.Elicitation:
					asked[b.InterruptID] = true
				case event.Suspended: // the browser has been there, and the process died before it told the run
					if inputs, err := log.Inputs(t.Context(), run.ID, 0); err == nil && len(inputs.Inputs) == 0 {
						answerInterrupt(t, h, run.ID, agent.Input{ID: b.Interrupts[0].ID, Action: "accept"})
					}
				}
				return e.Terminal()
			})

			agenttest.TerminalEvent[event.FinalAnswer](t, events)
			checkOneEndPerCall(t, events)

			made := crm.toolCalls.Load() - before
			failed, results := agenttest.EventsOf[event.ToolError](events), agenttest.EventsOf[event.ToolResult](events)
			switch {
			case ended["crm_who"] > 0:
				if made != 0 || len(results) != 1 {
					t.Errorf("%d calls and results %+v after the call had ended, want none and one", made, results)
				}
			case sent > required:
				if made != 0 || len(failed) != 1 || failed[0].Kind != "unknown_outcome" {
					t.Errorf("%d calls and errors %+v, want none and unknown_outcome", made, failed)
				}
			case made != 1 || len(results) != 1:
				t.Errorf("%d calls and results %+v, want one and one: %s", made, results, agenttest.TypesOf(events))
			}

			if len(asked) > 1 {
				t.Errorf("the person was asked %d times, want at most once", len(asked))
			}
		})
		switch operation.what {
		case "note sent":
			sent++
		case "note input":
			required++
		}
	}
	if sent != 2 || required != 1 {
		t.Errorf("%d requests were noted and %d times input, want 2 and 1", sent, required)
	}
}

// TestSignOutNeedsAccessToTheServer checks that a server which the caller may not use does not exist for
// them, also to sign out.
func TestSignOutNeedsAccessToTheServer(t *testing.T) {
	h := newSignInServer(t).newProcess(t, whoScript(), newSignIns(t), func(o *agent.Options) {
		o.Rules = newRules(t, `{"rules": [{"subjects": ["cleo"], "servers": ["crm"]}]}`)
	})
	for subject, want := range map[string]error{"cleo": nil, "eve": agent.ErrUnknownServer} {
		if err := h.SignOut(t.Context(), auth.Identity{Subject: subject}, "crm"); !errors.Is(err, want) {
			t.Errorf("SignOut of %s = %v, want %v", subject, err, want)
		}
	}
}
