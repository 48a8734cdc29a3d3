package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"answerd/internal/llm/llmtest"
)

// An answerd that has itself for a tool, and a model that always asks it, come to an end:
// the fourth question does not get through, and each of the others has its answer.
func TestLoopOfAnAgentThatAsksItselfEnds(t *testing.T) {
	var mu sync.Mutex // protects what follows
	asked, refused := 0, false
	model := llmtest.New(t, func(r llmtest.Request) llmtest.Answer {
		last := r.Messages[len(r.Messages)-1]
		mu.Lock()
		defer mu.Unlock()
		if last.Role == "user" {
			asked++
			return llmtest.Calls(llmtest.Call{Name: "answer", Args: fmt.Sprintf(`{"question":"%d?"}`, asked)})
		}
		refused = refused || strings.Contains(last.Content, "passed through 3 agents")
		return llmtest.Says("Well.")
	})
	addr := "127.0.0.1:" + freePort(t)
	p := spawnAnswerd(t, []string{"ADDR=" + addr, "MCP_URL=http://" + addr + "/mcp", "LLM_BASE_URL=" + model.URL, "DEFAULT_MODEL_ID=scripted"})
	p.waitForLine(t, "listening")
	resp := post(t, http.DefaultClient, "http://"+addr+"/servers/default/refresh", "")
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("refresh of its own server: got %s, want 200", resp.Status)
	}
	a := postQuestion(t, http.DefaultClient, "http://"+addr, `{"question":"?"}`)
	mu.Lock()
	defer mu.Unlock()
	if a.Answer != "Well." || asked != 4 || !refused {
		t.Errorf("got %d questions, refused %v and answer %q, want 4, true and Well.", asked, refused, a.Answer)
	}
}
