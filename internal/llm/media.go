package llm

import "strings"

// wirePart is one part of a user's message: a text, a picture or a sound.
type wirePart struct {
	Type  string     `json:"type"`
	Text  string     `json:"text,omitempty"`
	Image *wireImage `json:"image_url,omitempty"`
	Audio *wireAudio `json:"input_audio,omitempty"`
}

type wireImage struct {
	URL string `json:"url"`
}

type wireAudio struct {
	Data   string `json:"data"`
	Format string `json:"format"`
}

// appendMessages appends messages as they go over the wire. The tool role is text only
// in Chat Completions, so the media of results follow in a message of the user. It comes
// after all results of the turn: endpoints demand that those follow their calls at once.
func appendMessages(out []wireMessage, messages []Message) []wireMessage {
	var media []Media // of the results since the last message of another role
	for i, m := range messages {
		out = append(out, wire(m))
		if m.Role != ToolRole {
			continue
		}
		media = append(media, m.Media...)
		if last := i+1 == len(messages) || messages[i+1].Role != ToolRole; last && len(media) > 0 {
			out = append(out, wire(Message{Role: User, Media: media}))
			media = nil
		}
	}
	return out
}

// wireParts is a user's message with media, each behind its label.
func wireParts(m Message) []wirePart {
	parts := make([]wirePart, 0, 1+2*len(m.Media))
	if m.Text != "" {
		parts = append(parts, wirePart{Type: "text", Text: m.Text})
	}
	for _, p := range m.Media {
		if p.Label != "" {
			parts = append(parts, wirePart{Type: "text", Text: p.Label})
		}
		switch format, isAudio := strings.CutPrefix(p.MIME, "audio/"); {
		case p.URL != "":
			parts = append(parts, wirePart{Type: "image_url", Image: &wireImage{p.URL}})
		case !isAudio:
			parts = append(parts, wirePart{Type: "image_url", Image: &wireImage{"data:" + p.MIME + ";base64," + p.Data}})
		case format == "mpeg":
			parts = append(parts, wirePart{Type: "input_audio", Audio: &wireAudio{p.Data, "mp3"}})
		default:
			parts = append(parts, wirePart{Type: "input_audio", Audio: &wireAudio{p.Data, format}})
		}
	}
	return parts
}
