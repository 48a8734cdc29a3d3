package llm_test

import (
	"fmt"
	"strings"
	"testing"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/llm/openai"
	"answerd/internal/llm/texttool"
)

func TestRouterAsksEveryModelAsItsProfileSays(t *testing.T) {
	profiles := map[string]llm.Profile{
		"fast":  {ID: "fast", Upstream: "vendor/fast-2", MaxOutputTokens: 100},
		"local": {ID: "local", ToolCalling: llm.TextCalling},
	}
	for _, c := range []struct {
		calling llm.ToolCalling
		request llm.Request
		model   string
		tokens  int64
		native  bool
	}{
		{llm.NativeCalling, llm.Request{Model: "fast"}, "vendor/fast-2", 100, true},
		{"", llm.Request{Model: "fast", MaxTokens: 7}, "vendor/fast-2", 7, true},
		{llm.TextCalling, llm.Request{Model: "fast", MaxTokens: 700}, "vendor/fast-2", 100, false},
		{llm.NativeCalling, llm.Request{Model: "local"}, "local", 0, false},
	} {
		t.Run(fmt.Sprint(c.calling, c.request.Model, c.request.MaxTokens), func(t *testing.T) {
			endpoint := llmtest.New(t, llmtest.Turns(llmtest.Says("Hello")))
			native := openai.New(openai.Config{BaseURL: endpoint.URL})
			t.Cleanup(native.Close)
			router := llm.NewRouter(texttool.Models(native), c.calling, profiles)
			c.request.Messages = []llm.Message{{Role: llm.User, Text: "Hi"}}
			c.request.Tools = []llm.Tool{{Name: "get_weather"}}
			if _, err := llmtest.Collect(t.Context(), router, c.request); err != nil {
				t.Fatal(err)
			}
			got := endpoint.Requests()[0]
			if got.Model != c.model || got.MaxTokens != c.tokens || (len(got.Tools) == 1) != c.native {
				t.Errorf("the endpoint got model %q, %d tokens and %d tools, want %q, %d and native tools: %v",
					got.Model, got.MaxTokens, len(got.Tools), c.model, c.tokens, c.native)
			}
		})
	}
}

func TestRouterWritesTheSchemaWhereTheProfileSays(t *testing.T) {
	const schema = `{"type":"object","required":["sum"]}`
	for mode, native := range map[llm.StructuredOutput]bool{"": true, llm.NativeOutput: true, llm.PromptOutput: false} {
		endpoint := llmtest.New(t, llmtest.Turns(llmtest.Says("{}")))
		model := openai.New(openai.Config{BaseURL: endpoint.URL})
		t.Cleanup(model.Close)
		router := llm.NewRouter(texttool.Models(model), "", map[string]llm.Profile{"m": {ID: "m", StructuredOutput: mode}})
		question := llm.Request{Model: "m", Messages: []llm.Message{{Role: llm.System, Text: "Be brief."}, {Role: llm.User, Text: "Hi"}}, OutputSchema: []byte(schema)}
		if _, err := llmtest.Collect(t.Context(), router, question); err != nil {
			t.Fatal(err)
		}
		got := endpoint.Requests()[0]
		inFormat, inPrompt := strings.Contains(string(got.Body), `"response_format":{"type":"json_schema"`), strings.Contains(got.Messages[0].Content, schema)
		if inFormat != native || inPrompt == native {
			t.Errorf("structured_output %q: got the schema in response_format: %t, in the prompt: %t, want %t and %t\n%s", mode, inFormat, inPrompt, native, !native, got.Body)
		}
	}
}

// Without profiles every model is asked as it is named. With profiles no other model is: its run
// began before the profiles were replaced, and the shared endpoint may not be the model's.
func TestRouterAsksOnlyModelsThatAreServed(t *testing.T) {
	endpoint := llmtest.New(t, llmtest.Turns(llmtest.Says("Hello")))
	native := openai.New(openai.Config{BaseURL: endpoint.URL})
	t.Cleanup(native.Close)
	request := llm.Request{Model: "other", MaxTokens: 7, Messages: []llm.Message{{Role: llm.User, Text: "Hi"}}}
	router := llm.NewRouter(texttool.Models(native), llm.TextCalling, nil)
	if _, err := llmtest.Collect(t.Context(), router, request); err != nil {
		t.Fatal(err)
	}
	if got := endpoint.Requests()[0]; got.Model != "other" || got.MaxTokens != 7 {
		t.Errorf("got the model %s and %d tokens, want other and 7", got.Model, got.MaxTokens)
	}
	router.Replace(llm.NewRouter(texttool.Models(native), llm.TextCalling, map[string]llm.Profile{"a": {ID: "a"}}))
	_, err := llmtest.Collect(t.Context(), router, request)
	if e := llmtest.RequireError(t, err, llm.ModelError); !e.UnknownModel || !strings.HasPrefix(e.Public, "The model is no longer served.") {
		t.Errorf("got %+v, want that the model is no longer served", e)
	}
	if n := len(endpoint.Requests()); n != 1 {
		t.Errorf("got %d requests, want 1", n)
	}
}
