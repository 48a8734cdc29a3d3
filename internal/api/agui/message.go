package agui

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/api/typeerror"
)

// message is a message of the thread so far.
type message struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"` // a text, a list of parts, or missing
	ToolCalls  []toolCall      `json:"toolCalls"`
	ToolCallID string          `json:"toolCallId"`
	Error      string          `json:"error"`
}

// toolCall is the assistant's call of a client tool.
type toolCall struct {
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// part is a part of a user's message. Version 1.0 has the content in source, and 0.0.x in the members after it.
type part struct {
	Type   string `json:"type"`
	Text   string `json:"text"`
	Source struct {
		Type     string `json:"type"`
		Value    string `json:"value"`
		MimeType string `json:"mimeType"`
	} `json:"source"`
	MimeType string `json:"mimeType"`
	Data     string `json:"data"`
	URL      string `json:"url"`
	Filename string `json:"filename"`
}

// toMedia returns the content of a part that is not text, in the form of either version. The error's text is written
// for the client.
func (p part) toMedia() (agent.Media, error) {
	switch {
	case p.Source.Type == "data":
		return agent.NewMedia("", "data:"+p.Source.MimeType+";base64,"+p.Source.Value)
	case p.Source.Type == "url":
		// The media type is optional in this form. The types of parts are image, audio, video and document.
		return agent.NewFile("", cmp.Or(p.Source.MimeType, p.Type+"/*"), p.Source.Value)
	case p.Data != "":
		return agent.NewMedia(p.Filename, "data:"+p.MimeType+";base64,"+p.Data)
	}
	return agent.NewFile(p.Filename, cmp.Or(p.MimeType, "image/*"), p.URL)
}

// invalidCallID is the error message for a call id that is empty or longer than maxCallID.
var invalidCallID = fmt.Sprintf("must be 1 to %d bytes", maxCallID)

// readMessage adds msg to the history, or to the instructions if its role is system or developer. It ignores activity
// and reasoning messages. field is msg's path in the request, for errors.
func (q *Request) readMessage(field string, msg message) error {
	if msg.Role == "activity" || msg.Role == "reasoning" {
		return nil // the model does not get these again; the content of an activity is an object
	}
	text, media, err := decodeContent(field+".content", msg.Content)
	if err != nil {
		return err
	}

	read := agent.Message{Role: msg.Role, Content: text, Media: media}
	switch msg.Role {
	case "system", "developer":
		q.addInstruction(text)
		return nil
	case "user":
	case "assistant":
		if read.Calls, err = msg.calls(field); err != nil {
			return err
		}
	case "tool":
		read.CallID = msg.ToolCallID
		if read.CallID == "" || len(read.CallID) > maxCallID {
			return &Invalid{field + ".toolCallId", invalidCallID}
		}
		if msg.Error != "" {
			read.Content = "Error: " + msg.Error
		}
	default:
		return &Invalid{field + ".role", "is not a role of AG-UI"}
	}

	q.History = append(q.History, read)
	return nil
}

// calls returns the calls in m, a message of the assistant. field is m's path in the request, for errors.
func (m message) calls(field string) (calls []agent.ClientCall, err error) {
	for i, c := range m.ToolCalls {
		callField := fmt.Sprintf("%s.toolCalls[%d]", field, i)
		switch {
		case c.ID == "" || len(c.ID) > maxCallID:
			return nil, &Invalid{callField + ".id", invalidCallID}
		case c.Function.Name == "" || len(c.Function.Name) > maxID:
			return nil, &Invalid{callField + ".function.name", "must be 1 to 128 bytes"}
		}
		calls = append(calls, agent.ClientCall{Index: i, ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
	}
	return calls, nil
}

// decodeContent returns the text and media of raw, a message's content: a text, a list of parts, or nothing. Texts of
// several parts are joined with newlines. Files that only a model provider can read are left out. field is the
// content's path in the request, for errors.
func decodeContent(field string, raw json.RawMessage) (text string, media []agent.Media, err error) {
	if raw == nil || string(raw) == "null" {
		return "", nil, nil
	}
	if json.Unmarshal(raw, &text) == nil {
		return text, nil, nil
	}
	var parts []part
	err = json.Unmarshal(raw, &parts)
	if part, typeName, ok := typeerror.Find(raw, err); ok && strings.HasPrefix(part, "[") {
		return "", nil, &Invalid{field + part, "must not be a " + typeName}
	}
	if err != nil {
		return "", nil, &Invalid{field, "must be a text or a list of parts"}
	}
	var texts []string
	for i, p := range parts {
		switch {
		case p.Type == "text":
			texts = append(texts, p.Text)
		case p.Source.Type == "file":
			// FileSource of 1.0: only the provider that issued the id can read the file, and others leave out the part.
		default:
			file, err := p.toMedia()
			if err != nil {
				return "", nil, &Invalid{fmt.Sprintf("%s[%d]", field, i), err.Error()}
			}
			media = append(media, file)
		}
	}
	if len(media) > maxMedia {
		return "", nil, &Invalid{field, fmt.Sprintf("must not have more than %d pictures and sounds", maxMedia)}
	}
	return strings.Join(texts, "\n"), media, nil
}
