package api_test

import (
	"fmt"
	"strings"
	"testing"

	"answerd/internal/agent"
	"answerd/internal/event/memory"
	"answerd/internal/llm/llmtest"
	"answerd/internal/mcp/config"
)

// newReplicas returns two services on one log, with the same tools: a request may reach either,
// and either may execute a run that waited.
func newReplicas(t *testing.T, script llmtest.Script, configure ...func(*config.Server)) (one, other *service) {
	log := memory.New(memory.Options{})
	shared := func(o *agent.Options) { o.Log, o.Durable = log, true }
	one = newService(t, script, shared, nil, configure...)
	same := func(c *config.Server) { c.URL = one.Tools.URL }
	return one, newService(t, script, shared, nil, append(configure, same)...)
}

func TestReplicaForwardsAnApproval(t *testing.T) {
	for _, stream := range []string{"", `,"stream":true`} {
		one, other := newReplicas(t, addingModel(), addNeedsApproval)
		first := decodeResponse[responseObject](t, one.doContext(boundedContext(t), t, "POST", "/v1/responses", responsesBody("What is 1 + 2?")), 200)
		answer := responsesBody(fmt.Sprintf(`[{"type":"mcp_approval_response","approval_request_id":"%s","approve":true}]`, first.Output[0].ID), stream)
		said := readBody(t, other.doContext(boundedContext(t), t, "POST", "/v1/responses", answer))
		if !strings.Contains(said, "It is 3.") {
			t.Errorf(`said %q, want it to contain "It is 3."`, said)
		}
		again := decodeResponse[responseObject](t, one.doContext(boundedContext(t), t, "POST", "/v1/responses", strings.Replace(answer, stream, "", 1)), 200)
		if want := "mcp_call:completed message:completed(It is 3.)"; again.outputShape() != want {
			t.Errorf("%s: %s, want %s", again.outputShape(), again.Output[0].Error, want)
		}
	}
}

func TestReplicaCancelsReadsAndDeletesAResponse(t *testing.T) {
	one, other := newReplicas(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"})))
	r := decodeResponse[responseObject](t, one.do(t, "POST", "/v1/responses", responsesBody("x", `,"background":true`)), 200)
	stream := other.doContext(boundedContext(t), t, "GET", "/v1/responses/"+r.ID+"?stream=true", "")
	readFrames(t, stream, "response.mcp_call_arguments.done")
	r = decodeResponse[responseObject](t, other.doContext(boundedContext(t), t, "POST", "/v1/responses/"+r.ID+"/cancel", ""), 200)
	if rest := eventNames(readFrames(t, stream, "")); r.Status != "cancelled" || !strings.Contains(rest, "response.incomplete") {
		t.Errorf("status %s, %s, want Status cancelled, rest containing response.incomplete", r.Status, rest)
	}
	decodeResponse[map[string]any](t, other.do(t, "DELETE", "/v1/responses/"+r.ID, ""), 200)
	if resp := one.do(t, "GET", "/v1/responses/"+r.ID, ""); resp.StatusCode != 404 {
		t.Errorf("a deleted response: %s, want 404", resp.Status)
	}
}

func TestReplicaContinuesAndStopsAUIChat(t *testing.T) {
	one, other := newReplicas(t, askingModel())
	first := decodeUIChunks(t, readFrames(t, one.doContext(boundedContext(t), t, "POST", "/api/chat", chatBody("c", "Book.")), ""))
	id, message := elicitationID(t, first), first[0].MessageID
	again := decodeUIChunks(t, readFrames(t, other.doContext(boundedContext(t), t, "GET", "/api/chat/c/stream", ""), ""))
	if elicitationID(t, again) != id || again[0].MessageID != message {
		t.Errorf("types %q, want question %q of message %q", chunkTypes(again), id, message)
	}
	rest := decodeUIChunks(t, readFrames(t, other.doContext(boundedContext(t), t, "POST", "/api/chat", chatAnswerBody("c", message, id, `{"action":"accept","content":{"people":2}}`)), ""))
	if rest[0].MessageID != message || rest[len(rest)-1].Type != "finish" {
		t.Errorf("types %q, want MessageID %q, Type finish", chunkTypes(rest), message)
	}

	one, other = newReplicas(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "wait"})))
	stream := one.doContext(boundedContext(t), t, "POST", "/api/chat", chatBody("d", "Wait."))
	select {
	case <-one.Tools.Entered:
	case <-boundedContext(t).Done():
		t.Fatal("the tool was not called, want one call")
	}
	if resp := other.doContext(boundedContext(t), t, "POST", "/api/chat/d/stop", ""); resp.StatusCode != 204 {
		t.Errorf("status %q, want 204", resp.Status)
	}
	if rest := chunkTypes(decodeUIChunks(t, readFrames(t, stream, ""))); !strings.HasSuffix(rest, "abort") {
		t.Errorf("rest %q, want it to end in abort", rest)
	}
	if resp := one.do(t, "GET", "/api/chat/d/stream", ""); resp.StatusCode != 204 {
		t.Errorf("what was stopped is told again: %q, want 204", resp.Status)
	}
}

// If the stream of a message was cut and its run has ended since, any replica that the page asks sends the whole
// message.
func TestReplicaRepeatsAUIChatThatWasCut(t *testing.T) {
	open := make(chan struct{})
	one, other := newReplicas(t, waitingModel(open))
	stream := one.doContext(boundedContext(t), t, "POST", "/api/chat", chatBody("c", "And?"))
	buf := make([]byte, 10)
	if _, err := stream.Body.Read(buf); err != nil {
		t.Fatal(err)
	}
	stream.Body.Close()
	close(open)
	run := newestRun(t, other)
	readFrames(t, other.doContext(boundedContext(t), t, "GET", "/runs/"+run+"/events", ""), "final_answer")
	resp := other.doContext(boundedContext(t), t, "GET", "/api/chat/c/stream", "")
	if resp.StatusCode != 200 {
		t.Fatalf("status %q, want 200", resp.Status)
	}
	if got := decodeUIChunks(t, readFrames(t, resp, "")); got[0].MessageID != run || got[len(got)-1].Type != "finish" {
		t.Errorf("types %q, want MessageID %q, Type finish", chunkTypes(got), run)
	}
}

func TestReplicaResumesAnAGUIRun(t *testing.T) {
	one, other := newReplicas(t, askingModel())
	first, _ := readAGUIRun(t, one.doContext(boundedContext(t), t, "POST", "/agui", aguiInput("r1", "")))
	end := first[len(first)-1]
	resume := aguiInput("r2", `,"resume":[{"interruptId":"`+end.Outcome.Interrupts[0].ID+`","status":"resolved","payload":{"people":2}}]`)
	rest, types := readAGUIRun(t, other.doContext(boundedContext(t), t, "POST", "/agui", resume))
	if rest[len(rest)-1].Outcome.Type != "success" {
		t.Errorf("types %q, [last].Outcome.Type %q, want success", types, rest[len(rest)-1].Outcome.Type)
	}
	wantProblem(t, one.do(t, "POST", "/agui", resume), 409, "conflict")
}

// The key of a request that is repeated means the same at every replica.
func TestReplicaKnowsARepeatedRequest(t *testing.T) {
	for _, d := range formats {
		t.Run(d.name, func(t *testing.T) {
			one, other := newReplicas(t, addingModel())
			first := readBody(t, one.doContext(boundedContext(t), t, "POST", d.path, d.questionBody("What is 1 + 2?", ""), "Idempotency-Key", "k"))
			again := readBody(t, other.doContext(boundedContext(t), t, "POST", d.path, d.questionBody("What is 1 + 2?", ""), "Idempotency-Key", "k"))
			if first != again || len(other.Model.Requests()) != 0 {
				t.Errorf("%d model requests; first\n%s\nagain\n%s, want first %s, requests 0", len(other.Model.Requests()), first, again, again)
			}
		})
	}
}
