package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"answerd/internal/llm/llmtest"
)

// answerCutInCall is an answer that breaks off while the model writes a call of the caller's own tool.
func answerCutInCall(w http.ResponseWriter, _ *http.Request) {
	llmtest.Stream(w, "", map[string]any{"tool_calls": []any{map[string]any{
		"index": 0, "id": "c1", "type": "function", "function": map[string]any{"name": "colour", "arguments": `{"of":`},
	}}})
}

// A run can end while the model writes a call of the caller's own tool. The call is closed, and it must
// not look like a call of a server's tool: no format then knows it.
func TestStreamEndsWithinACallOfTheCallersTool(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(answerCutInCall, answerCutInCall, answerCutInCall, answerCutInCall), nil, nil)
	question := `{"role":"user","content":"The sky?"}`
	for _, c := range []struct{ path, body, end, never string }{
		{"/v1/responses", `{"input":"The sky?","stream":true,"tools":[{"type":"function","name":"colour","parameters":{"type":"object"}}]}`, `"type":"response.failed"`, "mcp_call"},
		{"/v1/chat/completions", `{"messages":[` + question + `],"stream":true,"tools":[{"type":"function","function":{"name":"colour"}}]}`, `"error":{`, "colour failed"},
		{"/api/chat", `{"id":"c","messages":[{"id":"1","role":"user","parts":[{"type":"text","text":"The sky?"}]}],"tools":[{"name":"colour"}]}`, `"type":"error"`, "tool-output-error"},
		{"/agui", `{"threadId":"t","runId":"r","messages":[` + question + `],"tools":[{"name":"colour","description":"","parameters":{}}]}`, "RUN_ERROR", "TOOL_CALL_RESULT"},
	} {
		all := readFrames(t, s.do(t, "POST", c.path, c.body), "")
		var stream []string
		for _, f := range all {
			stream = append(stream, string(f.Data))
		}
		got := strings.Join(stream, "\n")
		if !strings.Contains(got, c.end) || strings.Contains(got, c.never) {
			t.Errorf("%s: got the stream\n%s\nwant %s in it, and no %s", c.path, got, c.end, c.never)
		}
	}
}

// Some endpoints send no arguments for a tool without parameters. Clients parse what they got as JSON.
func TestChatStreamHasTheArgumentsOfACallWithoutAny(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{ID: "c1", Name: "colour"})), nil, nil)
	var got string
	for _, f := range readFrames(t, s.do(t, "POST", "/v1/chat/completions", chatCompletionBody("The sky?", `,"stream":true,"tools":[{"type":"function","function":{"name":"colour"}}]`)), "") {
		var chunk struct {
			Choices []struct {
				Delta struct {
					ToolCalls []struct{ Function struct{ Arguments string } } `json:"tool_calls"`
				}
			}
		}
		_ = json.Unmarshal(f.Data, &chunk) // [DONE] is not JSON
		for _, c := range chunk.Choices {
			for _, call := range c.Delta.ToolCalls {
				got += call.Function.Arguments
			}
		}
	}

	if want := "{}"; got != want {
		t.Errorf("got the arguments %q, want %q", got, want)
	}
}

// A question that requires a call of a tool, and leaves none to call, would be answered without one.
func TestRequiredCallNeedsATool(t *testing.T) {
	t.Parallel()
	s := newService(t, llmtest.Turns(llmtest.Says("Hi.")), nil, nil)
	for _, none := range []string{`"tools":[]`, `"servers":[]`, `"tools":["nosuch_*"]`} {
		p := decodeResponse[problem](t, s.do(t, "POST", "/answer", `{"question":"x","tool_choice":"required",`+none+`}`), 400)
		if len(p.Errors) != 1 || p.Errors[0].Pointer != "/tool_choice" {
			t.Errorf("%s: got the errors %+v, want one at /tool_choice", none, p.Errors)
		}
		e := decodeResponse[openAIError](t, s.do(t, "POST", "/v1/responses", `{"input":"x","tool_choice":"required","answerd":{`+none+`}}`), 400)
		if e.Error.Param == nil || *e.Error.Param != "tool_choice" {
			t.Errorf("%s: got the error %+v, want one about tool_choice", none, e)
		}
	}
	tool := `"tools":[{"type":"function","function":{"name":"colour"}}]`
	decodeResponse[completion](t, s.do(t, "POST", "/v1/chat/completions", chatCompletionBody("x", `,"tool_choice":"required","answerd":{"tools":[]},`+tool)), 200)
}

// Some gateways put a signature into the id of a call (internal/llm/openai/calls.go). Clients send it back with the
// conversation, and the next request must not be refused for it.
func TestLongCallIDsAreReturnedUnchanged(t *testing.T) {
	t.Parallel()
	id := "call_1__thought__" + strings.Repeat("kQ/+", 1500)
	const agui = `{"threadId":"t","runId":"r","tools":[{"name":"colour"}],"messages":[{"id":"1","role":"user","content":"The sky?"}%s]}`
	const page = `{"id":"t","tools":[{"name":"colour"}],"messages":[{"id":"1","role":"user","parts":[{"type":"text","text":"The sky?"}]}%s]}`
	for _, c := range []struct{ path, body, result string }{
		{"/agui", agui, `,{"id":"2","role":"assistant","toolCalls":[{"id":"ID","type":"function","function":{"name":"colour","arguments":"{}"}}]},{"id":"3","role":"tool","toolCallId":"ID","content":"blue"}`},
		{"/api/chat", page, `,{"id":"2","role":"assistant","parts":[{"type":"tool-colour","toolCallId":"ID","state":"output-available","input":{},"output":"blue"}]}`},
	} {
		s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{ID: id, Name: "colour", Args: `{}`}), llmtest.Says("Blue.")), nil, nil)
		if got := readText(t, s.do(t, "POST", c.path, fmt.Sprintf(c.body, ""))); !strings.Contains(got, id) {
			t.Fatalf("%s: got %s, want the call with its id", c.path, got)
		}
		resp := s.do(t, "POST", c.path, fmt.Sprintf(c.body, strings.ReplaceAll(c.result, "ID", id)))
		if got := readText(t, resp); resp.StatusCode != http.StatusOK || !strings.Contains(got, "Blue.") {
			t.Errorf("%s: got %s %.200s, want the answer to the result", c.path, resp.Status, got)
		}
	}
}

// A caller's tool may write a whole file. Its arguments arrive whole in every format, with a stream and without.
func TestLongArgumentsOfACallersToolArriveWhole(t *testing.T) {
	t.Parallel()
	file := strings.Repeat("line ", 20_000)
	s := newService(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "write", Args: `{"file":"` + file + `"}`})), nil, nil)
	function := `"name":"write","parameters":{"type":"object"}`
	for path, body := range map[string]string{
		"/v1/chat/completions": chatCompletionBody("?", `,"tools":[{"type":"function","function":{`+function+`}}]`),
		"/v1/responses":        responsesBody("?", `,"tools":[{"type":"function",`+function+`}]`),
		"/api/chat":            `{"id":"c","messages":[{"role":"user","parts":[{"type":"text","text":"?"}]}],"tools":[{` + function + `}]}`,
	} {
		got := readText(t, s.do(t, "POST", path, body))
		whole := strings.Contains(got, `{\"file\":\"`+file+`\"}`) || strings.Contains(got, `"input":{"file":"`+file+`"}`)
		if !whole {
			t.Errorf("%s: got %d bytes that begin with %.200s, want the arguments whole", path, len(got), got)
		}
	}
}
