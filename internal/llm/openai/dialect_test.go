package openai

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// imageRequest asks about an image of a tool's result, a sound, and an image of the question.
var imageRequest = llm.Request{Model: "m", Messages: []llm.Message{
	{Role: llm.User, Text: "What is this?", Media: []llm.Media{{URL: "https://example.com/a.png"}}},
	{Role: llm.Assistant, Calls: []llm.ToolCall{{ID: "c", Name: "look", Arguments: "{}"}}},
	{Role: llm.ToolRole, CallID: "c", Tool: "look", Text: "Here:", Media: []llm.Media{
		{Label: "Image 1 of the result of look (call c):", MIME: "image/png", Data: "AAAAAA=="},
		{Label: "Sound 2 of the result of look (call c):", MIME: "audio/wav", Data: "AAAA"},
	}},
}}

// A refusal of images costs one more request without counting as a retry, and is remembered for
// the model. The model gets a line of text for each image; a sound stays.
func TestRefusedImagesBecomeTextAndAreRemembered(t *testing.T) {
	data, err := os.ReadFile("testdata/imageerrors.txt")
	if err != nil {
		t.Fatal(err)
	}

	name, cases := "", 0
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if comment, ok := strings.CutPrefix(line, "# "); ok || line == "" {
			name = comment
			continue
		}
		cases++
		t.Run(name, func(t *testing.T) {
			var status int
			if _, err := fmt.Sscan(line, &status); err != nil {
				t.Fatal(err)
			}

			// Ask the model twice, and then another one.
			var log bytes.Buffer
			s, m := newEndpoint(t, Config{Logger: slog.New(slog.NewJSONHandler(&log, nil))}, replyStatus(status, line[4:]), sendStream(helloStream))
			for range 2 {
				if _, err := llmtest.Collect(t.Context(), m, imageRequest); err != nil {
					t.Fatal(err)
				}
			}
			other := imageRequest
			other.Model = "another"
			if _, err := llmtest.Collect(t.Context(), m, other); err != nil {
				t.Fatal(err)
			}
			requests := s.receivedRequests()
			if len(requests) != 4 {
				t.Fatalf("got %d requests, want 4, of which the first is refused", len(requests))
			}

			// Only the first request of each model has the images. The others have a line of text in their place.
			for i, want := range []int{2, 0, 0, 2} {
				body := string(requests[i].body)
				if got := strings.Count(body, `"image_url":`); got != want {
					t.Errorf("request %d: got %d images, want %d", i+1, got, want)
				}
				if got := strings.Count(body, `which this model cannot take.]`); got != 2-want {
					t.Errorf("request %d: got %d lines in place of images, want %d: %s", i+1, got, 2-want, body)
				}
				if got := strings.Count(body, `"input_audio":`); got != 1 {
					t.Errorf("request %d: got %d sounds, want 1", i+1, got)
				}
			}
			for _, want := range []string{
				`"content":"What is this?\n[An image was here, which this model cannot take.]"`,
				`"content":"Here:\nImage 1 of the result of look (call c): [An image (image/png, 4 bytes) was here, which this model cannot take.]"`,
			} {
				if !strings.Contains(string(requests[1].body), want) {
					t.Errorf("got the request %s, want %s in it", requests[1].body, want)
				}
			}

			if n := strings.Count(log.String(), "the model takes no images"); n != 1 || strings.Contains(log.String(), "trying again") {
				t.Errorf("got the log\n%s\nwant one line that the model takes no images, and no retry", log.String())
			}
			if want := `"remembered_for":"1h0m0s"`; !strings.Contains(log.String(), want) {
				t.Errorf("got the log\n%s\nwant %s in it", log.String(), want)
			}
		})
	}
	if cases < 15 {
		t.Errorf("got %d errors, want at least 15", cases)
	}
}

// An error about one image says nothing about the model, and neither does one in a request without
// images.
func TestImagesAreKeptIfTheErrorIsAboutSomethingElse(t *testing.T) {
	for said, r := range map[string]llm.Request{
		"You uploaded an unsupported image. Please make sure your image is valid.": imageRequest,
		"At most 1 image(s) may be provided in one request.":                       imageRequest,
		"This model does not support image input.":                                 testRequest,
	} {
		s, m := newEndpoint(t, Config{}, replyStatus(400, fmt.Sprintf(`{"error":{"message":%q}}`, said)))
		_, err := llmtest.Collect(t.Context(), m, r)
		requireError(t, err, llm.ModelError)
		if n := len(s.receivedRequests()); n != 1 || m.dialects.get("m").noImages {
			t.Errorf("%s: got %d requests and the images remembered as refused: %t, want 1 and false", said, n, m.dialects.get("m").noImages)
		}
	}
}

func TestKnownDialectsAreForgottenAfterAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k knownDialects
		k.set("a", dialect{noImages: true})
		<-time.After(dialectLifetime)
		if !k.get("a").noImages || k.get("b").noImages {
			t.Errorf("after an hour: got %t for a and %t for b, want true and false", k.get("a").noImages, k.get("b").noImages)
		}
		<-time.After(time.Second)
		if k.get("a").noImages {
			t.Error("after more than an hour: got images of a as refused, want that forgotten")
		}
	})
	var k knownDialects
	for i := range maxKnownDialects + 100 {
		k.set(fmt.Sprint(i), dialect{noImages: true})
	}
	if n := len(k.byModel); n != maxKnownDialects || !k.get(fmt.Sprint(maxKnownDialects+99)).noImages {
		t.Errorf("got %d models, want %d with the last one", n, maxKnownDialects)
	}
}

// Mistral, OpenAI and Anthropic refuse ids that other endpoints have given to calls. A conversation that began with
// another model continues with shorter ones.
func TestRefusedCallIDsAreShortened(t *testing.T) {
	request := llm.Request{Model: "m", Messages: []llm.Message{
		{Role: llm.User, Text: "Hi"},
		{Role: llm.Assistant, Calls: []llm.ToolCall{{ID: "call_PTLP8xhu3uwZk4l3nlnrrJha", Name: "f", Arguments: "{}"}, {ID: "Ab3dEf6h9", Name: "f", Arguments: "{}"}}},
		{Role: llm.ToolRole, CallID: "call_PTLP8xhu3uwZk4l3nlnrrJha", Tool: "f", Text: "one"},
		{Role: llm.ToolRole, CallID: "Ab3dEf6h9", Tool: "f", Text: "two"},
	}}
	for _, message := range []string{
		"Tool call id was call_PTLP8xhu3uwZk4l3nlnrrJha but must be a-z, A-Z, 0-9, with a length of 9.",
		"Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40, but got a string with length 53 instead.",
		"Invalid 'messages[2].tool_call_id': string too long. Expected a string with maximum length 40, but got a string with length 53 instead.",
		"messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
		"messages.2.content.0.tool_result.tool_use_id: String should match pattern '^[a-zA-Z0-9_-]+$'",
	} {
		s, m := newEndpoint(t, Config{}, replyStatus(400, fmt.Sprintf(`{"object":"error","message":%q}`, message)), sendStream(helloStream))
		if _, err := llmtest.Collect(t.Context(), m, request); err != nil {
			t.Fatalf("%s: %v", message, err)
		}
		body := s.receivedRequests()[1].body
		ids := regexp.MustCompile(`"(?:id|tool_call_id)":"([A-Za-z0-9]{9})"`).FindAllSubmatch(body, -1)
		if len(ids) != 4 || !bytes.Equal(ids[0][1], ids[2][1]) || string(ids[1][1]) != "Ab3dEf6h9" || string(ids[3][1]) != "Ab3dEf6h9" {
			t.Errorf("%s: got the request %s, want ids of 9 characters, in which only the long one has changed", message, body)
		}
	}
}

// A strict tool whose schema allows it is sent as such. Endpoints that refuse that get the tool without it, and models
// that refuse it of every tool are remembered.
func TestRefusedStrictToolsAreSentWithoutStrict(t *testing.T) {
	tool := llm.Tool{Name: "note", Schema: []byte(`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}`), Strict: true}
	loose := llm.Tool{Name: "loose", Schema: []byte(`{"type":"object","properties":{"a":{"type":"string"}}}`), Strict: true}
	for said, want := range map[string][]int{
		`Invalid JSON payload received. Unknown name "strict" at 'tools[0].function': Cannot find field.`: {1, 0, 0},
		"Tools with mixed values for 'strict' are not allowed.":                                           {1, 0, 0},
		"Invalid schema for function 'note': In context=(), 'minLength' is not permitted.":                {1, 0, 1},
	} {
		s, m := newEndpoint(t, Config{}, replyStatus(400, fmt.Sprintf(`{"error":{"message":%q}}`, said)), sendStream(helloStream))
		r := testRequest
		r.Tools = []llm.Tool{tool, loose}
		for range 2 {
			if _, err := llmtest.Collect(t.Context(), m, r); err != nil {
				t.Errorf("%s: got the error %v, want none", said, err)
			}
		}
		var got []int
		for _, request := range s.receivedRequests() {
			got = append(got, strings.Count(string(request.body), `"strict":true`))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v strict tools in the requests, want %v", said, got, want)
		}
	}
}

// Mistral and the chat templates of its models refuse a user message directly after a tool result or another user
// message. Both occur: a run at its limit is asked to sum up, and images of results follow in a message of their own.
func TestRefusedOrderOfRolesGetsAnswersInBetween(t *testing.T) {
	request := llm.Request{Model: "m", Messages: []llm.Message{
		{Role: llm.User, Text: "one"}, {Role: llm.User, Text: "two"},
		{Role: llm.Assistant, Calls: []llm.ToolCall{{ID: "a", Name: "f", Arguments: "{}"}, {ID: "b", Name: "f", Arguments: "{}"}}},
		{Role: llm.ToolRole, CallID: "a", Tool: "f", Text: "1"}, {Role: llm.ToolRole, CallID: "b", Tool: "f", Text: "2"},
		{Role: llm.User, Text: "three"},
	}}
	for said, status := range map[string]int{
		"Unexpected role 'user' after role 'tool'":                                                                                        400,
		"After the optional system message, conversation roles must alternate user/assistant/user/assistant/...":                          400,
		"After the optional system message, conversation roles must alternate user and assistant roles except for tool calls and results": 500,
	} {
		s, m := newEndpoint(t, Config{}, replyStatus(status, fmt.Sprintf(`{"error":{"message":%q}}`, said)), sendStream(helloStream))
		if _, err := llmtest.Collect(t.Context(), m, request); err != nil {
			t.Fatalf("%s: got the error %v, want none", said, err)
		}
		var got []string
		for _, role := range regexp.MustCompile(`"role":"(\w+)"`).FindAllSubmatch(s.receivedRequests()[1].body, -1) {
			got = append(got, string(role[1]))
		}
		if want := []string{"user", "assistant", "user", "assistant", "tool", "tool", "assistant", "user"}; !slices.Equal(got, want) {
			t.Errorf("%s: got the roles %q, want %q", said, got, want)
		}
	}
}

// Bedrock, and LiteLLM before Anthropic and Bedrock, refuse a conversation with calls if the request has no tools, as in
// the last turn of a run at its limit.
func TestRefusedCallsWithoutToolsGetAPlaceholderTool(t *testing.T) {
	request := llm.Request{Model: "m", ToolChoice: llm.None, Messages: []llm.Message{
		{Role: llm.User, Text: "Hi"}, {Role: llm.Assistant, Calls: []llm.ToolCall{{ID: "a", Name: "f", Arguments: "{}"}}},
		{Role: llm.ToolRole, CallID: "a", Tool: "f", Text: "1"},
	}}
	for _, said := range []string{
		"The toolConfig field must be defined when using toolUse and toolResult content blocks.",
		"litellm.UnsupportedParamsError: Anthropic doesn't support tool calling without `tools=` param specified.",
		"Requests which include `tool_use` or `tool_result` blocks must define tools.",
	} {
		s, m := newEndpoint(t, Config{}, replyStatus(400, fmt.Sprintf(`{"error":{"message":%q}}`, said)), sendStream(helloStream))
		if _, err := llmtest.Collect(t.Context(), m, request); err != nil {
			t.Fatalf("%s: got the error %v, want none", said, err)
		}
		body := string(s.receivedRequests()[1].body)
		// LiteLLM refuses the choice none for Bedrock.
		if strings.Count(body, `"parameters":`) != 1 || !strings.Contains(body, `"tool_choice":"auto"`) {
			t.Errorf("%s: got the request %s, want one tool and the choice auto", said, body)
		}
	}
}

// Gemma and some models of OpenAI refuse the role system, which every request has. They are remembered.
func TestRefusedSystemRoleBecomesAUserMessage(t *testing.T) {
	request := llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.System, Text: "Be brief."}, {Role: llm.User, Text: "Hi"}}}
	for _, said := range []string{
		"System role not supported",
		"Unsupported value: 'messages[0].role' does not support 'system' with this model.",
		"Developer instruction is not enabled for models/gemma-3-27b-it",
	} {
		s, m := newEndpoint(t, Config{}, replyStatus(400, fmt.Sprintf(`{"error":{"message":%q}}`, said)), sendStream(helloStream))
		for range 2 {
			if _, err := llmtest.Collect(t.Context(), m, request); err != nil {
				t.Fatalf("%s: got the error %v, want none", said, err)
			}
		}
		want := `"messages":[{"role":"user","content":"Be brief."},{"role":"assistant","content":"OK."},{"role":"user","content":"Hi"}]`
		requests := s.receivedRequests()
		if len(requests) != 3 || !strings.Contains(string(requests[1].body), want) || !strings.Contains(string(requests[2].body), want) {
			t.Errorf("%s: got %d requests, the last %s, want 3, the last two with %s", said, len(requests), requests[len(requests)-1].body, want)
		}
	}
}
