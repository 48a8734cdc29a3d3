package openai

import (
	"encoding/json"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxMessage bounds an endpoint's error message in the log, in bytes.
const maxMessage = 500

// errorMessage returns the message in an endpoint's error. It knows these shapes:
// {"error":{"message":…}} (OpenAI), a list with that object (Gemini), {"error":"…"} (Ollama,
// xAI), {"message":…} (vLLM, Mistral), {"detail":…} (FastAPI). For any other text the message is
// the text itself, unless it is an HTML page.
func errorMessage(said []byte) string {
	var list []json.RawMessage
	if json.Unmarshal(said, &list) == nil && len(list) > 0 {
		said = list[0]
	}
	var body struct{ Error, Message, Detail, Msg json.RawMessage }
	if json.Unmarshal(said, &body) != nil {
		text := strings.TrimSpace(string(said))
		if strings.HasPrefix(text, "<") {
			return ""
		}
		return text
	}
	for _, member := range []json.RawMessage{body.Error, body.Message, body.Detail, body.Msg} {
		if len(member) == 0 || string(member) == "null" {
			continue
		}
		var text string
		if json.Unmarshal(member, &text) == nil {
			return text
		}
		if member[0] == '[' {
			return string(member) // FastAPI's list of violations, with the member that each is about
		}
		text = errorMessage(member)
		if text != "" {
			return text
		}
	}
	return strings.TrimSpace(string(said))
}

// secretPatterns match keys and tokens that an endpoint may quote. OpenAI quotes a part of a
// wrong key; other endpoints quote the header.
var secretPatterns = regexp.MustCompile(`(?i)\b(bearer|basic)\s+[^\s"',;]+|` + // an Authorization header
	`\b(sk|pk|rk|gsk|xai|key|hf|nvapi|r8)[-_][A-Za-z0-9*_.\-]{6,}|` + // keys with a prefix
	`\bAIza[A-Za-z0-9_\-]{10,}|` + // Google
	`\beyJ[A-Za-z0-9_\-]+\.[A-Za-z0-9_.\-]+|` + // a JWT
	`\b[A-Za-z0-9_\-]*[0-9][A-Za-z0-9_\-]{31,}`) // any long word with a digit

// redactMessage returns a message in one line of at most maxMessage bytes. It removes the
// secrets of the request and everything that looks like a secret.
func redactMessage(text string, secrets []string) string {
	for _, s := range secrets {
		if len(s) >= 4 {
			text = strings.ReplaceAll(text, s, "[redacted]")
		}
	}
	text = secretPatterns.ReplaceAllString(text, "[redacted]")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }), " ")
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > maxMessage {
		end := maxMessage - len("…")
		for !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end] + "…"
	}
	return text
}
