package mcp

//lint:file-ignore SA1019 2026-07-28 deprecates sampling (SEP-2577); servers go on asking for it.

import (
	"context"
	"errors"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Sampling is what a server wants a language model to say (S0.6). It is text only.
type Sampling struct {
	System    string // may be empty
	Messages  []SamplingMessage
	MaxTokens int64 // of the answer: 1 to 4096, whatever the server asked for
}

// SamplingMessage is one turn of the conversation that a server made up.
type SamplingMessage struct {
	Role string // user or assistant
	Text string
}

// Sample is what the model said.
type Sample struct {
	Text  string
	Model string
	Cut   bool // at MaxTokens
}

// ErrRefused is what Call.Sample returns for a request that we could serve and don't,
// such as for the budget of the run.
var ErrRefused = errors.New("refused")

// Bounds of one request.
const (
	maxSampleTokens   = 4096
	maxSampleMessages = 64
	maxSampleText     = 128 << 10 // bytes of all messages

	// codeRefused is the code that MCP gives for it in client/sampling.
	codeRefused = -1
)

// answerSampling is the SDK's handler for sampling/createMessage. It is there only where the
// server's configuration allows sampling.
func answerSampling(ctx context.Context, r *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
	asked := requestOf(ctx, r.Params.Meta)
	s, err := decodeSampling(r.Params)
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	refused := &jsonrpc.Error{Code: codeRefused, Message: "the client does not sample for this call"}
	if asked.x == nil || asked.x.talk == nil || asked.x.talk.sample == nil {
		return nil, refused
	}
	sctx, done, ok := asked.x.talk.begin(ctx, false)
	if !ok {
		return nil, refused
	}
	defer done()
	said, err := asked.x.talk.sample(sctx, s)
	switch {
	case errors.Is(err, ErrRefused):
		return nil, refused
	case err != nil:
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the client's model did not answer"}
	}
	stop := "endTurn"
	if said.Cut {
		stop = "maxTokens"
	}
	return &sdk.CreateMessageResult{Content: &sdk.TextContent{Text: said.Text}, Model: said.Model, Role: "assistant", StopReason: stop}, nil
}

// decodeSampling checks what a server asks, and caps what it may cost.
func decodeSampling(p *sdk.CreateMessageParams) (Sampling, error) {
	s := Sampling{System: strings.ToValidUTF8(p.SystemPrompt, "\uFFFD"), MaxTokens: min(p.MaxTokens, maxSampleTokens)}
	switch {
	case p.MaxTokens < 1:
		return s, errors.New("maxTokens must be above 0")
	case len(p.Messages) == 0 || len(p.Messages) > maxSampleMessages:
		return s, errors.New("there must be 1 to 64 messages")
	}
	size := len(s.System)
	for _, m := range p.Messages {
		if m == nil || m.Role != "user" && m.Role != "assistant" {
			return s, errors.New("the role of a message must be user or assistant")
		}
		text, ok := m.Content.(*sdk.TextContent)
		if !ok {
			return s, errors.New("only text can be sampled from")
		}
		size += len(text.Text)
		s.Messages = append(s.Messages, SamplingMessage{Role: string(m.Role), Text: strings.ToValidUTF8(text.Text, "\uFFFD")})
	}
	if size > maxSampleText {
		return s, errors.New("the messages are too large")
	}
	return s, nil
}
