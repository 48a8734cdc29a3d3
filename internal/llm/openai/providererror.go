package openai

import (
	"encoding/json"
	"regexp"
	"strings"
	"unicode"
)

// maxMessage is the largest size of an endpoint's error message in the log, in bytes.
const maxMessage = 500

// errorMessage returns the message in the body of an endpoint's error. It knows these forms: {"error":{"message":…}}
// (OpenAI), a list with this object (Gemini), {"error":"…"} (Ollama, xAI), {"message":…} (vLLM, Mistral), {"detail":…}
// (FastAPI). It returns any other body as it is, or "" if the body is an HTML page. It appends the message of the
// provider behind OpenRouter, whose own message is only "Provider returned error".
func errorMessage(body []byte) string {
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		body = list[0]
	}
	var object struct{ Error, Message, Detail, Msg, Metadata json.RawMessage }
	if json.Unmarshal(body, &object) != nil {
		text := strings.TrimSpace(string(body))
		if strings.HasPrefix(text, "<") {
			return ""
		}
		return text
	}
	for _, member := range []json.RawMessage{object.Error, object.Message, object.Detail, object.Msg} {
		if len(member) == 0 || string(member) == "null" {
			continue
		}
		var text string
		if json.Unmarshal(member, &text) == nil {
			if behind := providerMessage(object.Metadata); behind != "" {
				text += ": " + behind
			}
			return text
		}
		if member[0] == '[' {
			return string(member) // FastAPI's list of violations, each with the member that it is about
		}
		if text = errorMessage(member); text != "" {
			return text
		}
	}
	return strings.TrimSpace(string(body))
}

// providerMessage returns the message in the member raw of metadata, the metadata of an error of OpenRouter. raw is the
// body of the provider's error, as a string or as JSON. providerMessage returns "" if the metadata has none.
func providerMessage(metadata json.RawMessage) string {
	var object struct{ Raw json.RawMessage }
	if json.Unmarshal(metadata, &object) != nil || object.Raw == nil {
		return ""
	}
	var text string
	if json.Unmarshal(object.Raw, &text) == nil {
		return errorMessage([]byte(text))
	}
	return errorMessage(object.Raw)
}

// secretPatterns matches keys and tokens that an endpoint may quote. OpenAI quotes a part of a wrong key. Other
// endpoints quote the header.
var secretPatterns = regexp.MustCompile(`(?i)\b(bearer|basic)\s+[^\s"',;]+|` + // an Authorization header
	`\b(sk|pk|rk|gsk|xai|key|hf|nvapi|r8)[-_][A-Za-z0-9*_.\-]{6,}|` + // keys with a prefix
	`\bAIza[A-Za-z0-9_\-]{10,}|` + // Google
	`\beyJ[A-Za-z0-9_\-]+\.[A-Za-z0-9_.\-]+|` + // a JWT
	`\b[A-Za-z0-9_\-]*[0-9][A-Za-z0-9_\-]{31,}`) // any long word with a digit

// redactMessage returns text as one line of valid UTF-8 with at most maxMessage bytes. It replaces the secrets, and
// everything else that looks like a key or a token, with "[redacted]".
func redactMessage(text string, secrets []string) string {
	for _, s := range secrets {
		if len(s) >= 4 { // a shorter value could be part of ordinary words
			text = strings.ReplaceAll(text, s, "[redacted]")
		}
	}
	text = secretPatterns.ReplaceAllString(text, "[redacted]")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }), " ")
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage-len("…")], "") + "…"
	}
	return text
}
