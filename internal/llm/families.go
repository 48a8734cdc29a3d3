package llm

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// AcceptsImages guesses from a model's id whether the model takes images. It is for models without a Profile. It
// returns true for an unknown model: if that is wrong, the endpoint refuses the image, and the caller learns why.
//
// The id is divided into words and numbers, so that llama3.1:8b and meta-llama/Llama-3.1-8B have the same words. If one
// of them is in imageWords, as in qwen2.5vl, the model takes images. Otherwise the longest name in families that the id
// contains decides, so that gpt-4.1 differs from gpt-4.
func AcceptsImages(model string) bool {
	id := idWords(model)
	if slices.ContainsFunc(id, func(w string) bool { return slices.Contains(imageWords, w) }) {
		return true
	}
	accepts, longest := true, 0
	for _, f := range families {
		if len(f.words) > longest && containsWords(id, f.words) {
			accepts, longest = f.images, len(f.words)
		}
	}
	return accepts
}

// imageWords are the words that vendors use in the names of models that take images.
var imageWords = []string{"vision", "vl", "vlm", "omni", "multimodal"}

// family is a family of models. A model belongs to it if the model's id contains the family's name.
type family struct {
	words  []string // the name, divided by idWords
	images bool     // the models take images
}

// families lists the families that take only text, and their exceptions that do take images. Models of all other
// families are assumed to take images. Sources: the modalities in https://github.com/anomalyco/models.dev at f3fc6922
// (July 2026), and the model cards of the open models.
var families = slices.Concat(
	// OpenAI
	textFamilies("gpt-3.5", "gpt-35", "gpt-4", "gpt-oss", "o1-mini", "o1-preview", "o3-mini"),
	imageFamilies("gpt-4-turbo", "gpt-4.1", "gpt-4.5", "gpt-4o"),
	// DeepSeek; deepseek-vl2 has an image word
	textFamilies("deepseek-chat", "deepseek-coder", "deepseek-reasoner", "deepseek-r1", "deepseek-v2", "deepseek-v3", "deepseek-v4"),
	// Meta, before Llama 4
	textFamilies("codellama", "llama-2", "llama-3", "llama-v3", "tinyllama"),
	imageFamilies("llama-3.2-11b", "llama-3.2-90b"),
	// Qwen; qwen-plus and qwen-flash change with each generation
	textFamilies("qwen-max", "qwen-turbo", "qwen-1.5", "qwen-2", "qwen-3", "qwen-3.6-max", "qwen-3.7-max", "qwq"),
	imageFamilies("qwen-3.5", "qwen-3.6", "qwen-3.7"),
	// Zhipu, Moonshot, MiniMax
	textFamilies("glm-4", "glm-5", "kimi-k2", "minimax-m1", "minimax-m2"),
	imageFamilies("glm-4v", "glm-4.1v", "glm-4.5v", "glm-4.6v", "glm-5v", "kimi-k2.5", "kimi-k2.6", "kimi-k2.7"),
	// Mistral, before Mistral Small 3.1
	textFamilies("codestral", "mathstral", "mistral-7b", "mistral-large-2402", "mistral-large-2407", "mistral-large-2411", "mistral-nemo", "mixtral"),
	// Google, Microsoft, Cohere, xAI, Amazon
	textFamilies("gemma-2", "gemma-3-1b", "gemma-3-270m", "phi-2", "phi-3", "phi-4"),
	textFamilies("command-a-03", "command-a-reasoning", "command-r", "grok-2", "grok-3", "nova-micro"),
	// Open models of others
	textFamilies("exaone", "falcon", "granite", "jamba", "lfm2", "olmo", "smollm", "solar", "stablelm", "starcoder", "vicuna"),
)

// textFamilies and imageFamilies return families whose models take only text, or also images.
func textFamilies(names ...string) []family  { return newFamilies(false, names) }
func imageFamilies(names ...string) []family { return newFamilies(true, names) }

// newFamilies returns the families with the given names. images says whether their models take images.
func newFamilies(images bool, names []string) (out []family) {
	for _, name := range names {
		out = append(out, family{idWords(name), images})
	}
	return out
}

// idWords splits an id into words and numbers, in lower case, and drops the characters between them. For "llama3.1:8b"
// it returns llama, 3, 1, 8 and b.
func idWords(id string) (words []string) {
	id = strings.ToLower(id)
	for start := 0; start < len(id); {
		end := start + 1
		if isWordByte(id, start) {
			for end < len(id) && isWordByte(id, end) && isDigit(id[end]) == isDigit(id[start]) {
				end++
			}
			words = append(words, id[start:end])
		}
		start = end
	}
	return words
}

// isWordByte reports whether the byte at i belongs to a word or a number. Bytes beyond ASCII count as letters. A "p"
// between two digits does not count, because Fireworks uses it as the decimal point (llama-v3p1-8b-instruct).
func isWordByte(id string, i int) bool {
	isInner := i > 0 && i+1 < len(id)
	switch c := id[i]; {
	case c == 'p' && isInner && isDigit(id[i-1]) && isDigit(id[i+1]):
		return false
	case isDigit(c), 'a' <= c && c <= 'z', c >= utf8.RuneSelf:
		return true
	}
	return false
}

func isDigit(char byte) bool { return char >= '0' && char <= '9' }

// containsWords reports whether the words of name occur in id, consecutively and in that order.
func containsWords(id, name []string) bool {
	for i := range max(len(id)-len(name)+1, 0) {
		if slices.Equal(id[i:i+len(name)], name) {
			return true
		}
	}
	return false
}
