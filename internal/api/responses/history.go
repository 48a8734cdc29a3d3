package responses

import (
	"slices"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/event"
)

// callOf returns a call as part of a message, at the given index among the message's calls.
func callOf(b event.ToolCall, index int) agent.ClientCall {
	args := b.ArgsText
	if b.Args != nil {
		args = string(b.Args)
	}
	return agent.ClientCall{Index: index, ID: b.CallID, Name: b.Tool, Arguments: args}
}

// reference is the role of a placeholder in the history for an item of an earlier response. Decode
// cannot read the log, so ResolveReferences replaces placeholders later. CallID has the id of the
// item, and Content its path in the input, for errors.
const reference = "item_reference"

// minReferred is how many runs a request can refer to, however short its history may be: items such as
// reasoning are no messages.
const minReferred = 32

// ResolveReferences replaces the placeholders in the history by the items themselves. maxHistory is the number of
// messages that the agent uses of a history. The runs beyond that many are not read, since the agent would drop
// their messages. readRun returns all events of a run, and an error if the caller may not read them. The error is
// an *Invalid or that of readRun.
func (q *Request) ResolveReferences(maxHistory int, readRun func(run string) ([]event.Event, error)) error {
	referred, err := q.readReferredRuns(max(maxHistory, minReferred), readRun)
	if err != nil {
		return err
	}
	unresolved := q.History
	q.History = nil
	for _, message := range unresolved {
		if message.Role != reference {
			q.History = append(q.History, message)
			continue
		}
		kind, run, name, _ := parseItemID(message.CallID)
		if items := referred[run]; items != nil && !q.appendItem(items, kind, name) {
			return &Invalid{message.Content + ".id", "is not the id of an item of an output"}
		}
	}
	return nil
}

// readReferredRuns returns the items of the runs that placeholders refer to. It reads each run
// once, the newest references first, and leaves out the oldest beyond maxRuns.
func (q *Request) readReferredRuns(maxRuns int, readRun func(run string) ([]event.Event, error)) (map[string]*runItems, error) {
	referred := make(map[string]*runItems)
	for _, message := range slices.Backward(q.History) {
		if message.Role != reference {
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

// runItems holds the items of a run that can be part of the history, by the names in their ids.
type runItems struct {
	texts   map[string]string
	calls   map[string]agent.ClientCall
	results map[string]string
	begun   map[string]bool // by kind and name, also what was never completed
}

// collectItems returns the items of a run from its events.
func collectItems(events []event.Event) *runItems {
	items := &runItems{texts: make(map[string]string), calls: make(map[string]agent.ClientCall), results: make(map[string]string), begun: make(map[string]bool)}
	texts := make(map[string]*strings.Builder)
	for _, e := range events {
		switch b := e.Body.(type) {
		case event.TextStart:
			texts[b.PartID], items.begun["msg_"+b.PartID] = &strings.Builder{}, true
		case event.TextDelta:
			texts[b.PartID].WriteString(b.Delta)
		case event.TextEnd:
			items.texts[b.PartID] = texts[b.PartID].String()
		case event.ToolCallStart:
			items.begun["fc_"+b.CallID], items.begun["mcp_"+b.CallID] = true, true
		case event.ToolCall:
			items.calls[b.CallID] = callOf(b, 0)
		case event.ToolResult:
			items.results[b.CallID] = *plainText(b.Payload)
		case event.ToolError:
			items.results[b.CallID] = "Error: " + b.Payload
		case event.FinalAnswer:
			items.texts[structuredAnswerPart] = b.Answer
		}
	}
	return items
}

// appendItem adds an item to the history, and returns false if the run has no such item. It ignores
// reasoning, tool lists and approvals, which the model does not get again, and items that the run has not
// completed.
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
	case "rs", "mcpl", "mcpr", "mcpa":
		return true
	}
	return items.begun[kind+"_"+name]
}

// addCall adds a call of the caller's function to the history. In this format the calls of one
// turn are separate items; for the model they must be in one message.
func (q *Request) addCall(c agent.ClientCall) {
	if n := len(q.History) - 1; n >= 0 && q.History[n].Role == "assistant" {
		c.Index = len(q.History[n].Calls)
		q.History[n].Calls = append(q.History[n].Calls, c)
		return
	}
	q.History = append(q.History, agent.Message{Role: "assistant", Calls: []agent.ClientCall{c}})
}

// addServerCall adds a call of a server's tool to the history, with its result.
func (q *Request) addServerCall(c agent.ClientCall, result string) {
	q.History = append(q.History,
		agent.Message{Role: "assistant", Calls: []agent.ClientCall{c}},
		agent.Message{Role: "tool", CallID: c.ID, Content: result})
}
