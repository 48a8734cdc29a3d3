package responses

import (
	"slices"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/event"
)

// argumentsOf returns the arguments of a call as JSON, or as the text that the model wrote if that is not a JSON object.
func argumentsOf(b event.ToolCall) string {
	if b.Args == nil {
		return b.ArgsText
	}
	return string(b.Args)
}

// referenceRole is the role of a placeholder in the history for an item of an earlier response. Decode cannot read the
// event log, so ResolveReferences replaces placeholders later. The CallID of a placeholder is the id of the item, and its
// Content is the path of the reference in the input, for errors.
const referenceRole = "item_reference"

// minReferredRuns is the number of runs that a request can refer to even if the agent uses fewer messages of a history:
// some items, such as reasoning, do not become messages.
const minReferredRuns = 32

// ResolveReferences replaces the placeholders in the history by the items themselves. maxHistory is the number of
// messages that the agent uses of a history. If the references name more runs than that (and than minReferredRuns),
// ResolveReferences drops those to the oldest runs, because the agent would drop their messages. readRun returns all
// events of a run, and an error if the caller may not read them. The error is an *Invalid or that of readRun.
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

// readReferredRuns returns the items of the runs that placeholders refer to, by run id. It reads each run once, from the
// last reference in the history to the first, and stops after maxRuns runs.
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
	begun   map[string]bool             // all texts and calls, also those without an end; by kind and name, such as msg_NAME
}

// collectItems returns the items of a run from all of its events.
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
			items.calls[b.CallID] = agent.ClientCall{ID: b.CallID, Name: b.Tool, Arguments: argumentsOf(b)}
		case event.ToolResult:
			items.results[b.CallID] = plainText(b.Payload)
		case event.ToolError:
			items.results[b.CallID] = "Error: " + b.Payload
		case event.FinalAnswer:
			items.texts[structuredAnswerPart] = b.Answer // Encoder.encodeAnswer makes an item of a structured answer
		}
	}
	return items
}

// appendItem adds the item with that kind and name to the history. It returns false if the run has no such item. It
// returns true and adds nothing for an item that the run has begun and not completed, and for reasoning, lists of tools
// and approvals, which the model does not get again.
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

// addCall adds a call of the caller's function to the history. In this format, the calls of one turn are separate items
// after the turn's text. For the model they must be in one message, so addCall adds the call to an assistant's message at
// the end of the history, if there is one.
func (q *Request) addCall(c agent.ClientCall) {
	if n := len(q.History) - 1; n >= 0 && q.History[n].Role == "assistant" {
		c.Index = len(q.History[n].Calls)
		q.History[n].Calls = append(q.History[n].Calls, c)
		return
	}
	q.History = append(q.History, agent.Message{Role: "assistant", Calls: []agent.ClientCall{c}})
}

// addServerCall adds two messages to the history: a call of a server's tool, and its result.
func (q *Request) addServerCall(c agent.ClientCall, result string) {
	q.History = append(q.History,
		agent.Message{Role: "assistant", Calls: []agent.ClientCall{c}},
		agent.Message{Role: "tool", CallID: c.ID, Content: result})
}
