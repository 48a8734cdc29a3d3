package responses

import (
	"cmp"
	"fmt"

	"answerd/internal/agent"
	"answerd/internal/event"
)

// InputItems returns the input of the response with that id, oldest first: the conversation up to
// its question, or the approvals that resumed its run. events are those of the run. Images are
// missing if EncodeStored had to leave them out.
func (k StoredRequest) InputItems(id string, events []event.Event) []InputItem {
	if _, span, _ := ParseID(id); span.After > 0 {
		return approvalItems(id, span, events)
	}
	var out []InputItem
	for _, message := range k.Messages() {
		name := fmt.Sprintf("in_%d", len(out))
		switch message.Role {
		case "tool":
			out = append(out, InputItem{ID: itemID("fco", id, name), Type: "function_call_output", Status: "completed", CallID: message.CallID, Output: &message.Content})
			continue
		case "assistant":
			if message.Content != "" {
				out = append(out, InputItem{ID: itemID("msg", id, name), Type: "message", Status: "completed", Role: message.Role, Content: []any{outputText(message.Content)}})
			}
		default:
			out = append(out, InputItem{ID: itemID("msg", id, name), Type: "message", Status: "completed", Role: message.Role, Content: inputParts(message)})
		}
		for _, c := range message.Calls {
			name := fmt.Sprintf("in_%d", len(out))
			out = append(out, InputItem{ID: itemID("fc", id, name), Type: "function_call", Status: "completed", CallID: c.ID, Name: c.Name, Arguments: &c.Arguments})
		}
	}
	return out
}

// approvalItems returns the approvals that resumed the run for the response with that id and span.
func approvalItems(id string, span Span, events []event.Event) (out []InputItem) {
	for _, e := range events {
		if _, over := e.Body.(event.Suspended); over && e.Seq > max(span.After, span.Until) {
			break
		}
		b, ok := e.Body.(event.ApprovalResolved)
		if !ok || e.Seq <= span.After {
			continue
		}
		item := InputItem{
			ID: itemID("mcpa", id, b.InterruptID), Type: "mcp_approval_response",
			ApprovalID: itemID("mcpr", id, b.InterruptID), Approve: &b.Approved,
		}
		if b.Reason != "" {
			item.Reason = &b.Reason
		}
		out = append(out, item)
	}
	return out
}

// inputParts returns the text and the images of a user's message as the parts of an input item.
func inputParts(message agent.Message) []any {
	type text struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	type image struct {
		Type   string `json:"type"`
		Detail string `json:"detail"`
		URL    string `json:"image_url"`
	}
	type file struct {
		Type string `json:"type"`
		Name string `json:"filename"`
		Data string `json:"file_data"`
	}
	out := []any{}
	if message.Content != "" {
		out = append(out, text{"input_text", message.Content})
	}
	for _, p := range message.Media {
		url := p.URL
		if url == "" {
			url = "data:" + p.MIME + ";base64," + p.Data
		}
		if p.URL == "" && !p.IsImage() {
			out = append(out, file{"input_file", p.Name, url})
			continue
		}
		out = append(out, image{"input_image", cmp.Or(p.Detail, "auto"), url})
	}
	return out
}

// InputItem is one item of an input. Type says which of the other members it has.
type InputItem struct {
	ID         string  `json:"id"`
	Type       string  `json:"type"`
	Status     string  `json:"status,omitempty"`
	Role       string  `json:"role,omitempty"`
	Content    []any   `json:"content,omitempty"`
	CallID     string  `json:"call_id,omitempty"`
	Name       string  `json:"name,omitempty"`
	Arguments  *string `json:"arguments,omitempty"`
	Output     *string `json:"output,omitempty"`
	ApprovalID string  `json:"approval_request_id,omitempty"`
	Approve    *bool   `json:"approve,omitempty"`
	Reason     *string `json:"reason,omitempty"`
}

// Page is a page of a list in the form that OpenAI's clients iterate over.
type Page struct {
	Object string      `json:"object"` // list
	Data   []InputItem `json:"data"`
	First  *string     `json:"first_id"`
	Last   *string     `json:"last_id"`
	More   bool        `json:"has_more"`
}

// NewPage returns at most limit items that follow the item with the id after, or the first ones if
// after is "". ok is false if there is no such item.
func NewPage(items []InputItem, after string, limit int) (page Page, ok bool) {
	page = Page{Object: "list", Data: []InputItem{}}
	ok = after == ""
	for _, item := range items {
		switch {
		case !ok:
			ok = item.ID == after
		case len(page.Data) < limit:
			page.Data = append(page.Data, item)
		default:
			page.More = true
		}
	}
	if n := len(page.Data); n > 0 {
		page.First, page.Last = &page.Data[0].ID, &page.Data[n-1].ID
	}
	return page, ok
}
