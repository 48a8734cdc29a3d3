package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

var update = flag.Bool("update", false, "write the golden files anew")

// demoTools are the names of the MCP server's own tools.
var demoTools = strings.Fields("book_table calculate connect_calendar convert current_time delete_note flaky_service list_notes search_docs slow_report")

// newChatRequest returns a request with these messages, in turn of the user and the assistant.
func newChatRequest(t *testing.T, tools []string, texts ...string) *chatRequest {
	t.Helper()
	var messages []any
	for i, text := range texts {
		messages = append(messages, map[string]any{"role": []string{"user", "assistant"}[i%2], "content": text})
	}
	return decodeRequest(t, map[string]any{"messages": messages, "tools": wireTools(tools)})
}

func decodeRequest(t *testing.T, body map[string]any) *chatRequest {
	t.Helper()
	r := new(chatRequest)
	if err := json.Unmarshal([]byte(encodeJSON(body)), r); err != nil {
		t.Fatal(err)
	}
	return r
}

// callNames returns the calls of a reply as "name arguments".
func callNames(r *reply) []string {
	out := []string{}
	for _, c := range r.calls {
		out = append(out, c.tool+" "+c.arguments)
	}
	return out
}

func wireTools(names []string) []any {
	out := []any{}
	for _, name := range names {
		out = append(out, map[string]any{"type": "function", "function": map[string]any{"name": name}})
	}
	return out
}

func startModel(t *testing.T, delay time.Duration) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(NewModel(delay))
	t.Cleanup(srv.Close)
	return srv
}

// postChat sends a body and returns the status and the whole answer.
func postChat(t *testing.T, srv *httptest.Server, body string) (int, string) {
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
	body := encodeJSON(map[string]any{
		"model": "any", "messages": []any{map[string]any{"role": "user", "content": question}},
		"tools": wireTools(demoTools), "stream_options": map[string]any{"include_usage": true},
	})
	var p openai.ChatCompletionNewParams
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// A client of another project assembles from the stream what the model planned.
func TestModelStreamsToOpenAIsClient(t *testing.T) {
	srv := startModel(t, 0)
	client := openaiClient(srv)
	for question, want := range map[string][]string{
		"What time is it in Tokyo and what is 12.5*8?": {`current_time {"time_zone":"Asia/Tokyo"}`, `calculate {"expression":"12.5*8"}`},
		"Tell me a joke": {},
	} {
		stream := client.Chat.Completions.NewStreaming(t.Context(), openaiParams(t, question))
		var acc openai.ChatCompletionAccumulator
		for stream.Next() {
			if !acc.AddChunk(stream.Current()) {
				t.Fatalf("the client library refuses the chunk %s, want it accepted", stream.Current().RawJSON())
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
			t.Errorf("%s: %v, %s, %+v, want %s, FinishReason %s, Usage.TotalTokens non-zero", question, got, choice.FinishReason, acc.Usage, want, finish)
		}
		whole, err := client.Chat.Completions.New(t.Context(), openaiParams(t, question))
		if err != nil {
			t.Fatal(err)
		}
		if whole.Choices[0].Message.Content != choice.Message.Content || len(whole.Choices[0].Message.ToolCalls) != len(want) {
			t.Errorf("%s: got different answers as a stream and as a whole, want the same", question)
		}
	}
}

// The exact frames that clients are known to need: the role first, id and name before
// the arguments, "usage": null until the last chunk, and [DONE].
func TestModelStreamFrames(t *testing.T) {
	srv := startModel(t, 0)
	for name, question := range map[string]string{"text": "hello", "calls": "What time is it in Rome and what is 2+2?"} {
		_, body := postChat(t, srv, (encodeJSON(map[string]any{
			"stream": true, "stream_options": map[string]any{"include_usage": true}, "tools": wireTools([]string{"current_time", "calculate"}),
			"messages": []any{map[string]any{"role": "user", "content": []any{map[string]any{"type": "text", "text": question}}}},
		})))

		var frames bytes.Buffer
		lines := bufio.NewScanner(strings.NewReader(body))
		for lines.Scan() {
			var chunk map[string]any
			data := strings.TrimPrefix(lines.Text(), "data: ")
			if json.Unmarshal([]byte(data), &chunk) == nil {
				chunk["created"], chunk["id"] = 0, "chatcmpl-X"
				data = encodeJSON(chunk)
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
			t.Errorf("%s:\n%s, want %s", golden, frames.String(), string(want))
		}
	}
}

func TestModelRefusesBadRequests(t *testing.T) {
	t.Parallel()
	srv := startModel(t, 0)
	for name, body := range map[string]string{
		"no JSON": "{", "no messages": "{}", "no object": "[]", "no list": `{"messages":5}`, "too large": `{"messages":"` + strings.Repeat("a", 4<<20) + `"}`,
	} {
		status, answer := postChat(t, srv, body)
		var e struct {
			Error struct{ Message, Type string }
		}
		if err := json.Unmarshal([]byte(answer), &e); err != nil || status != 400 || e.Error.Message == "" || e.Error.Type != "invalid_request_error" {
			t.Errorf("%s: got %d %s, want 400 and an error of OpenAI's form", name, status, answer)
		}
	}
}

// The handler leaves at once although the next word is an hour away. Closing the
// test server waits for it.
func TestModelStopsWhenTheClientLeaves(t *testing.T) {
	srv := httptest.NewServer(NewModel(time.Hour))
	ctx, cancel := context.WithCancel(context.Background())
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/v1/chat/completions",
		strings.NewReader(`{"stream":true,"messages":[{"role":"user","content":"hello"}]}`))
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil || !strings.Contains(line, `"role":"assistant"`) {
		t.Errorf("the first chunk is %q, %v, want a data line", line, err)
	}
	cancel()
	resp.Body.Close()
	srv.Close()
}
