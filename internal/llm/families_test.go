package llm

import "testing"

// The ids are those of vendors, of clouds and of local servers.
func TestAcceptsImagesKnowsFamilies(t *testing.T) {
	for _, id := range []string{
		"gpt-4o", "gpt-4o-mini-2024-07-18", "openai/gpt-4.1-nano", "gpt-4.5-preview", "gpt-4-turbo-2024-04-09", "gpt-4-vision-preview", "gpt-5.2", "o1", "o3", "o4-mini", "chatgpt-4o-latest",
		"claude-3-haiku-20240307", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-opus-4-8", "gemini-2.0-flash", "models/gemini-3-pro-preview",
		"gemma3:4b", "google.gemma-3-27b-it", "gemma-4-31b-it", "xai.grok-4", "grok-4.3", "grok-2-vision-1212",
		"llama3.2-vision:11b", "meta-llama/Llama-3.2-90B-Vision-Instruct", "accounts/fireworks/models/llama-v3p2-11b-vision-instruct", "llama4:scout", "meta.llama4-maverick-17b-instruct-v1:0", "llava:13b",
		"qwen2.5vl:7b", "Qwen/Qwen2.5-VL-72B-Instruct", "qwen3-vl:235b", "qwen3-omni-flash", "qwen3.5:397b", "qwen3.6-plus", "accounts/fireworks/models/qwen3p7-plus",
		"glm-4v-9b", "glm-4.5v", "GLM-4.6V-Flash", "glm-5v-turbo", "kimi-k2.5", "kimi-k2p6", "minimax-m3", "deepseek-vl2", "pixtral-12b", "mistral-small-2506", "mistral-large-2512",
		"phi-4-multimodal-instruct", "Phi-3.5-vision-instruct", "command-a-vision-07-2025", "granite3.2-vision:2b", "lfm2-vl-1.6b", "amazon.nova-pro-v1:0", "minicpm-v:8b", "moondream", "smolvlm-500m-instruct",
		"", "my-model", "scripted", "7",
	} {
		if !AcceptsImages(id) {
			t.Errorf("AcceptsImages(%q) = false, want true", id)
		}
	}
	for _, id := range []string{
		"gpt-3.5-turbo-0125", "gpt-35-turbo-16k", "gpt-4", "gpt-4-0613", "gpt-4-32k", "gpt-4-1106-preview", "openai/gpt-oss-20b", "gpt-oss:120b", "o1-mini", "o1-preview-2024-09-12", "o3-mini",
		"deepseek-chat", "deepseek-reasoner", "deepseek-ai/DeepSeek-V3.2", "deepseek.r1-v1:0", "deepseek-r1:14b", "DeepSeek-R1-Distill-Llama-8B", "deepseek-v4-pro", "deepseek-coder-v2:16b",
		"llama2:7b", "llama3:8b", "llama3.1:8b", "meta.llama3-1-8b-instruct-v1:0", "meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-8b-instant", "accounts/fireworks/models/llama-v3p1-8b-instruct", "llama3.2:1b", "tinyllama",
		"qwen2:7b", "qwen2.5:0.5b", "Qwen/Qwen2.5-Coder-32B-Instruct", "qwen3:4b", "qwen/qwen3-32b", "qwen3-coder:480b", "qwen3-next-80b-a3b-instruct", "qwen-max", "qwen3.7-max", "qwq-32b",
		"glm-4-9b-chat", "zai-glm-4.7", "glm-4.5-air", "glm-5.1", "kimi-k2-0905-preview", "kimi-k2-thinking", "minimax-m2.7", "mistral:7b-instruct", "mistral-7b-instruct-v0.3", "open-mixtral-8x22b", "mistral-nemo", "codestral-2501", "mistral-large-2411",
		"gemma2:9b", "gemma3:270m", "gemma-3-1b-it", "phi3:mini", "phi4", "phi-4-mini-instruct", "command-r7b-12-2024", "command-a-03-2025", "grok-3-mini", "amazon.nova-micro-v1:0",
		"SmolLM2-135M-Instruct", "smollm3-3b", "granite-3.3-8b-instruct", "lfm2-1.2b", "olmo-2-13b", "falcon3:10b", "solar-pro2",
	} {
		if AcceptsImages(id) {
			t.Errorf("AcceptsImages(%q) = true, want false", id)
		}
	}
}
