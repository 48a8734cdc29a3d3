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
	ToolCalls  []call          `json:"tool_calls"`
	ToolCallID string          `json:"tool_call_id"`
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

// readMessages turns the last message into the question (readQuestion), and the messages before it into the history.
// System and developer messages become instructions wherever they are, because the agent has one place for
// instructions.
func (q *Request) readMessages(in []inMessage) error {
	if len(in) > maxMessages {
		return &Invalid{"messages", fmt.Sprintf("must not be more than %d", maxMessages)}
	}

	var instructions []string
	var lastField string // the path of the history's last message, for errors
	for i, msg := range in {
		field := fmt.Sprintf("messages[%d]", i)
		text, media, err := decodeContent(field+".content", msg.Content)
		if err != nil {
			return err
		}
		if msg.Role == "system" || msg.Role == "developer" {
			instructions = append(instructions, text)
			continue
		}
		message := agent.Message{Role: msg.Role, Content: text, Media: media}
		switch msg.Role {
		case "user":
		case "assistant":
			if message.Calls, err = msg.calls(field); err != nil {
				return err
			}
		case "tool":
			message.CallID = msg.ToolCallID
			if message.CallID == "" {
				return &Invalid{field + ".tool_call_id", "is required"}
			}
		default:
			return &Invalid{field + ".role", "must be system, developer, user, assistant or tool"}
		}
		q.History, lastField = append(q.History, message), field
	}

	q.Instructions = strings.Join(instructions, "\n\n")
	return q.readQuestion(lastField)
}

// calls returns the calls in m, a message of the assistant. field is m's path in the request, for errors.
func (m inMessage) calls(field string) (calls []agent.ClientCall, err error) {
	for i, c := range m.ToolCalls {
		if c.ID == "" || c.Function.Name == "" {
			return nil, &Invalid{fmt.Sprintf("%s.tool_calls[%d]", field, i), "must have an id and a function with a name"}
		}
		calls = append(calls, agent.ClientCall{Index: i, ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
	}
	return calls, nil
}

// readQuestion moves the history's last message, which must be the user's, to the question. If the history ends with a
// result of a client tool instead, the request has no question, and the model continues with the result. field is the
// last message's path in the request, for errors.
func (q *Request) readQuestion(field string) error {
	if len(q.History) == 0 {
		return &Invalid{"messages", "must have a message of the user"}
	}
	last := q.History[len(q.History)-1]
	switch {
	case last.Role == "tool":
		return nil
	case last.Role != "user":
		return &Invalid{"messages", "must end with a message of the user or a tool"}
	case strings.TrimSpace(last.Content) == "" && len(last.Media) == 0:
		return &Invalid{field + ".content", "must not be blank"}
	}
	q.TakeQuestion()
	return nil
}

// decodeContent returns the text and media of raw, a message's content: a text, a list of parts, or nothing. Texts of
// several parts are joined with newlines. Refusals are ignored, because only earlier messages of a model have them.
// field is the content's path in the request, for errors.
func decodeContent(field string, raw json.RawMessage) (text string, media []agent.Media, err error) {
	if !isGiven(raw) {
		return "", nil, nil
	}
	if json.Unmarshal(raw, &text) == nil {
		return text, nil, nil
	}
	var parts []inPart
	err = json.Unmarshal(raw, &parts)
	if part, typeName, ok := typeerror.Find(raw, err); ok && strings.HasPrefix(part, "[") {
		return "", nil, &Invalid{field + part, "is of the wrong type: " + typeName}
	}
	if err != nil {
		return "", nil, &Invalid{field, "must be a text or a list of parts"}
	}

	var texts []string
	for i, part := range parts {
		switch part.Type {
		case "text":
			texts = append(texts, part.Text)
		case "refusal":
		default:
			file, err := part.toMedia(fmt.Sprintf("%s[%d]", field, i))
			if err != nil {
				return "", nil, err
			}
			media = append(media, file)
		}
	}
	if len(media) > maxMedia {
		return "", nil, &Invalid{field, fmt.Sprintf("must not have more than %d images, sounds and files", maxMedia)}
	}
	return strings.Join(texts, "\n"), media, nil
}

// toMedia returns the image, sound or file of a part. field is the part's path in the request, for errors. The error is
// an *Invalid, also for an unknown type of part.
func (p inPart) toMedia(field string) (agent.Media, error) {
	switch p.Type {
	case "image_url":
		m, err := agent.NewMedia("", p.ImageURL.URL)
		if err != nil {
			return agent.Media{}, &Invalid{field + ".image_url.url", err.Error()}
		}
		if p.ImageURL.Detail != "auto" { // the default
			m.Detail = p.ImageURL.Detail
		}
		return m, nil
	case "input_audio":
		mediaType := map[string]string{"wav": "audio/wav", "mp3": "audio/mpeg"}[p.Audio.Format] // NewMedia refuses ""
		m, err := agent.NewMedia("", "data:"+mediaType+";base64,"+p.Audio.Data)
		if err != nil {
			return agent.Media{}, &Invalid{field + ".input_audio", "must be wav or mp3 in base64"}
		}
		return m, nil
	case "file":
		if p.File.ID != "" {
			return agent.Media{}, &Invalid{field + ".file.file_id", "is not supported: the service stores no files; use file_data"}
		}
		m, err := agent.NewFile(p.File.Name, "", p.File.Data)
		if err != nil {
			return agent.Media{}, &Invalid{field + ".file.file_data", err.Error()}
		}
		return m, nil
	}
	return agent.Media{}, &Invalid{field + ".type", "must be text, image_url, input_audio or file"}
}
