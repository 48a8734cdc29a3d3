package agent_test

import (
	"errors"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/agent/agenttest"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

// A tool that asks another agent is available, also while an MCP server is down.
func TestQuestionNeedsNoServerToAskAnAgent(t *testing.T) {
	h := agenttest.NewFixture(t, scriptPerAgent(map[string]llmtest.Script{
		"a": llmtest.Turns(askAgent("b", "?"), llmtest.Says("Done.")), "b": llmtest.Turns(llmtest.Says("Yes.")),
	}), withAgents(t, fiveAgents), func(s *config.Server) { s.URL = "http://127.0.0.1:1/" })
	for name, c := range map[string]struct {
		request agent.Request
		refused bool
	}{
		"tools of the agent":  {agent.Request{Tools: []string{"ask_b"}}, false},
		"a required call":     {agent.Request{ToolChoice: agent.ToolRequired}, false},
		"the tool to call":    {agent.Request{ToolChoice: agent.ToolRequired, ForcedTool: "ask_b"}, false},
		"tools of the server": {agent.Request{Tools: []string{"echo"}}, true},
		"the server":          {agent.Request{Servers: []string{"default"}}, true},
	} {
		c.request.Question = "?"
		run, err := h.Start(t.Context(), auth.Identity{}, c.request)
		if _, refused := errors.AsType[*agent.ToolsUnavailableError](err); refused != c.refused || err != nil && !refused {
			t.Errorf("%s: got the error %v, want it refused: %t", name, err, c.refused)
		}
		if err == nil {
			agenttest.TerminalEvent[event.FinalAnswer](t, h.Events(t, run.ID))
		}
	}
}
