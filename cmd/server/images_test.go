package main

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"answerd/internal/llm/llmtest"
)

// Without MODELS_FILE a model that is not known to take text alone gets the image of the question.
// If its endpoint refuses that, the same question is answered without it, and the next one has no
// refused request. The texts are those of internal/llm/openai/testdata/imageerrors.txt.
func TestProviderThatRefusesImagesGetsText(t *testing.T) {
	t.Parallel()
	const question = `{"model":"mine","messages":[{"role":"user","content":[{"type":"text","text":"What is this?"},
		{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="}}]}]}`
	for name, c := range map[string]struct {
		status int
		body   string
	}{
		"OpenAI":     {400, `{"error":{"message":"Invalid content type. image_url is only supported by certain models.","type":"invalid_request_error","param":"messages.[1].content.[1].type","code":null}}`},
		"OpenRouter": {404, `{"error":{"message":"No endpoints found that support image input","code":404}}`},
		"DeepSeek":   {400, "{\"error\":{\"message\":\"Failed to deserialize the JSON body into the target type: messages[11]: unknown variant `image_url`, expected `text` at line 1 column 53929\",\"type\":\"invalid_request_error\"}}"},
		"llama.cpp":  {500, `{"error":{"code":500,"message":"image input is not supported - hint: if this is unexpected, you may need to provide the mmproj","type":"server_error"}}`},
		"vLLM":       {400, `{"error":{"message":"mine is not a multimodal model","type":"BadRequestError","param":null,"code":400}}`},
	} {
		t.Run(name, func(t *testing.T) {
			var refused atomic.Int64
			w := newTestWorld(t, func(r llmtest.Request) llmtest.Answer {
				if strings.Contains(string(r.Body), `"image_url":`) {
					refused.Add(1)
					return func(w http.ResponseWriter, _ *http.Request) {
						w.WriteHeader(c.status)
						_, _ = io.WriteString(w, c.body)
					}
				}
				return llmtest.Says("I cannot see it.")
			})

			s := startAnswerd(t, w.environment("LLM_MAX_RETRIES", "0"))
			for range 2 {
				resp := post(t, newClient(t), s.url+"/v1/chat/completions", question)
				body, err := io.ReadAll(resp.Body)
				if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), "I cannot see it.") {
					t.Errorf("got %s %s, %v, want I cannot see it.", resp.Status, body, err)
				}
			}

			requests := w.model.Requests()
			if n := refused.Load(); n != 1 || len(requests) != 3 {
				t.Errorf("got %d refused of %d requests, want 1 of 3", n, len(requests))
			}
			last := requests[len(requests)-1].Messages
			if want := "What is this?\n[An image (image/png, 70 bytes) was here, which this model cannot take.]"; last[len(last)-1].Content != want {
				t.Errorf("got the question %q, want %q", last[len(last)-1].Content, want)
			}
			if n := strings.Count(s.log.String(), `"msg":"the model takes no images, so it gets a line of text in place of each"`); n != 1 {
				t.Errorf("got %d lines about it in the log, want 1", n)
			}
		})
	}
}
