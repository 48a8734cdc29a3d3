package mcp

//lint:file-ignore SA1019 2026-07-28 deprecates sampling (SEP-2577); servers still use it.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
)

// serveSamplingTool returns a server whose tool has the client's model answer its own argument.
func serveSamplingTool(t *testing.T, flavour string, params *sdk.CreateMessageParams) *httpServer {
	return serveSampling(t, flavour, func(r *sdk.CallToolRequest) sdk.InputRequest {
		p := *params
		if p.Messages == nil {
			p.Messages = []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: string(r.Params.Arguments)}}}
		}
		return &p
	})
}

// serveSampling returns a server whose tool has the client's model answer what request returns.
func serveSampling(t *testing.T, flavour string, request func(*sdk.CallToolRequest) sdk.InputRequest) *httpServer {
	return serveHTTP(t, streamableHandler(t, newToolServer(func(s *sdk.Server) {
		addRawTool(s, "ask", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			given := r.Params.InputResponses["q"]
			if given == nil {
				return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"q": request(r)}}, nil
			}
			said, err := json.Marshal(given)
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: string(said)}}}, err
		})
	}), flavours[flavour]))
}

// Each sampling request reaches the caller whose call it belongs to.
func TestSamplingBelongsToItsCall(t *testing.T) {
	t.Parallel()
	for _, flavour := range []string{"stateful sse", "stateless json"} {
		w := serveSamplingTool(t, flavour, &sdk.CreateMessageParams{SystemPrompt: "Be brief.", MaxTokens: 1 << 40})
		c := newClient(t, Options{MaxConcurrentCalls: 50}, config.Server{Name: "a", URL: w.URL, Sampling: true})
		c.Tools(t.Context())

		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				args := fmt.Sprintf(`{"n":%d}`, i)
				res, err := c.Call(t.Context(), Call{Tool: "ask", Args: json.RawMessage(args), Sample: func(_ context.Context, s Sampling) (Sample, error) {
					if s.System != "Be brief." || s.MaxTokens != 4096 || len(s.Messages) != 1 || s.Messages[0] != (SamplingMessage{Role: "user", Text: args}) {
						t.Errorf("got %+v, want the arguments %s and bounded tokens", s, args)
					}
					return Sample{Text: "said " + args, Model: "m", Cut: true}, nil
				}})
				var got struct {
					Content           struct{ Text string }
					Model, StopReason string
				}
				if text := mustResult(t, res, err).Text(); json.Unmarshal([]byte(text), &got) != nil || got.Content.Text != "said "+args || got.Model != "m" || got.StopReason != "maxTokens" {
					t.Errorf("got %s, want the answer to %s", text, args)
				}
			})
		}
		wg.Wait()
	}
}

// From 2025-11-25 on a message may have several parts. Tools are refused, since we do not declare them.
func TestSamplingOfSeveralTexts(t *testing.T) {
	t.Parallel()
	messages := []*sdk.SamplingMessageV2{{Role: "user", Content: []sdk.Content{&sdk.TextContent{Text: "one"}, &sdk.TextContent{Text: "two"}}}}
	for _, flavour := range []string{"stateful sse", "stateless json"} {
		for _, tools := range [][]*sdk.Tool{nil, {{Name: "t", InputSchema: json.RawMessage(`{"type":"object"}`)}}} {
			s := serveSampling(t, flavour, func(*sdk.CallToolRequest) sdk.InputRequest {
				return &sdk.CreateMessageWithToolsParams{MaxTokens: 1, Messages: messages, Tools: tools}
			})
			c := newClient(t, Options{}, config.Server{Name: "a", URL: s.URL, Sampling: true})
			var asked []SamplingMessage
			_, err := c.Call(t.Context(), Call{Tool: "ask", Sample: func(_ context.Context, s Sampling) (Sample, error) {
				asked = s.Messages
				return Sample{Text: "three", Model: "m"}, nil
			}})
			if tools == nil && (err != nil || len(asked) != 1 || asked[0].Text != "one\ntwo") {
				t.Errorf("%s: got the messages %+v, %v, want one with both texts", flavour, asked, err)
			}
			if tools != nil && (err == nil || asked != nil) {
				t.Errorf("%s: got the messages %+v, %v, want a request with tools refused", flavour, asked, err)
			}
		}
	}
}

// A request is refused if the configuration does not allow sampling, and if it is not text, too
// large, or not answered.
func TestSamplingIsRefused(t *testing.T) {
	refuseSampling := func(context.Context, Sampling) (Sample, error) {
		t.Error("the model was asked, want the request refused")
		return Sample{}, nil
	}
	image := []*sdk.SamplingMessage{{Role: "user", Content: &sdk.ImageContent{Data: []byte{1}, MIMEType: "image/png"}}}
	large := []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: strings.Repeat("x", 128<<10+1)}}}
	for name, k := range map[string]struct {
		allowed bool
		params  sdk.CreateMessageParams
		sample  func(context.Context, Sampling) (Sample, error)
	}{
		"not allowed":    {false, sdk.CreateMessageParams{MaxTokens: 1}, refuseSampling},
		"no tokens":      {true, sdk.CreateMessageParams{}, refuseSampling},
		"an image":       {true, sdk.CreateMessageParams{MaxTokens: 1, Messages: image}, refuseSampling},
		"too large":      {true, sdk.CreateMessageParams{MaxTokens: 1, Messages: large}, refuseSampling},
		"nobody there":   {true, sdk.CreateMessageParams{MaxTokens: 1}, nil},
		"no budget":      {true, sdk.CreateMessageParams{MaxTokens: 1}, func(context.Context, Sampling) (Sample, error) { return Sample{}, ErrRefused }},
		"a secret error": {true, sdk.CreateMessageParams{MaxTokens: 1}, func(context.Context, Sampling) (Sample, error) { return Sample{}, errors.New("secret") }},
	} {
		for _, flavour := range []string{"stateful sse", "stateless json"} {
			c := newClient(t, Options{}, config.Server{Name: "a", URL: serveSamplingTool(t, flavour, &k.params).URL, Sampling: k.allowed})
			_, err := c.Call(t.Context(), Call{Tool: "ask", Sample: k.sample})
			if err == nil || strings.Contains(mustFail(t, err).Message, "secret") {
				t.Errorf("%s, %s: got %v, want an error without the secret", name, flavour, err)
			}
			if says := err != nil && strings.Contains(mustFail(t, err).Message, "sampling is disabled"); says == k.allowed {
				t.Errorf("%s, %s: %v says that sampling is disabled: got %t, want %t", name, flavour, err, says, !k.allowed)
			}
			res, err := c.Call(t.Context(), Call{Tool: "echo", Args: json.RawMessage(`{"text":"on"}`)})
			mustResult(t, res, err)
		}
	}
}

// With the Python SDK 1, ctx.session.create_message sends its request on the standalone stream, and the server does not
// declare tools.listChanged, for which the stream would be opened too.
func TestSamplingOnTheStandaloneStream(t *testing.T) {
	t.Parallel()
	s := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ServerOptions{
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}},
	})
	addRawTool(s, "ask", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		// Without the context of the call, the SDK sends on the standalone stream.
		message := sdk.SamplingMessage{Role: "user", Content: &sdk.TextContent{Text: "What is 6 * 7?"}}
		answer, err := r.Session.CreateMessage(t.Context(), &sdk.CreateMessageParams{MaxTokens: 9, Messages: []*sdk.SamplingMessage{&message}})
		if err != nil {
			return nil, err
		}
		return &sdk.CallToolResult{Content: []sdk.Content{answer.Content}}, nil
	})
	url := serveHTTP(t, streamableHandler(t, s, nil)).URL
	c := newClient(t, Options{}, config.Server{Name: "a", URL: url, Sampling: true, Timeout: 5 * time.Second})
	res, err := c.Call(t.Context(), Call{Tool: "ask", Sample: func(context.Context, Sampling) (Sample, error) { return Sample{Text: "42"}, nil }})
	if got := mustResult(t, res, err).Text(); got != "42" {
		t.Errorf("got %q, want 42", got)
	}
}
