package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/agent/prompt"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
	"answerd/internal/llm/texttool"
	"answerd/internal/mcp"
	"answerd/internal/mcp/config"
)

// newClientWithTools returns a client with n tools of a real server, task_0 to task_{n-1} and, if n allows it, one
// that files invoices. Each says its own name.
func newClientWithTools(t testing.TB, n int) *mcp.Client {
	t.Helper()
	server := sdk.NewServer(&sdk.Implementation{Name: "many", Version: "1"}, nil)
	schema := json.RawMessage(`{"type":"object","properties":{"city":{"type":"string","description":"The city in which the task is to be done"},"days":{"type":"integer","description":"For how many days"}}}`)
	add := func(name, description string) {
		server.AddTool(&sdk.Tool{Name: name, Description: description, InputSchema: schema}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: name}}}, nil
		})
	}
	for i := range n - 1 {
		add(fmt.Sprintf("task_%d", i), fmt.Sprintf("Does the useful thing number %d, and says in a sentence or two what it does and when to use it.", i))
	}
	add("file_invoice", "Files an invoice with accounting.")
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	cfg, err := config.SingleServer(web.URL)
	if err != nil {
		t.Fatal(err)
	}
	tools, err := mcp.New([]config.Server{cfg}, mcp.Options{Logger: slog.New(slog.DiscardHandler), StartWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		tools.Close()
		web.Close()
		for session := range server.Sessions() {
			session.Close()
		}
	})
	return tools
}

// newFixtureWithTools returns a fixture of n tools in which more than min of them are searched.
func newFixtureWithTools(t testing.TB, n, min int, script llmtest.Script) *agenttest.Fixture {
	tools := newClientWithTools(t, n)
	return agenttest.NewFixture(t, script, func(o *agent.Options) {
		o.Tools, o.ToolSearch = tools, agent.ToolSearch{MinTools: min}
	})
}

// offeredTools returns the names of the tools of a request to the model.
func offeredTools(r llmtest.Request) string {
	var out []string
	for _, t := range r.Tools {
		out = append(out, t.Function.Name)
	}
	return strings.Join(out, " ")
}

func searchCall(query string) llmtest.Call {
	return llmtest.Call{ID: "s_" + query, Name: "search_tools", Args: fmt.Sprintf(`{"query":%q}`, query)}
}

// Issue 4, item 7: the model is shown one tool instead of a hundred, finds what it needs
// by it, and its search is a call like any other.
func TestModelFindsItsToolsAmongTooMany(t *testing.T) {
	h := newFixtureWithTools(t, 100, 64, llmtest.Turns(
		llmtest.Calls(searchCall("file an invoice"), searchCall("thing number 17")),
		llmtest.Calls(llmtest.Call{ID: "c", Name: "file_invoice", Args: `{}`}),
		llmtest.Says("Filed."),
	))
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	meta := agenttest.TerminalEvent[event.FinalAnswer](t, events).Metadata
	if got, want := strings.Join(meta.ToolNames, " "), "search_tools search_tools file_invoice"; got != want {
		t.Errorf("called %s, want %s", got, want)
	}
	if got, want := string(meta.ToolResults[0]), `{"tools":[{"name":"file_invoice","server":"default","description":"Files an invoice with accounting."}`; !strings.Contains(got, want) {
		t.Errorf("found %s, want it to contain %s", got, want)
	}

	for _, r := range agenttest.EventsOf[event.ToolResult](events) {
		if (r.Tool == "search_tools") != (r.Server == "") {
			t.Errorf("%s is of server %q, want none for search_tools only", r.Tool, r.Server)
		}
	}

	requests := h.Model.Requests()
	if got := offeredTools(requests[0]); got != "search_tools" {
		t.Errorf("at first the model is shown %s, want search_tools", got)
	}
	if d, want := requests[0].Tools[0].Function.Description, "100 tools can be used, of the servers default;"; !strings.Contains(d, want) {
		t.Errorf("the search says %s, want it to contain %s", d, want)
	}

	// In the order of the calls, whichever of the two was done first.
	for _, r := range requests[1:] {
		if got, want := offeredTools(r), "search_tools file_invoice task_17"; !strings.HasPrefix(got, want) {
			t.Errorf("then %s, want it to start with %s", got, want)
		}
	}

	if first, last := requests[1], requests[2]; offeredTools(first) != offeredTools(last) {
		t.Errorf("offered %s after a turn that found nothing new, want %s", offeredTools(last), offeredTools(first))
	}
}

// A search adds to what the model is offered, and the caller's own tools stay: a turn that finds
// tools once replaced the whole offer.
func TestSearchKeepsTheCallersOwnTools(t *testing.T) {
	h := newFixtureWithTools(t, 100, 64, llmtest.Turns(
		llmtest.Calls(searchCall("file an invoice")),
		llmtest.Calls(searchCall("thing number 17")),
		llmtest.Calls(llmtest.Call{ID: "m", Name: "mine", Args: `{}`}),
	))
	events := h.Events(t, h.StartRun(t, agent.Request{ClientTools: []agent.ClientTool{clientTool("mine")}}).ID)
	if end := agenttest.TerminalEvent[event.FinalAnswer](t, events); end.FinishReason != "tool_calls" {
		t.Errorf("finish_reason %s, want tool_calls", end.FinishReason)
	}
	requests := h.Model.Requests()
	if got, want := offeredTools(requests[0]), "mine search_tools"; got != want {
		t.Errorf("first turn offers %s, want %s", got, want)
	}

	for i, want := range []string{"mine search_tools file_invoice", "mine search_tools file_invoice task_17"} {
		if got := offeredTools(requests[i+1]); !strings.HasPrefix(got, want) {
			t.Errorf("turn %d offers %s, want %s first", i+2, got, want)
		}
		seen := make(map[string]bool)
		for _, tool := range requests[i+1].Tools {
			if seen[tool.Function.Name] {
				t.Errorf("turn %d offers %s twice, want once", i+2, tool.Function.Name)
			}
			seen[tool.Function.Name] = true
		}
	}
}

// The model is shown the tools that the request names.
func TestRequestThatNamesToolsIsShownThemAll(t *testing.T) {
	for name, c := range map[string]struct {
		r     agent.Request
		tools int
	}{
		"nothing":           {agent.Request{}, 1},
		"auto":              {agent.Request{ToolChoice: agent.ToolAuto}, 1},
		"none":              {agent.Request{ToolChoice: agent.ToolNone}, 0},
		"required":          {agent.Request{ToolChoice: agent.ToolRequired}, 20},
		"tools":             {agent.Request{Tools: []string{"task_1*"}}, 10},
		"servers":           {agent.Request{Servers: []string{"default"}}, 20},
		"tools and servers": {agent.Request{Tools: []string{"*"}, Servers: []string{"default"}}, 20},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFixtureWithTools(t, 20, 10, llmtest.Turns(llmtest.Says("Yes.")))
			h.Events(t, h.StartRun(t, c.r).ID)
			if got := len(h.Model.Requests()[0].Tools); got != c.tools {
				t.Errorf("%d tools are shown, want %d", got, c.tools)
			}
		})
	}
}

func TestSearchBeginsAboveItsBounds(t *testing.T) {
	for _, c := range []struct {
		bounds   agent.ToolSearch
		searched bool
	}{
		{agent.ToolSearch{}, false}, {agent.ToolSearch{MinTools: 20}, false}, {agent.ToolSearch{MinTools: 19}, true},
		{agent.ToolSearch{MinBytes: 1 << 20}, false}, {agent.ToolSearch{MinTools: 20, MinBytes: 1000}, true},
	} {
		tools := newClientWithTools(t, 20)
		h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), func(o *agent.Options) { o.Tools, o.ToolSearch = tools, c.bounds })
		h.Events(t, h.StartRun(t, agent.Request{}).ID)
		if got := len(h.Model.Requests()[0].Tools) == 1; got != c.searched {
			t.Errorf("%+v: searched %t, want %v", c.bounds, got, c.searched)
		}
	}
}

// A tool that the model names rightly works although it was not found, and is shown
// from then on: refusing it would only cost a turn.
func TestToolThatWasNotFoundCanBeCalled(t *testing.T) {
	h := newFixtureWithTools(t, 20, 10, llmtest.Turns(
		llmtest.Calls(llmtest.Call{ID: "a", Name: "task_3", Args: `{}`}, llmtest.Call{ID: "b", Name: "nope", Args: `{}`}),
		llmtest.Says("Done."),
	))
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	meta := agenttest.TerminalEvent[event.FinalAnswer](t, events).Metadata
	if got, want := joinRaw(meta.ToolResults), `"task_3" {"error":"There is no tool named \"nope\"."}`; got != want {
		t.Errorf("results %s, want %s", got, want)
	}
	if got := offeredTools(h.Model.Requests()[1]); got != "search_tools task_3" {
		t.Errorf(`shown %s, want "search_tools task_3"`, got)
	}
}

// S1.7: the model gets an error for an invalid search, as for any call.
func TestBadSearchIsAnsweredWithItsSchema(t *testing.T) {
	for args, says := range map[string]string{
		`{}`: "missing required field: query", `{"query":" "}`: "query is empty", `{"query":3}`: "query is not a string", `{"query":null}`: "query is not a string",
		`{"query":"a","limit":3}`: `there is no field "limit"`, `[`: "they end before the JSON object is complete", `{"query":"` + strings.Repeat("x", 1001) + `"}`: "longer than 1000 bytes",
	} {
		h := newFixtureWithTools(t, 20, 10, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "search_tools", Args: args}), llmtest.Says("Sorry.")))
		failed := agenttest.EventsOf[event.ToolError](h.Events(t, h.StartRun(t, agent.Request{}).ID))
		if len(failed) != 1 || failed[0].Kind != "invalid_arguments" || !strings.Contains(failed[0].Payload, says) || strings.Count(failed[0].Payload, `"required":["query"]`) != 1 {
			t.Errorf(`%.40s: %+v, want 1 with Kind invalid_arguments and Payload containing %q, 1 times "required":["query"]`, args, failed, says)
		}
	}
}

func TestSearchThatFindsNothingSaysSo(t *testing.T) {
	h := newFixtureWithTools(t, 20, 10, llmtest.Turns(llmtest.Calls(searchCall("submarine")), llmtest.Says("No.")))
	found := agenttest.EventsOf[event.ToolResult](h.Events(t, h.StartRun(t, agent.Request{}).ID))
	if len(found) != 1 || string(found[0].Payload) != `{"tools":[]}` || !strings.Contains(h.Model.Requests()[1].Messages[3].Content, "Try others") {
		t.Errorf(`found %+v, Model.Requests()[1].Messages[3].Content %q, want 1 found, Payload {"tools":[]}, Model.Requests()[1].Messages[3].Content containing "Try others"`, found, h.Model.Requests()[1].Messages[3].Content)
	}
}

// However much a run searches, what its model is shown stays bounded: the latest.
func TestFoundToolsAreBounded(t *testing.T) {
	var answers []llmtest.Answer
	for i := range 9 {
		var calls []llmtest.Call
		for j := range 8 {
			calls = append(calls, llmtest.Call{ID: fmt.Sprint(i, "_", j), Name: fmt.Sprintf("task_%d", 8*i+j), Args: `{}`})
		}
		answers = append(answers, llmtest.Calls(calls...))
	}
	h := newFixtureWithTools(t, 100, 10, llmtest.Turns(append(answers, llmtest.Says("Done."))...))
	h.Events(t, h.StartRun(t, agent.Request{}).ID)
	requests := h.Model.Requests()
	last := requests[len(requests)-1].Tools
	if len(last) != 49 || last[0].Function.Name != "search_tools" || last[48].Function.Name != "task_71" {
		t.Errorf("%d tools: %s, want 49 from search_tools to task_71", len(last), offeredTools(requests[len(requests)-1]))
	}
}

// A server's own tool of the name keeps it.
func TestSearchTakesNoNameFromATool(t *testing.T) {
	server := sdk.NewServer(&sdk.Implementation{Name: "s", Version: "1"}, nil)
	for _, name := range []string{"search_tools", "other"} {
		server.AddTool(&sdk.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "theirs"}}}, nil
		})
	}

	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	defer web.Close()
	cfg, _ := config.SingleServer(web.URL)
	tools, err := mcp.New([]config.Server{cfg}, mcp.Options{Logger: slog.New(slog.DiscardHandler), StartWait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer tools.Close()
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "search_tools", Args: `{}`}), llmtest.Says("Done.")),
		func(o *agent.Options) { o.Tools, o.ToolSearch = tools, agent.ToolSearch{MinTools: 1} })
	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	if got := joinRaw(agenttest.TerminalEvent[event.FinalAnswer](t, events).Metadata.ToolResults); got != `"theirs"` {
		t.Errorf(`results %s, want "theirs"`, got)
	}
	if got := offeredTools(h.Model.Requests()[0]); got != "search_tools_2" {
		t.Errorf("shown %s, want search_tools_2", got)
	}
}

// S1.2: in text mode the search and what it found are in every prompt.
func TestSearchWorksInTextMode(t *testing.T) {
	tools := newClientWithTools(t, 100)
	script := func(r llmtest.Request) llmtest.Answer {
		results := 0
		for _, m := range r.Messages {
			results += strings.Count(m.Content, "TOOL RESULT: ")
		}
		// The prompt announces the words itself, once.
		return []llmtest.Answer{
			llmtest.Says("Let me look.\nTOOL: search_tools\nPARAMETERS: {\"query\": \"invoice\"}"),
			llmtest.Says("TOOL: file_invoice\nPARAMETERS: {}"), llmtest.Says("Filed."),
		}[min(results-1, 2)]
	}

	h := agenttest.NewFixture(t, script, func(o *agent.Options) {
		o.Model = texttool.New(o.Model)
		o.Tools, o.ToolSearch = tools, agent.ToolSearch{MinTools: 64}
	})

	events := h.Events(t, h.StartRun(t, agent.Request{}).ID)
	end := agenttest.TerminalEvent[event.FinalAnswer](t, events)
	if end.Answer != "Filed." || strings.Join(end.Metadata.ToolNames, " ") != "search_tools file_invoice" {
		t.Errorf(`end %+v, want Answer Filed., Metadata.ToolNames "search_tools file_invoice"`, end)
	}

	for i, r := range h.Model.Requests() {
		system := r.Messages[0].Content
		if !strings.Contains(system, "- search_tools: ") || strings.Contains(system, "- task_5:") || strings.Contains(system, "- file_invoice: ") != (i > 0) {
			t.Errorf("prompt %d: %s, want search_tools, not task_5, and file_invoice after it was found", i, system)
		}
	}
}

// A prompt that lists the tools must not bring back what the search spares.
func TestPromptListsOnlyWhatIsShown(t *testing.T) {
	tools := newClientWithTools(t, 20)
	p, err := prompt.New(prompt.Options{Template: "{{.tools}}"})
	if err != nil {
		t.Fatal(err)
	}
	h := agenttest.NewFixture(t, llmtest.Turns(llmtest.Says("Yes.")), func(o *agent.Options) {
		o.Tools, o.ToolSearch, o.Prompt = tools, agent.ToolSearch{MinTools: 10}, p
	})
	h.Events(t, h.StartRun(t, agent.Request{}).ID)
	if got := h.Model.Requests()[0].Messages[0].Content; strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, "- search_tools: ") {
		t.Errorf(`prompt %s, want 1 times \n and to start with "- search_tools: "`, got)
	}
}

// BenchmarkRunAmongManyTools returns a whole run of one tool call, over loopback HTTP with
// the scripted model's own work in it: all tools shown, and searched. It reports how
// much of all requests of the run together was about tools.
func BenchmarkRunAmongManyTools(b *testing.B) {
	call := llmtest.Calls(llmtest.Call{ID: "c", Name: "file_invoice", Args: `{}`})
	for _, n := range []int{10, 64, 1000} {
		for name, c := range map[string]struct {
			min     int
			answers []llmtest.Answer
		}{
			"shown":    {0, []llmtest.Answer{call, llmtest.Says("Filed.")}},
			"searched": {1, []llmtest.Answer{llmtest.Calls(searchCall("useful thing to file an invoice")), call, llmtest.Says("Filed.")}},
		} {
			b.Run(fmt.Sprintf("%d %s", n, name), func(b *testing.B) {
				h := newFixtureWithTools(b, n, c.min, llmtest.Turns(c.answers...))
				h.Events(b, h.StartRun(b, agent.Request{}).ID)
				bytes := 0
				for _, r := range h.Model.Requests() {
					for _, t := range r.Tools {
						bytes += len(t.Function.Name) + len(t.Function.Description) + len(t.Function.Parameters)
					}
				}
				b.ReportAllocs()
				for b.Loop() {
					h.Events(b, h.StartRun(b, agent.Request{}).ID)
				}
				b.ReportMetric(float64(bytes), "toolbytes/run")
			})
		}
	}
}

// A search with arguments that cannot be used counts for the budget of calls, also in the process that takes the run
// over.
func TestFailedSearchCountsAfterATakeover(t *testing.T) {
	tools, origin := newClientWithTools(t, 30), &recordingLog{Log: memory.New(memory.Options{})}
	newProcess := func(log event.Log) *agenttest.Fixture {
		return agenttest.NewFixture(t, answersInTurn(
			llmtest.Calls(llmtest.Call{ID: "s", Name: "search_tools", Args: `{"wish":"file an invoice"}`}),
			llmtest.Calls(llmtest.Call{ID: "c", Name: "file_invoice", Args: `{}`}),
			llmtest.Says("Filed."),
		), func(o *agent.Options) {
			o.Log, o.Durable, o.Tools, o.ToolSearch, o.Budget = log, true, tools, agent.ToolSearch{MinTools: 5}, agent.Budget{ToolCalls: 2}
		})
	}

	first := newProcess(origin)
	run := first.StartRun(t, agent.Request{Background: true})
	want := agenttest.TerminalEvent[event.FinalAnswer](t, first.Events(t, run.ID)).FinishReason
	if want != "budget_exceeded" {
		t.Fatalf("the first process ended the run with %s, want budget_exceeded", want)
	}

	for n, operation := range origin.recordedOperations() {
		end := agenttest.TerminalEvent[event.FinalAnswer](t, newProcess(origin.diedAfter(t, run, n)).Events(t, run.ID))
		if got := end.FinishReason; got != want {
			t.Errorf("died before %s: ended with %s, want %s", operation.what, got, want)
		}
	}
}

// A model invents the search, although it is offered all tools. It is offered them after a takeover too.
func TestInventedSearchStartsNoneAfterATakeover(t *testing.T) {
	origin := &recordingLog{Log: memory.New(memory.Options{})}
	newProcess := func(log event.Log) *agenttest.Fixture {
		return agenttest.NewFixture(t, answersInTurn(llmtest.Calls(searchCall("add")), llmtest.Says("Done.")), func(o *agent.Options) { o.Log, o.Durable = log, true })
	}
	first := newProcess(origin)
	run := first.StartRun(t, agent.Request{Background: true})
	first.Events(t, run.ID)

	want := offeredTools(first.Model.Requests()[1])
	for _, last := range []string{"tool_call", "tool_error"} {
		n := slices.IndexFunc(origin.recordedOperations(), func(o operation) bool { return o.what == last })
		h := newProcess(origin.diedAfter(t, run, n+1))
		h.Events(t, run.ID)
		if got := offeredTools(h.Model.Requests()[0]); got != want {
			t.Errorf("died after %s: the second process offers %s, want %s", last, got, want)
		}
	}
}
