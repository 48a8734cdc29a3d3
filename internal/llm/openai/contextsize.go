package openai

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"
)

// Limits for the size of a context window. A size outside of them is ignored as wrong: vLLM 0.15 reported what its
// max_tokens left of the window, "maximum context length is 3 tokens"
// (https://github.com/vllm-project/vllm/issues/33418).
const (
	minContextTokens = 256
	maxContextTokens = 1 << 31
)

// These patterns find the sizes in an endpoint's message about a prompt that is too long. The message must be in lower
// case and without thousands separators. testdata/contexterrors.txt has the messages and their sources.
//
// Some endpoints (xAI, Gemini, Anthropic) state the limit for the prompt alone. It is used as the window, although a
// window is for prompt and answer together. A prompt size that includes the answer, or that is a lower bound ("at least
// 4097 input tokens"), is not used.
var (
	windowSizes = anyOf(
		`\bn_ctx"?\s*:?\s*\(?(\d+)`,                                         // llama.cpp, LM Studio
		`available context size \((\d+)`,                                    // llama.cpp
		`maximum (?:context|prompt|model) length\s*(?:is|of)?:?\s*\(?(\d+)`, // OpenAI, vLLM, DeepSeek, OpenRouter, SGLang, xAI, Fireworks
		`context length \((\d+) tokens\)`,                                   // SGLang
		`maximum allowed (?:input )?length (?:of )?\(?(\d+)`,                // SGLang, Poolside
		`context length is only (\d+)`,                                      // vLLM
		`context length of only (\d+)`,                                      // LM Studio
		`exceed context window of (\d+)`,                                    // llama-cpp-python
		`with (\d+) maximum context length`,                                 // Mistral
		`> (\d+) maximum`,                                                   // Anthropic, Mistral
		`exceed context limit: \d+ \+ \d+ > (\d+)`,                          // Anthropic
		`number of tokens allowed \(?(\d+)`,                                 // Gemini
		`configured limit of (\d+) tokens`,                                  // OpenAI
		`exceeded model token limit: (\d+)`,                                 // Kimi
		`current length is \d+ while limit is (\d+)`,                        // Cerebras
		`input length should be \[1, (\d+)\]`,                               // Qwen
		`prompt token count of \d+ exceeds the limit of (\d+)`,              // GitHub Copilot
		"max_new_tokens` must be <= (\\d+)",                                 // TGI
		"inputs` must have less than (\\d+)",                                // TGI
	)
	promptSizes = anyOf(
		`"n_prompt_tokens"\s*:\s*(\d+)`,                                   // llama.cpp
		`request \((\d+) tokens\) exceeds`,                                // llama.cpp
		`\bn_keep:?\s*\(?(\d+)`,                                           // LM Studio
		`keep the first (\d+) tokens`,                                     // LM Studio
		`messages resulted in (\d+)`,                                      // OpenAI
		`(\d+) in (?:the messages|your prompt)`,                           // OpenAI, vLLM, DeepSeek
		`has (\d+) input tokens`,                                          // vLLM
		`prompt (?:\(length|length of) (\d+)`,                             // vLLM
		`(\d+) of text input`,                                             // OpenRouter
		`(\d+) tokens from the input`,                                     // SGLang
		`input (?:length )?\(?(\d+)(?: tokens)?\)? (?:exceeds|is longer)`, // SGLang, Poolside
		`requested tokens \((\d+)\)`,                                      // llama-cpp-python
		`(?:prompt|request) (?:contains )?(\d+) (?:tokens|>)`,             // Mistral, xAI
		`too long: (\d+)`,                                                 // Anthropic, Fireworks
		`exceed context limit: (\d+) \+`,                                  // Anthropic
		`input token count \((\d+)\)`,                                     // Gemini
		`prompt token count of (\d+)`,                                     // GitHub Copilot
		`given: (\d+)`,                                                    // TGI
	)
	// toolSizes finds the size of tool definitions, if it is stated separately from the messages.
	toolSizes = anyOf(`(\d+) (?:of tool input|in the functions)`) // OpenRouter, OpenAI

	thousands = regexp.MustCompile(`(\d),(\d{3})\b`)
)

// anyOf returns a pattern that matches if any of patterns does. Each pattern must have one group, which matches a
// number.
func anyOf(patterns ...string) *regexp.Regexp {
	return regexp.MustCompile(strings.Join(patterns, "|"))
}

// contextSizes returns the sizes of the model's context window and of the prompt, in tokens, that an error body states.
// A size that it does not state is 0. contextSizes searches the decoded message before the raw body, because proxies
// may escape the message.
func contextSizes(body []byte) (window, prompt int64) {
	text := strings.ToLower(errorMessage(body) + "\n" + string(body))
	for range 2 { // one pass cannot match both separators of 1,234,567
		text = thousands.ReplaceAllString(text, "$1$2")
	}
	window, prompt = firstNumber(windowSizes, text), firstNumber(promptSizes, text)
	if window < minContextTokens || window > maxContextTokens {
		window = 0
	}
	if prompt > 0 {
		prompt += firstNumber(toolSizes, text)
	}
	return window, prompt
}

// firstNumber returns the number in the first match of a pattern made by anyOf, or 0 if nothing matches.
func firstNumber(pattern *regexp.Regexp, text string) int64 {
	groups := pattern.FindStringSubmatch(text)
	if groups == nil {
		return 0
	}
	n, err := strconv.ParseInt(cmp.Or(groups[1:]...), 10, 64)
	if err != nil {
		return 0 // the number does not fit an int64
	}
	return n
}
