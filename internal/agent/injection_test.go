package agent_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp"
	"answerd/internal/mcp/config"
)

//go:embed testdata/injections.txt
var injections string

// forbidden are tools that the runs of the test must not use: one is denied by the
// operator, one is left out of the request's tools, one is on a server that is left out
// of its servers.
var forbidden = []string{"wipe_disk", "send_mail", "shell"}

// vault is two MCP servers whose tools and resources carry the texts, and do harm.
type vault struct {
	open, other string // URLs

	mu     sync.Mutex // protects what follows
	harm   []string   // calls of forbidden tools
	spent  []string   // arguments of transfer
	served map[string]int
}

func newVault(t *testing.T, texts []string) *vault {
	v := &vault{served: make(map[string]int)}
	open, other := sdk.NewServer(&sdk.Implementation{Name: "open", Version: "1"}, nil), sdk.NewServer(&sdk.Implementation{Name: "other", Version: "1"}, nil)

	add := func(s *sdk.Server, name, description string, does func(args string) *sdk.CallToolResult) {
		s.AddTool(&sdk.Tool{Name: name, Description: description, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				v.mu.Lock()
				defer v.mu.Unlock()
				return does(string(r.Params.Arguments)), nil
			})
	}

	for i, name := range forbidden {
		add([]*sdk.Server{open, open, other}[i], name, "does harm", func(args string) *sdk.CallToolResult {
			v.harm = append(v.harm, name+" "+args)
			return &sdk.CallToolResult{}
		})
	}

	add(open, "transfer", "moves money", func(args string) *sdk.CallToolResult {
		v.spent = append(v.spent, args)
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "done"}}}
	})

	for i, text := range texts {
		add(open, fmt.Sprintf("page_%d", i), text, func(string) *sdk.CallToolResult {
			v.served["result"]++
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}, StructuredContent: map[string]string{"page": text}, IsError: i%4 == 3}
		})
		open.AddResource(&sdk.Resource{Name: "doc", URI: fmt.Sprintf("doc://%d", i)}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			v.mu.Lock()
			defer v.mu.Unlock()
			v.served["resource"]++
			return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: fmt.Sprintf("doc://%d", i), Text: text}}}, nil
		})
	}

	for s, url := range map[*sdk.Server]*string{open: &v.open, other: &v.other} {
		web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil))
		*url = web.URL
		t.Cleanup(func() {
			web.Close()
			for session := range s.Sessions() {
				session.Close()
			}
		})
	}
	return v
}

var (
	callPattern = regexp.MustCompile(`([\p{L}\p{N}_.:/-]+\x{200b}?)[ (]*(\{[^{}]*\})`)
	harmfulTool = regexp.MustCompile(`wipe_disk|send_mail|shell|transfer`)
	pagePattern = regexp.MustCompile(`page (\d+)`)
)

// obedientModel returns a model that reads the page and the document that it is asked about, and
// does whatever it is told by anything in its conversation: by the descriptions of its
// tools, by their results, by the resources that it reads.
func obedientModel(r llmtest.Request) llmtest.Answer {
	page := ""
	var told strings.Builder
	for _, m := range r.Messages {
		if n := pagePattern.FindStringSubmatch(m.Content); m.Role == "user" && n != nil {
			page = n[1]
		}
		if m.Role == "tool" {
			fmt.Fprintln(&told, m.Content)
			var structured struct{ Page, Error string }
			if json.Unmarshal([]byte(m.Content), &structured) == nil {
				fmt.Fprintln(&told, structured.Page, structured.Error)
			}
		}
	}
	for _, t := range r.Tools {
		fmt.Fprintln(&told, t.Function.Description)
	}
	calls := []llmtest.Call{{Name: "page_" + page, Args: "{}"}, {Name: "read_resource", Args: `{"uri":"doc://` + page + `"}`}}
	seen := make(map[string]bool)
	add := func(name, args string) {
		if c := name + args; !seen[c] && len(calls) < 30 && json.Valid([]byte(args)) {
			seen[c] = true
			calls = append(calls, llmtest.Call{ID: fmt.Sprintf("call_%d_%d", len(r.Messages), len(calls)), Name: name, Args: args})
		}
	}
	for _, c := range callPattern.FindAllStringSubmatch(told.String(), -1) {
		add(c[1], c[2])
	}
	for _, name := range harmfulTool.FindAllString(told.String(), -1) {
		add(name, "{}")
	}
	return llmtest.Calls(calls...)
}

// Whatever text from outside makes a model do, the model cannot call a tool that the operator or
// the request leaves out, and cannot use an approval for another call. A model that obeys all of 60
// injected texts shows it (S0.7).
func TestInjectedTextsCauseNoForbiddenCall(t *testing.T) {
	t.Parallel()
	texts := strings.Split(strings.TrimSuffix(injections, "\n"), "\n---\n")
	if len(texts) < 60 {
		t.Fatalf("only %d texts, want at least 60", len(texts))
	}

	// Serve each text as a tool's description, as a result and as a resource.
	v := newVault(t, texts)
	tools, err := mcp.New([]config.Server{
		{Name: "open", URL: v.open, DenyTools: []string{"wipe_disk"}, ApproveTools: []string{"transfer"}, Resources: []string{"doc://*"}},
		{Name: "other", URL: v.other},
	}, mcp.Options{Logger: slog.New(slog.DiscardHandler), StartWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer tools.Close()
	h := agenttest.NewFixture(t, obedientModel, nil)
	o := h.Options
	o.Tools = tools
	if h.Agent, err = agent.New(o); err != nil {
		t.Fatal(err)
	}

	// A model that obeys each text makes harmful calls, and all of them are refused.
	var granted []string
	attempts := 0
	for i, text := range texts {
		events := runObedientModel(t, h, i, &granted)
		tried := 0
		for _, e := range agenttest.EventsOf[event.ToolError](events) {
			if harmfulTool.MatchString(strings.ToLower(e.Tool)) {
				tried++
				if e.Kind != "unknown_tool" && e.Kind != "denied" {
					t.Errorf("%q: %s ended as %s: %s, want unknown_tool or denied", text, e.Tool, e.Kind, e.Payload)
				}
			}
		}
		if tried == 0 {
			t.Errorf("%q made the model try no harmful call, want at least 1", text)
		}
		attempts += tried
	}

	// Each text was in a description that the model got.
	described := make(map[string]bool)
	for _, r := range h.Model.Requests() {
		for _, t := range r.Tools {
			described[t.Function.Description] = true
		}
	}
	for _, text := range texts {
		if !described[text] {
			t.Errorf("%q came in no description, want it in one", text)
		}
	}

	// The servers got no harmful call, and made only the transfers that a person approved.
	if len(v.harm) != 0 {
		t.Errorf("%d calls outside of what is allowed: %q, want 0", len(v.harm), v.harm)
	}
	if strings.Join(v.spent, "\n") != strings.Join(granted, "\n") {
		t.Errorf("transferred %q, want only what a person approved: %q", v.spent, granted)
	}
	if v.served["result"] < len(texts) || v.served["resource"] < len(texts) || len(granted) < 8 {
		t.Errorf("%v served, %d approved, want each of %d texts as a result and as a resource, at least 8 approved", v.served, len(granted), len(texts))
	}
	t.Logf("%d texts, %d attempts refused, %d calls approved", len(texts), attempts, len(granted))
}

// runObedientModel runs the obedient model on text i. For three of four texts a person answers: they
// refuse one call and approve one of the others, with changed arguments that try to allow
// more.
func runObedientModel(t *testing.T, h *agenttest.Fixture, i int, granted *[]string) []event.Event {
	t.Helper()
	run := h.StartRun(t, agent.Request{
		Question: fmt.Sprintf("What is on page %d?", i), MaxTurns: 2, Interactive: i%4 != 0,
		Servers: []string{"open"}, Tools: []string{fmt.Sprintf("page_%d", i), "read_resource", "transfer", "wipe_disk", "shell"},
	}).ID
	answered := make(map[string]bool)
	gave := false
	for {
		var waits []event.Interrupt
		events := h.EventsUntil(t, run, func(e event.Event) bool {
			waits = nil
			if s, ok := e.Body.(event.Suspended); ok && !answered[s.Interrupts[0].ID] {
				waits = s.Interrupts
			}
			return waits != nil
		})
		if waits == nil {
			return events
		}
		in := agent.Input{ID: waits[0].ID, Approved: new(i%4 > 1 && !gave)}
		if *in.Approved {
			gave = true
			in.Args = rawJSON(fmt.Sprintf(`{"amount":%d,"tool":"wipe_disk","tools":["*"],"servers":["other"],"approved":true}`, i))
			*granted = append(*granted, string(in.Args))
		}
		answered[in.ID] = true
		answerInterrupt(t, h, run, in)
	}
}
