package responses

import (
	"cmp"
	"fmt"

	"answerd/internal/agent"
	"answerd/internal/event"
)

// InputItems returns the input of the response with that id, oldest first. For the first response of a run, that is the
// conversation up to its question, without the parts that EncodeStored had to leave out. For a later response, it is
// the approvals that resumed the run. They are found in events, which must then be all events of the run.
func (s StoredRequest) InputItems(id string, events []event.Event) []InputItem {
	if _, span, _ := ParseID(id); span.After > 0 {
		return approvalItems(id, span, events)
	}
	var out []InputItem
	add := func(kind string, item InputItem) {
		item.ID = itemID(kind, id, fmt.Sprintf("in_%d", len(out)))
		item.Status = "completed"
		out = append(out, item)
	}
	for _, message := range s.Messages() {
		switch message.Role {
		case "tool":
			var output any = message.Content
			if len(message.Media) > 0 {
				output = inputParts(message)
			}
			add("fco", InputItem{Type: "function_call_output", CallID: message.CallID, Output: output})
		case "assistant":
			if message.Content != "" {
				add("msg", InputItem{Type: "message", Role: message.Role, Content: []any{outputText(message.Content)}})
			}
			for _, c := range message.Calls {
				add("fc", InputItem{Type: "function_call", CallID: c.ID, Name: c.Name, Arguments: &c.Arguments})
			}
		default:
			add("msg", InputItem{Type: "message", Role: message.Role, Content: inputParts(message)})
		}
	}
	return out
}

// approvalItems returns the decisions that resumed the run for the response with that id and span. They are between the
// suspension at span.After and the next suspension that ends a response.
func approvalItems(id string, span Span, events []event.Event) (out []InputItem) {
	for _, e := range events {
		if _, isSuspended := e.Body.(event.Suspended); isSuspended && e.Seq > max(span.After, span.Until) {
			break
		}
		decision, ok := e.Body.(event.ApprovalResolved)
		if !ok || e.Seq <= span.After {
			continue
		}
		item := InputItem{
			ID: itemID("mcpa", id, decision.InterruptID), Type: "mcp_approval_response",
			ApprovalID: itemID("mcpr", id, decision.InterruptID), Approve: &decision.Approved,
		}
		if decision.Reason != "" {
			item.Reason = &decision.Reason
		}
		out = append(out, item)
	}
	return out
}

// inputParts returns the text, images and files of a user's message, or of a function's output, as the parts of an input
// item.
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
	for _, media := range message.Media {
		url := cmp.Or(media.URL, "data:"+media.MIME+";base64,"+media.Data)
		if media.URL != "" || media.IsImage() { // only images have a URL
			out = append(out, image{"input_image", cmp.Or(media.Detail, "auto"), url})
		} else {
			out = append(out, file{"input_file", media.Name, url})
		}
	}
	return out
}

// InputItem is one item of an input. Its type says which of the other members it has.
type InputItem struct {
	ID         string  `json:"id"`
	Type       string  `json:"type"`
	Status     string  `json:"status,omitempty"`
	Role       string  `json:"role,omitempty"`
	Content    []any   `json:"content,omitempty"`
	CallID     string  `json:"call_id,omitempty"`
	Name       string  `json:"name,omitempty"`
	Arguments  *string `json:"arguments,omitempty"`
	Output     any     `json:"output,omitempty"` // a text or a list of parts
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

// NewPage returns a page of at most limit items. It begins with the item that follows the one with the id after, or with
// the first item if after is "". Its More says whether the list continues. found is false if no item has the id after.
func NewPage(items []InputItem, after string, limit int) (page Page, found bool) {
	page = Page{Object: "list", Data: []InputItem{}}
	found = after == ""
	for _, item := range items {
		switch {
		case !found:
			found = item.ID == after
		case len(page.Data) < limit:
			page.Data = append(page.Data, item)
		default:
			page.More = true
		}
	}
	if n := len(page.Data); n > 0 {
		page.First, page.Last = &page.Data[0].ID, &page.Data[n-1].ID
	}
	return page, found
}
