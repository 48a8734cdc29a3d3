package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

var update = flag.Bool("update", false, "write the golden files anew")

// demoTools are the MCP server's own tools as an agent offers them to a model.
var demoTools = sync.OnceValue(func() []chatTool {
	serverSide, clientSide := sdk.NewInMemoryTransports()
	ctx := context.Background()
	server, err := newToolServer(slog.New(slog.DiscardHandler)).Connect(ctx, serverSide, nil)
	if err != nil {
		panic(err)
	}
	defer server.Wait()
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(ctx, clientSide, nil)
	if err != nil {
		panic(err)
	}
	defer session.Close()
	list, err := session.ListTools(ctx, nil)
	if err != nil {
		panic(err)
	}
	var tools []chatTool
	for _, t := range list.Tools {
		tools = append(tools, newTool(t.Name, t.Description, string(encode(t.InputSchema))))
	}
	return tools
})

func newTool(name, description, schema string) chatTool {
	t := chatTool{Type: "function"}
	t.Function.Name, t.Function.Description, t.Function.Parameters = name, description, json.RawMessage(schema)
	return t
}

// conversation makes messages of texts, the user's and the assistant's by turns.
func conversation(texts ...string) []chatMessage {
	var out []chatMessage
	for i, text := range texts {
		out = append(out, chatMessage{Role: []string{"user", "assistant"}[i%2], Content: chatContent(text)})
	}
	return out
}

// planned is the calls of a reply, as "name args".
func planned(r *reply) []string {
	out := []string{}
	for _, c := range r.calls {
		out = append(out, c.name+" "+c.args)
	}
	return out
}

// withResults goes on with a reply's calls and their results.
func withResults(messages []chatMessage, r *reply, results ...string) []chatMessage {
	m := chatMessage{Role: "assistant"}
	for _, c := range r.calls {
		call := chatCall{ID: c.id, Type: "function"}
		call.Function.Name, call.Function.Arguments = c.name, c.args
		m.ToolCalls = append(m.ToolCalls, call)
	}
	messages = append(messages, m)
	for i, c := range r.calls {
		messages = append(messages, chatMessage{Role: "tool", ToolCallID: c.id, Content: chatContent(results[i])})
	}
	return messages
}

func startModel(t *testing.T, c ModelConfig) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(NewModel(c))
	t.Cleanup(srv.Close)
	return srv
}

// post sends a body and gives status and answer whole.
func post(t *testing.T, srv *httptest.Server, body string) (int, string) {
	t.Helper()
	resp, err := srv.Client().Post(srv.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func openaiClient(srv *httptest.Server) openai.Client {
	return openai.NewClient(option.WithBaseURL(srv.URL+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0), option.WithHTTPClient(srv.Client()))
}

// openaiParams is a streaming request with the demo's tools.
func openaiParams(t *testing.T, question string) openai.ChatCompletionNewParams {
	t.Helper()
	body := encode(map[string]any{
		"model": "any", "messages": []any{map[string]any{"role": "user", "content": question}},
		"tools": wireTools(demoTools()), "stream_options": map[string]any{"include_usage": true},
	})
	var p openai.ChatCompletionNewParams
	if err := json.Unmarshal(body, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func wireTools(tools []chatTool) []any {
	var out []any
	for _, t := range tools {
		out = append(out, map[string]any{"type": "function", "function": map[string]any{
			"name": t.Function.Name, "description": t.Function.Description, "parameters": t.Function.Parameters}})
	}
	return out
}

// S1.9: what a stranger's client assembles from the stream is what was planned.
func TestOpenAIsOwnClientReadsTheStream(t *testing.T) {
	srv := startModel(t, ModelConfig{TokenDelay: -1})
	client := openaiClient(srv)
	for question, want := range map[string][]string{
		"What time is it in Tokyo and what is 12.5*8?": {`current_time {"time_zone":"Asia/Tokyo"}`, `calculate {"expression":"12.5*8"}`},
		"Tell me a joke": {},
	} {
		stream := client.Chat.Completions.NewStreaming(t.Context(), openaiParams(t, question))
		var acc openai.ChatCompletionAccumulator
		for stream.Next() {
			if !acc.AddChunk(stream.Current()) {
				t.Fatalf("the accumulator refuses %s", stream.Current().RawJSON())
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		stream.Close()
		choice := acc.Choices[0]
		got := []string{}
		for _, c := range choice.Message.ToolCalls {
			got = append(got, c.Function.Name+" "+c.Function.Arguments)
		}
		finish := map[bool]string{true: "stop", false: "tool_calls"}[len(want) == 0]
		if !reflect.DeepEqual(got, want) || choice.FinishReason != finish || acc.Usage.TotalTokens == 0 {
			t.Errorf("%s: %v, %s, %+v", question, got, choice.FinishReason, acc.Usage)
		}
		whole, err := client.Chat.Completions.New(t.Context(), openaiParams(t, question))
		if err != nil {
			t.Fatal(err)
		}
		if whole.Choices[0].Message.Content != choice.Message.Content || whole.ID != acc.ID || len(whole.Choices[0].Message.ToolCalls) != len(want) {
			t.Errorf("%s: stream and whole answer differ", question)
		}
	}
}

// The exact frames that clients are known to need: the role first, id and name before
// the arguments, "usage": null until the last chunk, and [DONE].
func TestFramesOfAStream(t *testing.T) {
	srv := startModel(t, ModelConfig{TokenDelay: -1})
	tools := []chatTool{
		newTool("clock", "Tells the time.", `{"type":"object","properties":{"time_zone":{"type":"string"}}}`),
		newTool("sum", "Computes.", `{"type":"object","properties":{"expression":{"type":"string"}},"required":["expression"]}`),
	}
	for name, question := range map[string]string{"text": "hello", "calls": "What time is it in Rome and what is 2+2?"} {
		_, body := post(t, srv, string(encode(map[string]any{
			"stream": true, "stream_options": map[string]any{"include_usage": true}, "tools": wireTools(tools),
			"messages": []any{map[string]any{"role": "user", "content": []any{map[string]any{"type": "text", "text": question}}}},
		})))
		var frames bytes.Buffer
		lines := bufio.NewScanner(strings.NewReader(body))
		for lines.Scan() {
			var chunk map[string]any
			data := strings.TrimPrefix(lines.Text(), "data: ")
			if json.Unmarshal([]byte(data), &chunk) == nil {
				chunk["created"] = 0
				data = string(encode(chunk))
			}
			frames.WriteString(data + "\n")
		}
		golden := filepath.Join("testdata", "stream-"+name+".txt")
		if *update {
			if err := os.WriteFile(golden, frames.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if frames.String() != string(want) {
			t.Errorf("%s:\n%s", golden, frames.String())
		}
	}
}

func TestBadRequestsGetOpenAIsErrors(t *testing.T) {
	srv := startModel(t, ModelConfig{})
	user := `{"role":"user","content":"hi"}`
	called := `{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]}`
	for name, c := range map[string]struct {
		body   string
		status int
	}{
		"no JSON":                  {`{`, 400},
		"no messages":              {`{}`, 400},
		"unknown role":             {`{"messages":[{"role":"robot","content":"hi"}]}`, 400},
		"content of another type":  {`{"messages":[{"role":"user","content":5}]}`, 400},
		"unanswered call":          {`{"messages":[` + user + `,` + called + `]}`, 400},
		"call answered too late":   {`{"messages":[` + user + `,` + called + `,` + user + `]}`, 400},
		"call answered twice":      {`{"messages":[` + called + `,{"role":"tool","tool_call_id":"a","content":""},{"role":"tool","tool_call_id":"a","content":""}]}`, 400},
		"answer to nothing":        {`{"messages":[{"role":"tool","tool_call_id":"a","content":"x"}]}`, 400},
		"bad tool name":            {`{"messages":[` + user + `],"tools":[{"type":"function","function":{"name":"a b"}}]}`, 400},
		"bad tool type":            {`{"messages":[` + user + `],"tools":[{"type":"x","function":{"name":"a"}}]}`, 400},
		"unknown choice":           {`{"messages":[` + user + `],"tool_choice":"sometimes"}`, 400},
		"choice of a missing tool": {`{"messages":[` + user + `],"tool_choice":{"type":"function","function":{"name":"f"}}}`, 400},
		"required without tools":   {`{"messages":[` + user + `],"tool_choice":"required"}`, 400},
		"too large":                {`{"messages":"` + strings.Repeat("a", maxChatBody) + `"}`, 413},
	} {
		status, body := post(t, srv, c.body)
		var e struct {
			Error struct{ Message, Type string }
		}
		if err := json.Unmarshal([]byte(body), &e); err != nil || status != c.status || e.Error.Message == "" || e.Error.Type != "invalid_request_error" {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	req, _ := http.NewRequest(http.MethodGet, srv.URL+"/v1/embeddings", nil)
	if status, answer, _ := doJSON(t, srv, req); status != 404 || answer["error"] == nil {
		t.Errorf("an unknown path: %d %v", status, answer)
	}
	req, _ = http.NewRequest(http.MethodGet, srv.URL+"/v1/models", nil)
	if _, answer, _ := doJSON(t, srv, req); answer["data"].([]any)[0].(map[string]any)["id"] != ModelID {
		t.Errorf("models: %v", answer)
	}
}

// F29: the handler leaves at once although the next word is an hour away. Closing the
// test server waits for it.
func TestStreamStopsWhenTheClientLeaves(t *testing.T) {
	srv := httptest.NewServer(NewModel(ModelConfig{TokenDelay: 1 << 42}))
	ctx, cancel := context.WithCancel(context.Background())
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/v1/chat/completions",
		strings.NewReader(`{"stream":true,"messages":[{"role":"user","content":"hello"}]}`))
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil || !strings.Contains(line, `"role":"assistant"`) {
		t.Errorf("the first chunk is %q, %v", line, err)
	}
	cancel()
	resp.Body.Close()
	srv.Close()
}
