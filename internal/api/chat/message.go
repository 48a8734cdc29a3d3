package chat

import (
	"encoding/json"
	"fmt"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/api/typeerror"
)

// inMessage is a message of the conversation so far.
type inMessage struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"` // a text, a list of inPart, or null
	ToolCalls  []inCall        `json:"tool_calls"`
	ToolCallID string          `json:"tool_call_id"`
}

// inCall is a call of the caller's tool in a message of the assistant.
type inCall struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"`
	Function function `json:"function"`
}

// inPart is one part of a message. Type says which of the other members it has.
type inPart struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	ImageURL struct {
		URL    string `json:"url"`
		Detail string `json:"detail"`
	} `json:"image_url"`
	Audio struct {
		Data   string `json:"data"`
		Format string `json:"format"`
	} `json:"input_audio"`
	File struct {
		ID   string `json:"file_id"`
		Name string `json:"filename"`
		Data string `json:"file_data"` // a data: URL
	} `json:"file"`
}

// readMessages makes the last message the question, and those before it the history. System and
// developer messages become instructions, at any position: the agent has one place for them.
func (q *Request) readMessages(in []inMessage) error {
	if len(in) > maxMessages {
		return &Invalid{"messages", fmt.Sprintf("must not be more than %d", maxMessages)}
	}

	var instructions []string
	var lastField string // of the last message in the history
	for i, msg := range in {
		field := fmt.Sprintf("messages[%d]", i)
		text, media, err := decodeContent(field+".content", msg.Content)
		if err != nil {
			return err
		}
		out := agent.Message{Role: msg.Role, Content: text, Media: media}
		switch msg.Role {
		case "system", "developer":
			instructions = append(instructions, text)
			continue
		case "user":
		case "assistant":
			for j, c := range msg.ToolCalls {
				if c.ID == "" || c.Function.Name == "" {
					return &Invalid{fmt.Sprintf("%s.tool_calls[%d]", field, j), "must have an id and a function with a name"}
				}
				out.Calls = append(out.Calls, agent.ClientCall{Index: len(out.Calls), ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
			}
		case "tool":
			out.CallID = msg.ToolCallID
			if out.CallID == "" {
				return &Invalid{field + ".tool_call_id", "is required"}
			}
		default:
			return &Invalid{field + ".role", "must be system, developer, user, assistant or tool"}
		}
		q.History, lastField = append(q.History, out), field
	}

	q.Instructions = strings.Join(instructions, "\n\n")
	return q.readQuestion(lastField)
}

// readQuestion moves the user's last message, which is at field, from the history to the question. If the history
// ends with results of the caller's tools, there is no question, and the run continues with those.
func (q *Request) readQuestion(field string) error {
	last := len(q.History) - 1
	if last < 0 {
		return &Invalid{"messages", "must have a message of the user"}
	}
	m := q.History[last]
	switch {
	case m.Role == "tool":
		return nil
	case m.Role != "user":
		return &Invalid{"messages", "must end with a message of the user or a tool"}
	case strings.TrimSpace(m.Content) == "" && len(m.Media) == 0:
		return &Invalid{field + ".content", "must not be blank"}
	default:
		q.Question, q.Media, q.History = m.Content, m.Media, q.History[:last]
		if last == 0 {
			q.History = nil // the request has none, and continues its thread
		}
	}
	return nil
}

// decodeContent returns the text and the media of a message. field is its path, for errors. It
// ignores refusals, which the format has only in the model's earlier messages.
func decodeContent(field string, raw json.RawMessage) (string, []agent.Media, error) {
	if raw == nil || string(raw) == "null" {
		return "", nil, nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, nil, nil
	}
	var parts []inPart
	err := json.Unmarshal(raw, &parts)
	if at, value, ok := typeerror.Find(raw, err); ok && strings.HasPrefix(at, "[") {
		return "", nil, &Invalid{field + at, "is of the wrong type: " + value}
	}
	if err != nil {
		return "", nil, &Invalid{field, "must be a text or a list of parts"}
	}

	var texts []string
	var media []agent.Media
	for i, part := range parts {
		at := fmt.Sprintf("%s[%d]", field, i)
		switch part.Type {
		case "text":
			texts = append(texts, part.Text)
		case "refusal":
		case "image_url":
			m, err := agent.NewMedia("", part.ImageURL.URL)
			if err != nil {
				return "", nil, &Invalid{at + ".image_url.url", err.Error()}
			}
			if part.ImageURL.Detail != "auto" { // the default
				m.Detail = part.ImageURL.Detail
			}
			media = append(media, m)
		case "input_audio":
			kind := map[string]string{"wav": "audio/wav", "mp3": "audio/mpeg"}[part.Audio.Format]
			m, err := agent.NewMedia("", "data:"+kind+";base64,"+part.Audio.Data)
			if err != nil {
				return "", nil, &Invalid{at + ".input_audio", "must be wav or mp3 in base64"}
			}
			media = append(media, m)
		case "file":
			if part.File.ID != "" {
				return "", nil, &Invalid{at + ".file.file_id", "is not supported: the service stores no files; use file_data"}
			}
			m, err := agent.NewFile(part.File.Name, "", part.File.Data)
			if err != nil {
				return "", nil, &Invalid{at + ".file.file_data", err.Error()}
			}
			media = append(media, m)
		default:
			return "", nil, &Invalid{at + ".type", "must be text, image_url, input_audio or file"}
		}
	}
	if len(media) > maxMedia {
		return "", nil, &Invalid{field, fmt.Sprintf("must not have more than %d images, sounds and files", maxMedia)}
	}
	return strings.Join(texts, "\n"), media, nil
}
