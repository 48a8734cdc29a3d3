package llm

import "strings"

// contextWords are, in lower case, how endpoints say that a conversation is longer than
// the model's window. There is one code for it, OpenAI's, and most have only prose.
var contextWords = []string{
	"context_length_exceeded",            // OpenAI, Azure, Groq, Fireworks
	"exceed_context_size",                // llama.cpp: the error's type
	"exceeds the available context size", // llama.cpp
	"maximum context length",             // OpenAI, vLLM, DeepSeek, OpenRouter, Together
	"maximum prompt length",              // xAI
	"prompt is too long",                 // Anthropic
	"input is too long",                  // Bedrock
	"input token count",                  // Gemini: "… exceeds the maximum number of tokens allowed"
	"exceeds the context window",         // OpenAI's newer models
	"exceeds context length",             // Ollama
	"larger than the context length",     // LM Studio
	"longer than the model's context",    // SGLang
	"too large for model with",           // Mistral: "Prompt contains … tokens …, too large for model with …"
	"max_new_tokens` must be <=",         // TGI
	"reduce the length of the messages",  // OpenAI, older
}

// limitWords make such words a matter of tokens per minute, which time cures.
var limitWords = []string{"rate_limit", "rate limit", "per minute", "quota"}

// overContext reports whether an endpoint's error says that the conversation is too long.
func overContext(said string) bool {
	said = strings.ToLower(said)
	return containsAny(said, contextWords) && !containsAny(said, limitWords)
}

func containsAny(text string, words []string) bool {
	for _, w := range words {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}
