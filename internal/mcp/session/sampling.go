package session

//lint:file-ignore SA1019 2026-07-28 deprecates sampling (SEP-2577); servers still use it.

import (
	"errors"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Sampling is a server's request to a language model. It contains only text.
type Sampling struct {
	System    string // system prompt; may be empty
	Messages  []SamplingMessage
	MaxTokens int64 // of the answer; the server's value, at most maxSampleTokens
}

// SamplingMessage is one message of the conversation that the server wants answered.
type SamplingMessage struct {
	Role string // user or assistant
	Text string
}

// Sample is the model's answer.
type Sample struct {
	Text  string
	Model string
	Cut   bool // the answer ended at MaxTokens
}

// ErrRefused is returned by Handlers.Sample for a request that it refuses, for example because of the run's budget.
var ErrRefused = errors.New("refused")

// Bounds of one sampling request.
const (
	maxSampleTokens   = 4096
	maxSampleMessages = 64
	maxSampleText     = 128 << 10 // bytes of the system prompt and all messages

	// codeRefused is the JSON-RPC code with which a client refuses sampling (MCP client/sampling).
	codeRefused = -1
)

// decodeSampling converts p to a Sampling, whose MaxTokens is at most maxSampleTokens. The error says why the request
// is not allowed, for example because it has tools or content other than text. It is sent to the server.
func decodeSampling(p *sdk.CreateMessageWithToolsParams) (Sampling, error) {
	sampling := Sampling{
		System:    strings.ToValidUTF8(p.SystemPrompt, "\uFFFD"),
		MaxTokens: min(p.MaxTokens, maxSampleTokens),
	}
	switch {
	case len(p.Tools) > 0 || p.ToolChoice != nil:
		return sampling, errors.New("sampling with tools is not supported")
	case p.MaxTokens < 1:
		return sampling, errors.New("maxTokens must be above 0")
	case len(p.Messages) == 0 || len(p.Messages) > maxSampleMessages:
		return sampling, errors.New("there must be 1 to 64 messages")
	}
	size := len(sampling.System)
	for _, received := range p.Messages {
		message, err := decodeSamplingMessage(received)
		if err != nil {
			return sampling, err
		}
		size += len(message.Text)
		sampling.Messages = append(sampling.Messages, message)
	}
	if size > maxSampleText {
		return sampling, errors.New("the messages are too large")
	}
	return sampling, nil
}

// decodeSamplingMessage converts m to a SamplingMessage, with a line break between m's texts. The error says why m is
// not allowed, and is sent to the server.
func decodeSamplingMessage(m *sdk.SamplingMessageV2) (SamplingMessage, error) {
	hasRole := m != nil && (m.Role == "user" || m.Role == "assistant")
	if !hasRole {
		return SamplingMessage{}, errors.New("the role of a message must be user or assistant")
	}
	var texts []string
	for _, part := range m.Content {
		if text, ok := part.(*sdk.TextContent); ok {
			texts = append(texts, text.Text)
		}
	}
	if len(texts) == 0 || len(texts) < len(m.Content) {
		return SamplingMessage{}, errors.New("only text can be sampled from")
	}
	return SamplingMessage{Role: string(m.Role), Text: strings.ToValidUTF8(strings.Join(texts, "\n"), "\uFFFD")}, nil
}
