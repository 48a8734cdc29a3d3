package llm

import (
	"context"
	"errors"
	"net/http"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// prototype is the request that the SDK makes to base, without a body: all those to one
// endpoint have the same address and header. To have the SDK make each of them took a
// fifteenth of the CPU time of an answer without tools, a tenth of its garbage, and so much
// stack that each run's was twice as large.
func prototype(base, key string) (*http.Request, error) {
	var made capture
	// The service and not openai.NewClient, which reads OPENAI_* from the environment:
	// a key meant for OpenAI would go to whatever endpoint is configured here.
	chat := openai.NewChatCompletionService(option.WithBaseURL(base), option.WithAPIKey(key), option.WithHTTPClient(&made), option.WithMaxRetries(0))
	if _, err := chat.New(context.Background(), openai.ChatCompletionNewParams{}); !errors.Is(err, errCaptured) {
		return nil, err
	}
	r := made.request
	if u := r.URL.User; u != nil && r.Header.Get("Authorization") == "" {
		password, _ := u.Password()
		r.SetBasicAuth(u.Username(), password)
	}
	return r, nil
}

// capture is an option.HTTPClient that keeps the request and sends nothing.
type capture struct{ request *http.Request }

var errCaptured = errors.New("the request is not sent")

func (c *capture) Do(r *http.Request) (*http.Response, error) {
	c.request = r
	return nil, errCaptured
}
