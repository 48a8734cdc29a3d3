package api_test

import (
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp"
	"answerd/internal/mcp/config"
)

// newServiceWithTwoServers returns a service whose agent has two MCP servers: an agent with the servers one and two. The tools of two have the prefix two.
func newServiceWithTwoServers(t *testing.T, script llmtest.Script) *service {
	t.Helper()
	return newService(t, script, func(o *agent.Options) {
		tools, err := mcp.New([]config.Server{
			{Name: "one", Type: config.TypeHTTP, URL: agenttest.NewFixture(t, script, nil).Tools.URL},
			{Name: "two", Type: config.TypeHTTP, URL: agenttest.NewFixture(t, script, nil).Tools.URL, ToolPrefix: "two"},
		}, mcp.Options{Logger: slog.New(slog.DiscardHandler), StartWait: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tools.Close() })
		o.Tools = tools
	}, nil)
}

// In OpenAI's API, allowed_tools is a member of one server and says nothing about the others.
func TestAllowedToolsAreOfTheirServer(t *testing.T) {
	t.Parallel()
	s := newServiceWithTwoServers(t, llmtest.Turns(llmtest.Says("!")))
	const mcpTool = `{"type":"mcp","server_label":`
	for tools, want := range map[string][]string{
		mcpTool + `"one","allowed_tools":["add"]},` + mcpTool + `"two"}`:                                          {"add", "two_add", "two_echo"},
		mcpTool + `"two"},` + mcpTool + `"one","allowed_tools":{"tool_names":["echo"]}}`:                          {"echo", "two_add", "two_echo"},
		mcpTool + `"one","allowed_tools":["add"]},` + mcpTool + `"two","allowed_tools":["*_echo","*"]}`:           {"add", "two_add", "two_echo"},
		mcpTool + `"one","allowed_tools":[]},` + mcpTool + `"two","allowed_tools":["two_add"]}`:                   {"two_add"},
		mcpTool + `"one","allowed_tools":["add"]},` + mcpTool + `"one","allowed_tools":["echo"]}`:                 {"add", "echo"},
		mcpTool + `"one"},` + mcpTool + `"two","allowed_tools":["two_add"]}],"answerd":{"tools":["*add"]},"x":[0`: {"add", "two_add"},
	} {
		before := len(s.Model.Requests())
		r := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("?", `,"tools":[`+tools+`]`)), 200)

		var offered []string
		for _, tool := range s.Model.Requests()[before].Tools {
			if name := tool.Function.Name; strings.HasSuffix(name, "add") || strings.HasSuffix(name, "echo") {
				offered = append(offered, name)
			}
		}

		slices.Sort(offered)
		if !slices.Equal(offered, want) {
			t.Errorf("tools %s: the model is offered %v, want %v", tools, offered, want)
		}

		again, err := io.ReadAll(s.do(t, "GET", "/v1/responses/"+r.ID, "").Body)
		for _, name := range []string{"add", "echo", "two_add", "two_echo"} {
			if listed := strings.Contains(string(again), `{"name":"`+name+`"`); err != nil || !strings.Contains(tools, "answerd") && listed != slices.Contains(want, name) {
				t.Errorf("tools %s: mcp_list_tools has %s: %t, %v, want %t", tools, name, listed, err, !listed)
			}
		}
	}
}

func TestAllowedToolsThatCannotBeUsedAreNamed(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	for allowed, field := range map[string]string{
		`["add","["]`:          "tools[0].allowed_tools",
		`{"tool_names":["["]}`: "tools[0].allowed_tools",
		`{"read_only":true}`:   "tools[0].allowed_tools.read_only",
		`{"read_only":1}`:      "tools[0].allowed_tools",
	} {
		e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", responsesBody("?", `,"tools":[{"type":"mcp","server_label":"default","allowed_tools":`+allowed+`}]`)), 400)
		if e.Error.Param == nil || *e.Error.Param != field {
			t.Errorf("allowed_tools %s: got %+v, want an error about %s", allowed, e, field)
		}
	}
}

// In OpenAI's API, the name of the tool is optional in a tool_choice of type mcp.
func TestToolChoiceNamesAServer(t *testing.T) {
	t.Parallel()
	s := newServiceWithTwoServers(t, llmtest.Turns(llmtest.Says("!")))
	decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("?", `,"tools":[{"type":"mcp","server_label":"two"}],"tool_choice":{"type":"mcp","server_label":"two"}`)), 200)
	if got := string(s.Model.Requests()[0].ToolChoice); got != `"required"` {
		t.Errorf("got the tool_choice %s, want required", got)
	}
}

// A response with all calls that max_tool_calls allows is complete: to OpenAI's clients, an incomplete one has failed.
func TestResponseWithAllOfItsMaxToolCallsIsComplete(t *testing.T) {
	t.Parallel()
	s := newService(t, addingModel(), nil, nil)
	for more, want := range map[string]string{
		`,"max_tool_calls":1`:                           "completed",
		`,"answerd":{"budget":{"tool_calls":1}}`:        "incomplete",
		`,"max_tool_calls":9,"answerd":{"max_turns":1}`: "incomplete",
	} {
		r := decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", responsesBody("x", more)), 200)
		if r.Status != want {
			t.Errorf("response with %s: status %s, want %s", more, r.Status, want)
		}
	}
}

// OpenAI's allowed_tools in tool_choice limits what the model may call without a change of tools.
func TestToolChoiceOfAllowedTools(t *testing.T) {
	t.Parallel()
	s := newServiceWithTwoServers(t, llmtest.Turns(llmtest.Says("!")))
	const (
		colour = `{"type":"function","name":"colour"}`
		other  = `{"type":"function","name":"other"}`
		one    = `{"type":"mcp","server_label":"one"}`
		two    = `{"type":"mcp","server_label":"two"}`
		twoAdd = `{"type":"mcp","server_label":"two","name":"two_add"}`
	)
	for _, c := range []struct {
		tools, allowed string
		want           []string // the tools of the model; nil if the request is refused
		param          string
	}{
		{tools: other + "," + colour, allowed: colour, want: []string{"colour"}},
		{tools: other, allowed: `{"type":"function","name":"echo"},` + other, want: []string{"echo", "other"}},
		{tools: colour + "," + one + "," + two, allowed: twoAdd, want: []string{"two_add"}},
		{tools: colour + "," + one + "," + two, allowed: two + "," + colour, want: []string{"colour", "two_add", "two_echo"}},
		{tools: `{"type":"mcp","server_label":"two","allowed_tools":["*_echo"]},` + one, allowed: two, want: []string{"two_echo"}},
		{tools: colour, allowed: `{"type":"function","name":"nosuch"}`, param: "tool_choice"},
		{tools: one, allowed: two, param: "tool_choice.tools[0].server_label"},
		{tools: one + "," + two, allowed: one + "," + twoAdd, param: "tool_choice.tools[0].name"},
		{tools: colour, allowed: `{"type":"web_search"}`, param: "tool_choice.tools[0]"},
		{tools: colour, allowed: ``, param: "tool_choice.tools"},
	} {
		for _, mode := range []string{"auto", "required"} {
			before := len(s.Model.Requests())
			body := responsesBody("?", `,"tools":[`+c.tools+`],"tool_choice":{"type":"allowed_tools","mode":"`+mode+`","tools":[`+c.allowed+`]}`)
			if c.param != "" {
				if e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", body), 400).Error; e.Param == nil || *e.Param != c.param {
					t.Errorf("tools %s, allowed %s: got %+v, want an error about %s", c.tools, c.allowed, e, c.param)
				}
				continue
			}
			decodeResponse[responseObject](t, s.do(t, "POST", "/v1/responses", body), 200)
			asked := s.Model.Requests()[before]
			var got []string
			for _, tool := range asked.Tools {
				if name := tool.Function.Name; slices.Contains([]string{"add", "echo", "two_add", "two_echo", "colour", "other"}, name) {
					got = append(got, name)
				}
			}
			slices.Sort(got)
			if choice := string(asked.ToolChoice); !slices.Equal(got, c.want) || choice != `"`+mode+`"` && (mode != "auto" || choice != "") {
				t.Errorf("tools %s, allowed %s: the model is offered %v with tool_choice %s, want %v and %s", c.tools, c.allowed, got, choice, c.want, mode)
			}
		}
	}
}

func TestToolChoiceOfAllowedToolsInChatCompletions(t *testing.T) {
	t.Parallel()
	s := newServiceWithTwoServers(t, llmtest.Turns(llmtest.Says("!")))
	choice := func(mode, tools string) string {
		return chatCompletionBody("?", `,"tools":[{"type":"function","function":{"name":"colour"}},{"type":"function","function":{"name":"other"}}],
			"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"`+mode+`","tools":[`+tools+`]}}`)
	}
	const colour, add = `{"type":"function","function":{"name":"colour"}}`, `{"type":"function","function":{"name":"add"}}`
	decodeResponse[completion](t, s.do(t, "POST", "/v1/chat/completions", choice("required", colour+","+add)), 200)
	asked := s.Model.Requests()[0]
	if len(asked.Tools) != 2 || asked.Tools[0].Function.Name != "colour" || asked.Tools[1].Function.Name != "add" || string(asked.ToolChoice) != `"required"` {
		t.Errorf("the model is offered %+v with tool_choice %s, want colour, add and required", asked.Tools, asked.ToolChoice)
	}

	for _, body := range []string{choice("auto", strings.Replace(colour, "colour", "nosuch", 1)), choice("any", colour), choice("auto", ""), choice("auto", `{"type":"custom"}`)} {
		if e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/chat/completions", body), 400).Error; e.Param == nil || !strings.HasPrefix(*e.Param, "tool_choice") {
			t.Errorf("%s: got %+v, want an error about tool_choice", body, e)
		}
	}
}
