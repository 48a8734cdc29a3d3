package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
)

// structuredRequest asks for JSON.
var structuredRequest = llm.Request{Model: "m", OutputSchema: json.RawMessage(`{"type":"object"}`), Messages: []llm.Message{
	{Role: llm.System, Text: "Be brief."}, {Role: llm.User, Text: "?"},
}}

// Each text is what an endpoint answers to a response_format: llama.cpp, DeepSeek, Gemini with
// tools, vLLM, OpenRouter, Groq, and Groq and Mistral with tools.
var refusedFormats = map[string]int{
	"json_schema response_format is not supported":                                                400,
	"This response_format type is unavailable now":                                                400,
	"Function calling with a response mime type: 'application/json' is unsupported":               400,
	"guided decoding is not available for this model":                                             400,
	"No endpoints found that support the requested parameters: response_format":                   404,
	"This model does not support response format `json_schema`.":                                  400,
	"response_format: Extra inputs are not permitted":                                             422,
	"Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model": 400,
	"json mode cannot be combined with tool/function calling":                                     400,
	"Cannot use json response type with tools":                                                    400,
}

func TestRefusedResponseFormatBecomesAPromptAndIsRemembered(t *testing.T) {
	for said, status := range refusedFormats {
		var log bytes.Buffer
		s, m := newEndpoint(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, replyStatus(status, fmt.Sprintf(`{"error":{"message":%q}}`, said)), sendStream(helloStream))
		other := structuredRequest
		other.Model = "another"

		for _, r := range []llm.Request{structuredRequest, structuredRequest, other} {
			if _, err := llmtest.Collect(t.Context(), m, r); err != nil {
				t.Fatalf("%s: %v", said, err)
			}
		}

		requests := s.receivedRequests()
		if len(requests) != 4 {
			t.Fatalf("%s: got %d requests, want 4, of which the first is refused", said, len(requests))
		}

		for i, native := range []bool{true, false, false, true} {
			body := string(requests[i].body)
			if strings.Contains(body, `"response_format":`) != native || strings.Contains(body, `Be brief.\n\nWrite your final answer as JSON`) == native {
				t.Errorf("%s: request %d is %s, want a response_format: %t, or else the schema in the system message", said, i+1, body, native)
			}
		}

		if n := strings.Count(log.String(), "the model takes no response_format"); n != 1 {
			t.Errorf("%s: got %d lines about it in the log, want 1:\n%s", said, n, log.String())
		}
	}
}

// A refusal of one schema says nothing about the next one.
func TestRefusedSchemaIsNotRemembered(t *testing.T) {
	refuse := replyStatus(400, `{"error":{"message":"Invalid schema for response_format 'answer': In context=(), 'x' is not permitted."}}`)
	s, m := newEndpoint(t, Config{}, refuse, sendStream(helloStream), sendStream(helloStream))
	for range 2 {
		if _, err := llmtest.Collect(t.Context(), m, structuredRequest); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.receivedRequests()); n != 3 || m.dialects.get("m").noFormat {
		t.Errorf("got %d requests and the format remembered as refused: %t, want 3 and false", n, m.dialects.get("m").noFormat)
	}
}

// A response_format without a schema of ours has nothing to fall back to.
func TestRefusedResponseFormatOfTheCallerIsAnError(t *testing.T) {
	r := testRequest
	r.Sampling.ResponseFormat = json.RawMessage(`{"type":"json_object"}`)
	s, m := newEndpoint(t, Config{}, replyStatus(400, `{"error":{"message":"response_format is not supported"}}`))
	_, err := llmtest.Collect(t.Context(), m, r)
	requireError(t, err, llm.ModelError)
	if n := len(s.receivedRequests()); n != 1 {
		t.Errorf("got %d requests, want 1", n)
	}
}

// OpenAI refuses strict for a schema whose objects may have other members.
func TestResponseFormatIsStrictWhereTheSchemaIs(t *testing.T) {
	for schema, want := range map[string]bool{
		`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}`:                                                                 true,
		`{"type":"object","properties":{"type":{"type":"string"}},"required":["type"],"additionalProperties":false}`:                                                           true,
		`{"type":"object","properties":{"a":{"type":"string"}},"required":[],"additionalProperties":false}`:                                                                    false,
		`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`:                                                                                              false,
		`{"type":"object","properties":{"a":{"type":"array","items":{"type":"object"}}},"required":["a"],"additionalProperties":false}`:                                        false,
		`{"type":"array","items":{"type":"string"}}`:                                                                                                                           false,
		`{"type":"object","properties":{"a":{"$ref":"#/$defs/b"}},"required":["a"],"additionalProperties":false,"$defs":{"b":{"type":"object","additionalProperties":false}}}`: true,
	} {
		got := string(newResponseFormat(json.RawMessage(schema)))
		if want := fmt.Sprintf(`{"type":"json_schema","json_schema":{"name":"answer","schema":%s,"strict":%t}}`, schema, want); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
