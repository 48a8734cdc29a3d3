package rerun

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"sync"

	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/export"
	"answerd/internal/mcp"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/content"
)

// tools implements agent.Tools with the recorded tools, results and errors. It never connects to an MCP server.
type tools struct{ session *session }

// ToolsFor implements agent.Tools. It returns the recorded tools of the run that ctx belongs to, or of the first run.
func (t *tools) ToolsFor(ctx context.Context, _ auth.Identity) []catalog.Tool {
	rec := t.session.root
	if r := t.session.runOf(ctx); r != nil {
		rec = r.rec
	}
	var out []catalog.Tool
	for _, d := range rec.doc.Tools {
		if d.Server != "" {
			out = append(out, t.catalogTool(d))
		}
	}
	return out
}

// catalogTool converts a recorded tool definition to a catalog.Tool. If another model is asked, the tool needs no
// approval, because no approval was recorded for its calls.
func (t *tools) catalogTool(recorded export.Tool) catalog.Tool {
	tool := catalog.Tool{
		Name:          recorded.Name,
		Server:        recorded.Server,
		Original:      recorded.Original,
		Title:         recorded.Title,
		Description:   recorded.Description,
		InputSchema:   recorded.InputSchema,
		OutputSchema:  recorded.OutputSchema,
		NeedsApproval: recorded.NeedsApproval && !t.session.otherModel,
	}
	var annotations catalog.Annotations
	if recorded.Annotations != nil && json.Unmarshal(recorded.Annotations, &annotations) == nil {
		tool.Annotations = &annotations
	}
	return catalog.Restore(tool, recorded.Version)
}

// Tool implements agent.Tools.
func (t *tools) Tool(name string) (catalog.Tool, bool) {
	for _, doc := range withChildren(t.session.root.doc) {
		for _, tool := range doc.Tools {
			if tool.Name == name && tool.Server != "" {
				return t.catalogTool(tool), true
			}
		}
	}
	return catalog.Tool{}, false
}

// CheckArgs implements agent.Tools. It checks args against the recorded definition.
func (t *tools) CheckArgs(name string, args json.RawMessage) (json.RawMessage, error) {
	tool, ok := t.Tool(name)
	if !ok {
		return args, nil
	}
	coerced, wrong := tool.CheckArgs(args)
	if wrong != nil {
		return args, mcp.ArgumentsError(tool.Name, tool.Server, wrong)
	}
	return coerced, nil
}

// Call implements agent.Tools. It returns the call's recorded outcome. With another model, it returns the outcome of
// any recorded call with the same tool and arguments. If the call was not recorded, it returns an error.
func (t *tools) Call(ctx context.Context, call mcp.Call) (*content.Result, error) {
	errNoResult := newCallError(call, mcp.Execution, noResult)
	state := t.session.byID(call.RunID)
	if state == nil {
		return nil, errNoResult
	}
	if t.session.otherModel {
		rec, recordedCall := t.session.root.findCall(call.Tool, call.Args)
		if recordedCall == nil {
			return nil, errNoResult
		}
		return rec.outcome(ctx, call, recordedCall.events[len(recordedCall.events)-1])
	}
	recordedCall := state.rec.calls[call.CallID]
	if recordedCall == nil {
		return nil, errNoResult
	}
	if sent := state.sentSignal(call.CallID); !isClosed(sent) {
		close(sent) // not closed twice, because one goroutine sends the call
	}
	return state.repeat(ctx, call, recordedCall)
}

// repeat does what the MCP server did during a recorded call, each action at its recorded position: it reports
// progress, logs, asks questions and withdraws them. It returns the recorded outcome. If the call has no recorded end,
// repeat blocks until ctx ends. If the server asked questions with its result (see inputRequired), repeat returns such
// a result. When the client then sends the call again, repeat continues with the events after these questions.
func (r *runState) repeat(ctx context.Context, call mcp.Call, recorded *recordedCall) (*content.Result, error) {
	questions := openQuestions{withdraw: make(map[string]context.CancelFunc)}
	defer questions.close()

	r.mu.Lock()
	next := r.repeated[call.CallID]
	r.mu.Unlock()
	for ; next < len(recorded.events); next++ {
		e := recorded.events[next]
		if isApproval(e) {
			continue // the agent asked this, not the server
		}
		r.await(ctx, e.Seq-1)
		switch body := e.Body.(type) {
		case event.ToolProgress:
			if call.Progress != nil {
				call.Progress(mcp.Progress{Progress: body.Progress, Total: body.Total, Message: body.Message})
			}
		case event.LogMessage:
			if call.Log != nil {
				call.Log(mcp.LogMessage{Level: body.Level, Logger: body.Logger, Data: body.Data})
			}
		case event.Elicitation:
			if ctx.Err() != nil {
				break // out of the switch: the question is skipped, but the outcome still follows
			}
			if required, questionCount := inputRequired(recorded.events[next:]); required != nil {
				r.mu.Lock()
				r.repeated[call.CallID] = next + questionCount
				r.mu.Unlock()
				return &content.Result{InputRequired: required}, nil
			}
			questions.ask(ctx, call, body)
		case event.ElicitationResolved:
			answeredByPerson := r.rec.inputs[body.InterruptID] != nil
			closedByEndOfRun := e.Seq >= r.rec.firstClosingEvent(len(r.rec.events)-1)
			withdraw := questions.withdraw[body.InterruptID]
			if withdraw != nil && !answeredByPerson && !closedByEndOfRun { // the server withdrew the question
				withdraw()
			}
		default:
			return r.rec.outcome(ctx, call, e)
		}
	}
	<-ctx.Done()
	return nil, newCallError(call, mcp.Cancelled, "The call was cancelled.")
}

// isApproval reports whether e asks for an approval or resolves one.
func isApproval(e event.Event) bool {
	switch e.Body.(type) {
	case event.ApprovalRequired, event.ApprovalResolved:
		return true
	}
	return false
}

// openQuestions has the questions that an MCP server asks while its call is in flight.
type openQuestions struct {
	goroutines sync.WaitGroup                // one goroutine per question
	withdraw   map[string]context.CancelFunc // by recorded question id
}

// ask asks a recorded question again, in a new goroutine. It ignores the answer, because the call's recorded outcome
// does not depend on it.
func (q *openQuestions) ask(ctx context.Context, call mcp.Call, recorded event.Elicitation) {
	ctx, q.withdraw[recorded.InterruptID] = context.WithCancel(ctx)
	q.goroutines.Go(func() {
		_, _ = call.Elicit(ctx, mcp.Elicitation{Mode: recorded.Mode, Message: recorded.Message, Schema: recorded.Schema, URL: recorded.URL})
	})
}

// close withdraws all questions and waits for their goroutines.
func (q *openQuestions) close() {
	for _, withdraw := range q.withdraw {
		withdraw()
	}
	q.goroutines.Wait()
}

// inputRequired returns the result of type input_required with which a server of MCP 2026-07-28 asks questions. It is
// made from the first n of the given events of a call. The client answers by sending the call again. inputRequired
// returns nil and 0 if the server asked the first question with a request of its own while the call was in flight.
func inputRequired(events []event.Event) (required *content.InputRequired, n int) {
	required = &content.InputRequired{Requests: make(map[string]content.InputRequest)}
	for _, e := range events {
		b, ok := e.Body.(event.Elicitation)
		if !ok || b.HeldOpen || b.ChildRunID != "" {
			break
		}
		params, _ := json.Marshal(elicitParams{b.Mode, b.Message, b.Schema, b.URL}) // cannot fail: events have valid JSON
		key := fmt.Sprintf("%03d", n)                                               // the agent asks in the order of the keys
		required.Requests[key] = content.InputRequest{Method: "elicitation/create", Params: params}
		n++
	}
	asked, err := mcp.Elicitations(required)
	isValid := err == nil && len(asked) > 0 && len(asked) == n
	if !isValid {
		return nil, 0
	}
	return required, n
}

// elicitParams has the parameters of elicitation/create (MCP).
type elicitParams struct {
	Mode            string          `json:"mode,omitempty"`
	Message         string          `json:"message"`
	RequestedSchema json.RawMessage `json:"requestedSchema,omitempty"`
	URL             string          `json:"url,omitempty"`
}

// Servers implements agent.Tools. It returns all servers that occur in the first run's document.
func (t *tools) Servers() []mcp.ServerStatus {
	names := slices.Clone(t.session.root.doc.Request.Servers)
	for _, d := range t.session.root.doc.Tools {
		names = append(names, d.Server)
	}
	names = append(names, t.Unavailable(true)...) // true: as at the end of the run
	slices.Sort(names)
	var out []mcp.ServerStatus
	for _, name := range slices.Compact(names) {
		if name != "" {
			out = append(out, mcp.ServerStatus{Name: name})
		}
	}
	return out
}

// Unavailable implements agent.Tools. If waited is true and the recorded run has a final answer, it returns the servers
// that were still unavailable then. Otherwise it returns those that were unavailable at the beginning.
func (t *tools) Unavailable(waited bool) []string {
	rec := t.session.root
	if end, ok := rec.terminalEvent().(event.FinalAnswer); ok && waited {
		return slices.Clone(end.Metadata.UnavailableServers)
	}
	start, _ := rec.events[0].Body.(event.Start)
	return slices.Clone(start.UnavailableServers)
}

// The other methods of agent.Tools need nothing from the recording. Instructions and prompts of servers are not
// available, because the recorded prompt and messages include them already.

func (t *tools) InstructionsFor(context.Context, auth.Identity, func(string) bool) []mcp.Instructions {
	return nil
}
func (t *tools) Prompts(context.Context, auth.Identity, string) (mcp.PromptList, error) {
	return mcp.PromptList{}, mcp.ErrBadPrompt
}
func (t *tools) Prompt(context.Context, auth.Identity, string, string, map[string]string) ([]mcp.PromptMessage, error) {
	return nil, mcp.ErrBadPrompt
}
func (t *tools) NameOf(_, name string) string                                 { return name }
func (t *tools) Repeatable(string) bool                                       { return true }
func (t *tools) Ready() bool                                                  { return true }
func (t *tools) RefreshFor(context.Context, auth.Identity, string) error      { return nil }
func (t *tools) AwaitSignIn(context.Context, mcp.Call, string) error          { return nil }
func (t *tools) Callback(context.Context, url.Values) ([]string, bool, error) { return nil, false, nil }
func (t *tools) SignOut(context.Context, auth.Identity, string) (bool, error) { return false, nil }
