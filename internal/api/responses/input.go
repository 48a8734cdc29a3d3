package responses

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/api/typeerror"
)

// inItem is an item of the input. Its type says which of the other members it has. Clients leave out the type of
// messages.
type inItem struct {
	ID      string          `json:"id"`
	Type    string          `json:"type"`
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`

	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"`
	Error     json.RawMessage `json:"error"` // of an mcp_call; a text or an object

	ApprovalID string `json:"approval_request_id"`
	Approve    *bool  `json:"approve"`
	Reason     string `json:"reason"`
}

// inPart is one part of a message. Type says which of the other members it has.
type inPart struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	ImageURL string `json:"image_url"`
	Detail   string `json:"detail"` // of an image
	Filename string `json:"filename"`
	FileData string `json:"file_data"` // a data: URL
	FileURL  string `json:"file_url"`
	FileID   string `json:"file_id"`
}

// readInput reads the member input. If it is a text, that is the question. If it is a list of items, the last message
// is the question, and the items before it are the history. readQuestion says when a request has no question.
func (q *Request) readInput(in body) error {
	var text string
	if json.Unmarshal(in.Input, &text) == nil {
		if strings.TrimSpace(text) == "" {
			return &Invalid{"input", "must not be blank"}
		}
		q.Question = text
		return nil
	}
	var items []inItem
	err := json.Unmarshal(in.Input, &items)
	if item, typeName, ok := typeerror.Find(in.Input, err); ok && strings.HasPrefix(item, "[") {
		return &Invalid{"input" + item, "is of the wrong type: " + typeName}
	}
	if err != nil || len(items) == 0 {
		return &Invalid{"input", "must be a text or a list of items"}
	}
	if len(items) > maxItems {
		return &Invalid{"input", fmt.Sprintf("must not have more than %d items", maxItems)}
	}
	for i, item := range items {
		if err := q.readItem(fmt.Sprintf("input[%d]", i), item); err != nil {
			return err
		}
	}
	return q.readQuestion()
}

// readItem adds an item to the history, the instructions or the approvals. It ignores output items of earlier responses
// that the model does not need again. field is the item's path in the request, for errors.
func (q *Request) readItem(field string, item inItem) error {
	if item.Type != "mcp_approval_response" {
		// Clients that send the whole conversation also send approvals of earlier turns. Only those at the end of the
		// input count, so any other item moves the approvals before it to PastApprovals.
		q.PastApprovals, q.Approvals = append(q.PastApprovals, q.Approvals...), nil
	}
	if item.Type == "" && item.Role == "" && item.ID != "" {
		item.Type = "item_reference" // the type of a reference is optional, too
	}
	switch item.Type {
	case "", "message":
		return q.readMessage(field, item)
	case "function_call":
		if item.CallID == "" || item.Name == "" {
			return &Invalid{field, "must have a call_id and a name"}
		}
		q.addCall(agent.ClientCall{ID: item.CallID, Name: item.Name, Arguments: item.Arguments})
	case "function_call_output":
		if item.CallID == "" {
			return &Invalid{field + ".call_id", "is required"}
		}
		text, media, err := decodeContent(field+".output", item.Output)
		if err != nil {
			return err
		}
		q.History = append(q.History, agent.Message{Role: "tool", CallID: item.CallID, Content: text, Media: media})
	case "mcp_approval_response":
		return q.readApproval(field, item)
	case "item_reference":
		q.History = append(q.History, agent.Message{Role: referenceRole, CallID: item.ID, Content: field})
	case "mcp_call":
		return q.readServerCall(field, item)
	case "reasoning", "mcp_list_tools", "mcp_approval_request":
		// Output items of earlier responses that the model does not need.
	default:
		return &Invalid{field + ".type", "is not supported"}
	}
	return nil
}

// readServerCall adds a call of an MCP server's tool, and its result or error, to the history. It ignores a call with
// neither: if a response ends with approval requests, its calls in progress appear again, with results, in the next
// one.
func (q *Request) readServerCall(field string, item inItem) error {
	if item.ID == "" || item.Name == "" {
		return &Invalid{field, "must have an id and a name"}
	}
	call := agent.ClientCall{ID: item.ID, Name: item.Name, Arguments: item.Arguments}
	if kind, _, callID, ok := parseItemID(item.ID); ok && kind == "mcp" {
		call.ID = callID // without the run's id, because model endpoints limit the length of a call's id
	}
	if message := errorText(item.Error); message != "" {
		q.addServerCall(call, "Error: "+message)
		return nil
	}
	if !isGiven(item.Output) {
		return nil
	}
	text, _, err := decodeContent(field+".output", item.Output)
	if err != nil {
		return err
	}
	q.addServerCall(call, text)
	return nil
}

// errorText returns the error of an mcp_call item as text. Such an error is a string, or one of the objects that
// callError returns. Of an object, the text is the message and the texts of the content, one per line. An error of
// another form is returned as JSON, and a missing one as "".
func errorText(raw json.RawMessage) string {
	if !isGiven(raw) {
		return ""
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var object struct {
		Message string
		Content []struct{ Text string }
	}
	if json.Unmarshal(raw, &object) != nil || object.Message == "" && len(object.Content) == 0 {
		return string(raw)
	}
	text = object.Message
	for _, part := range object.Content {
		if text != "" {
			text += "\n"
		}
		text += part.Text
	}
	return text
}

// readMessage adds a message to the history, or to the instructions if its role is system or developer. field is the
// message's path in the request, for errors.
func (q *Request) readMessage(field string, item inItem) error {
	text, media, err := decodeContent(field+".content", item.Content)
	if err != nil {
		return err
	}
	switch item.Role {
	case "system", "developer":
		q.Instructions = strings.TrimPrefix(q.Instructions+"\n\n"+text, "\n\n")
	case "user", "assistant":
		q.History = append(q.History, agent.Message{Role: item.Role, Content: text, Media: media})
	default:
		return &Invalid{field + ".role", "must be system, developer, user or assistant"}
	}
	return nil
}

// readApproval adds an answer to an approval request to q.Approvals. All answers must belong to the same run, because
// the request resumes one run.
func (q *Request) readApproval(field string, item inItem) error {
	kind, run, interrupt, ok := parseItemID(item.ApprovalID)
	switch {
	case !ok || kind != "mcpr":
		return &Invalid{field + ".approval_request_id", "is not the id of an approval request"}
	case len(q.Approvals) > 0 && q.Approvals[0].Run != run:
		return &Invalid{field + ".approval_request_id", "belongs to another response than the approvals before it"}
	case slices.ContainsFunc(q.Approvals, func(a Approval) bool { return a.Interrupt == interrupt }):
		return &Invalid{field + ".approval_request_id", "answered twice"}
	case item.Approve == nil:
		return &Invalid{field + ".approve", "is required"}
	}
	q.Approvals = append(q.Approvals, Approval{Param: field, Run: run, Interrupt: interrupt, Approve: *item.Approve, Reason: item.Reason})
	return nil
}

// readQuestion moves the history's last message, which must be the user's, to the question. A request has no question
// if the history ends with an output of a client's function: the model then continues with the output. A request with
// approvals has none either, because it resumes a run that already has a question. If such a request continues a
// thread, its messages are new, and the run cannot take them.
func (q *Request) readQuestion() error {
	if len(q.Approvals) > 0 {
		isQuestion := func(m agent.Message) bool { return m.Role == "user" }
		if q.ContinueThread && slices.ContainsFunc(q.History, isQuestion) {
			return &Invalid{"input", "must not have both a message and answers to approval requests: send the message in the next request"}
		}
		return nil
	}
	if len(q.History) == 0 {
		return &Invalid{"input", "must have a message of the user"}
	}
	last := q.History[len(q.History)-1]
	switch {
	case last.Role == "tool":
		return nil
	case last.Role != "user":
		return &Invalid{"input", "must end with a message of the user or an output of a function"}
	case strings.TrimSpace(last.Content) == "" && len(last.Media) == 0:
		return &Invalid{"input", "must not be blank"}
	}
	q.TakeQuestion()
	return nil
}

// decodeContent returns the text and media of raw, the content of a message or a function's output: a text, a list of
// parts, or nothing. Texts of several parts are joined with newlines. Refusals are ignored, because only earlier
// messages of a model have them. field is the content's path in the request, for errors.
func decodeContent(field string, raw json.RawMessage) (text string, media []agent.Media, err error) {
	if !isGiven(raw) {
		return "", nil, nil
	}
	if json.Unmarshal(raw, &text) == nil {
		return text, nil, nil
	}
	var parts []inPart
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", nil, invalidMember(field, raw, err, "must be a text or a list of parts")
	}

	var texts []string
	for i, part := range parts {
		switch part.Type {
		case "input_text", "output_text", "text", "summary_text":
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
		return "", nil, &Invalid{field, fmt.Sprintf("must not have more than %d images and files", maxMedia)}
	}
	return strings.Join(texts, "\n"), media, nil
}

// toMedia returns the image or file of a part. field is the part's path in the request, for errors. The error is an
// *Invalid, also for an unknown type of part.
func (p inPart) toMedia(field string) (agent.Media, error) {
	switch p.Type {
	case "input_image":
		if p.FileID != "" {
			return agent.Media{}, &Invalid{field + ".file_id", "is not supported: the service stores no files; use image_url"}
		}
		m, err := agent.NewMedia("", p.ImageURL)
		if err != nil {
			return agent.Media{}, &Invalid{field + ".image_url", err.Error()}
		}
		if p.Detail != "auto" { // the default
			m.Detail = p.Detail
		}
		return m, nil
	case "input_file":
		if p.FileID != "" || p.FileURL != "" {
			return agent.Media{}, &Invalid{field, "file_id and file_url are not supported: the service neither stores nor fetches files; use file_data"}
		}
		m, err := agent.NewFile(p.Filename, "", p.FileData)
		if err != nil {
			return agent.Media{}, &Invalid{field + ".file_data", err.Error()}
		}
		return m, nil
	}
	return agent.Media{}, &Invalid{field + ".type", "must be input_text, output_text, input_image or input_file"}
}
