package responses

import (
	"slices"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/event"
)

// referenceRole is the role of a placeholder in the history for an item of an earlier response. Decode cannot read the
// event log, so ResolveReferences replaces placeholders later. A placeholder's CallID is the item's id, and its Content
// is the reference's path in the request, for errors.
const referenceRole = "item_reference"

// minReferredRuns is the number of runs to which a request can always refer, even if the agent uses fewer messages of a
// history. Some items, such as reasoning, do not become messages.
const minReferredRuns = 32

// ResolveReferences replaces the placeholders in the history by the items themselves. maxHistory is how many messages
// of a history the agent uses. If the references name more runs than that (and than minReferredRuns), those to the
// oldest runs are dropped, because the agent would drop their messages anyway. readRun returns all events of a run, or
// an error if the caller may not read them. The error is an *Invalid or that of readRun.
func (q *Request) ResolveReferences(maxHistory int, readRun func(run string) ([]event.Event, error)) error {
	runs, err := q.readReferredRuns(max(maxHistory, minReferredRuns), readRun)
	if err != nil {
		return err
	}
	unresolved := q.History
	q.History = nil
	for _, message := range unresolved {
		if message.Role != referenceRole {
			q.History = append(q.History, message)
			continue
		}
		kind, run, name, _ := parseItemID(message.CallID)
		items := runs[run]
		if items == nil {
			continue // readReferredRuns left out this run, one of the oldest
		}
		if !q.appendItem(items, kind, name) {
			return &Invalid{message.Content + ".id", "is not the id of an item of an output"}
		}
	}
	return nil
}

// readReferredRuns returns, by run id, the items of the runs to which placeholders refer. It reads each run once, from
// the history's last reference to the first, and stops after maxRuns runs.
func (q *Request) readReferredRuns(maxRuns int, readRun func(run string) ([]event.Event, error)) (map[string]*runItems, error) {
	referred := make(map[string]*runItems)
	for _, message := range slices.Backward(q.History) {
		if message.Role != referenceRole {
			continue
		}
		_, run, _, ok := parseItemID(message.CallID)
		if !ok {
			return nil, &Invalid{message.Content + ".id", "is not the id of an item"}
		}
		if referred[run] != nil {
			continue
		}
		if len(referred) == maxRuns {
			break
		}
		events, err := readRun(run)
		if err != nil {
			return nil, err
		}
		referred[run] = collectItems(events)
	}
	return referred, nil
}

// runItems holds the items of a run that can be part of the history.
type runItems struct {
	texts   map[string]string           // complete texts, by part id
	calls   map[string]agent.ClientCall // calls with complete arguments, by call id
	results map[string]string           // results and errors of calls, by call id
	begun   map[string]bool             // all texts and calls, ended or not, by kind and name, such as msg_NAME
}

// collectItems returns a run's items. events are all events of the run.
func collectItems(events []event.Event) *runItems {
	items := &runItems{
		texts: make(map[string]string), calls: make(map[string]agent.ClientCall),
		results: make(map[string]string), begun: make(map[string]bool),
	}
	openTexts := make(map[string]*strings.Builder) // by part id
	for _, e := range events {
		switch b := e.Body.(type) {
		case event.TextStart:
			openTexts[b.PartID] = &strings.Builder{}
			items.begun["msg_"+b.PartID] = true
		case event.TextDelta:
			openTexts[b.PartID].WriteString(b.Delta)
		case event.TextEnd:
			items.texts[b.PartID] = openTexts[b.PartID].String()
		case event.ToolCallStart:
			items.begun["fc_"+b.CallID] = true
			items.begun["mcp_"+b.CallID] = true
		case event.ToolCall:
			items.calls[b.CallID] = agent.ClientCall{ID: b.CallID, Name: b.Tool, Arguments: b.Arguments()}
		case event.ToolResult:
			items.results[b.CallID] = b.Text()
		case event.ToolError:
			items.results[b.CallID] = "Error: " + b.Payload
		case event.FinalAnswer:
			items.texts[structuredAnswerPart] = b.Answer // Encoder.encodeAnswer makes an item of a structured answer
		}
	}
	return items
}

// appendItem adds the item with that kind and name to the history. It returns false if the run has no such item. It
// adds nothing, but returns true, for an item that the run began and did not complete, and for reasoning, lists of
// tools and approvals, which the model does not get again.
func (q *Request) appendItem(items *runItems, kind, name string) bool {
	switch kind {
	case "msg":
		if text, ok := items.texts[name]; ok {
			q.History = append(q.History, agent.Message{Role: "assistant", Content: text})
			return true
		}
	case "fc":
		if c, ok := items.calls[name]; ok {
			q.addCall(c)
			return true
		}
	case "mcp":
		if c, ok := items.calls[name]; ok {
			q.addServerCall(c, items.results[name])
			return true
		}
	case "rs", "mcpl", "mcpr", "mcpa": // reasoning, a list of tools, an approval request, its response
		return true
	}
	return items.begun[kind+"_"+name]
}

// addCall adds a call of the client's function to the history. In this format, a turn's calls are separate items after
// the turn's text, but the model needs them in one message. So if the history ends with a message of the assistant,
// addCall adds the call to it.
func (q *Request) addCall(c agent.ClientCall) {
	if n := len(q.History) - 1; n >= 0 && q.History[n].Role == "assistant" {
		c.Index = len(q.History[n].Calls)
		q.History[n].Calls = append(q.History[n].Calls, c)
		return
	}
	q.History = append(q.History, agent.Message{Role: "assistant", Calls: []agent.ClientCall{c}})
}

// addServerCall adds two messages to the history: a call of an MCP server's tool, and its result.
func (q *Request) addServerCall(c agent.ClientCall, result string) {
	q.History = append(q.History,
		agent.Message{Role: "assistant", Calls: []agent.ClientCall{c}},
		agent.Message{Role: "tool", CallID: c.ID, Content: result})
}
