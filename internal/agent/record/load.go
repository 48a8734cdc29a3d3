package record

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"answerd/internal/agent/prompt"
	"answerd/internal/event"
	"answerd/internal/export"
	"answerd/internal/mcp/catalog"
)

// ErrNotEnded means that a run has not ended, so its export would be incomplete.
var ErrNotEnded = errors.New("the run has not ended")

// maxLevels is how many levels of child runs an export contains. The agent allows fewer.
const maxLevels = 8

// Export returns the document of a run that has ended, including its child runs. If the log no longer has a part of it,
// that is not an error: the document's member Missing says so. The error is ErrNotEnded or an error of the log.
func (r *Recorder) Export(ctx context.Context, id string) (*export.Document, error) {
	return r.exportRun(ctx, id, 0)
}

// exportRun returns the document of the run with this id. level is 0 for the run that was asked for, 1 for its child
// runs, and so on. The errors are those of Export.
func (r *Recorder) exportRun(ctx context.Context, id string, level int) (*export.Document, error) {
	run, err := r.Log.Run(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("read a run: %w", err)
	}
	if !run.Last.Terminal() {
		return nil, ErrNotEnded
	}
	doc := &export.Document{Version: export.Version, Service: r.Service, Messages: []export.Message{}, Tools: []export.Tool{}}
	doc.Run = export.Run{
		ID:       run.ID,
		ThreadID: run.ThreadID,
		TraceID:  run.TraceID,
		ParentID: run.ParentID,
		Agent:    run.Agent,
		Subject:  run.Owner.Subject,
		Created:  run.Created.UnixMilli(),
		Status:   string(run.Status()),
	}
	events, err := event.ReadAll(ctx, r.Log, run.ID)
	if err != nil {
		return nil, fmt.Errorf("read the events of a run: %w", err)
	}
	for _, e := range events {
		doc.Events = append(doc.Events, e.AppendJSON(nil))
	}
	if err := r.addBeginning(ctx, doc, events, run.Created); err != nil {
		return nil, err
	}
	if err := r.addCalls(ctx, doc, events, level); err != nil {
		return nil, err
	}
	return doc, r.addInputs(ctx, doc)
}

// readResult decodes the JSON that the log stores for a run under name, into the pointer target. found is false if the
// log does not have it, or no longer.
func (r *Recorder) readResult(ctx context.Context, run, name string, target any) (found bool, _ error) {
	data, err := r.Log.Result(ctx, run, name)
	if errors.Is(err, event.ErrNotFound) || errors.Is(err, event.ErrGone) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, target)
	}
	if err != nil {
		return false, fmt.Errorf("read what is stored with a run: %w", err)
	}
	return true, nil
}

// readDefinition decodes the definition with this hash into the pointer target. found is false if the log does not have
// the definition, or if its bytes do not match the hash.
func (r *Recorder) readDefinition(ctx context.Context, hash string, target any) (found bool, _ error) {
	data, _, err := r.Log.Value(ctx, definitionKey(hash))
	if err != nil {
		return false, fmt.Errorf("read a definition: %w", err)
	}
	if len(data) == 0 || export.Digest(data) != hash {
		return false, nil
	}
	if err := json.Unmarshal(data, target); err != nil {
		return false, fmt.Errorf("decode a definition: %w", err)
	}
	return true, nil
}

// addBeginning adds to doc what the run began with: the request, the messages, the settings, the tools, the system
// prompt, and the requests to the model. It lists what the log no longer has in doc.Missing. The question, the model
// and the metadata come from the start event, because they are stored only there. events must not be empty. created is
// the time for which the system prompt is rendered.
func (r *Recorder) addBeginning(ctx context.Context, doc *export.Document, events []event.Event, created time.Time) error {
	begin, isStored, err := r.readBeginning(ctx, doc.Run.ID)
	if err != nil {
		return err
	}
	start, _ := events[0].Body.(event.Start)
	doc.Request = begin.Request // empty if it is not stored
	doc.Request.Question = start.Question
	doc.Request.Model = start.Model
	doc.Request.Metadata = start.Metadata
	if !isStored {
		doc.Missing = append(doc.Missing, "what the run began with")
		return nil
	}
	doc.History = begin.History
	doc.Messages = begin.Messages
	if begin.Messages == nil {
		doc.Messages = []export.Message{{Role: "user", Text: start.Question}}
	}
	hasSettings, err := r.addSettings(ctx, doc, begin.Context)
	if err != nil || !hasSettings {
		return err
	}
	if text, ok := renderPrompt(doc, created, begin.System); ok {
		doc.SystemPrompt = &export.Prompt{Text: text, SHA256: export.Digest([]byte(text))}
	} else {
		doc.Missing = append(doc.Missing, "the system prompt")
	}
	if !begin.Requests {
		return nil
	}
	return r.addRequests(ctx, doc, events)
}

// readBeginning reads a run's beginning, which is divided into several notes because the size of a note is limited.
// found is false if one of these notes is missing.
func (r *Recorder) readBeginning(ctx context.Context, run string) (begin beginning, found bool, _ error) {
	notes, err := r.Log.Notes(ctx, run)
	if err != nil {
		return begin, false, fmt.Errorf("read the notes of a run: %w", err)
	}
	var data []byte
	for _, n := range notes {
		if piece, ok := bytes.CutPrefix(n.Data, []byte(beginningPrefix)); ok {
			data = append(data, piece...)
		}
	}
	if json.Unmarshal(data, &begin) != nil { // the process died before it had stored all pieces, or any
		return beginning{}, false, nil
	}
	return begin, true, nil
}

// addSettings adds the agent's settings and the tools' definitions to doc. hash identifies the sharedContext that has
// both. found is false if the log no longer has the sharedContext. A tool without a stored definition is left out.
// doc.Missing says what the log no longer has.
func (r *Recorder) addSettings(ctx context.Context, doc *export.Document, hash string) (found bool, _ error) {
	var shared sharedContext
	found, err := r.readDefinition(ctx, hash, &shared)
	if err != nil {
		return false, err
	}
	if !found {
		doc.Missing = append(doc.Missing, "the settings of the agent, and the tools")
		return false, nil
	}
	doc.Settings = shared.Settings
	for _, toolHash := range shared.Tools {
		var tool export.Tool
		isKept, err := r.readDefinition(ctx, toolHash, &tool)
		if err != nil {
			return false, err
		}
		if !isKept {
			doc.Missing = append(doc.Missing, "the definition of a tool, "+toolHash)
			continue
		}
		tool.SHA256 = toolHash
		doc.Tools = append(doc.Tools, tool)
	}
	return true, nil
}

// renderPrompt renders a run's system prompt again, because the log stores only its checksum. ok is false if no
// rendering matches the checksum, for example because this version of answerd renders templates differently.
func renderPrompt(doc *export.Document, created time.Time, checksum string) (text string, ok bool) {
	var serverTools, builtinTools []catalog.Tool
	for _, recorded := range doc.Tools {
		tool := catalog.Tool{Name: recorded.Name, Server: recorded.Server, Description: recorded.Description}
		if tool.Server == "" {
			builtinTools = append(builtinTools, tool)
		} else {
			serverTools = append(serverTools, tool)
		}
	}
	// The prompt lists either the servers' tools or, if the model had to search for tools, only the search tool, which
	// is the last of answerd's own tools. The record does not say which, so try both.
	candidates := [][]catalog.Tool{serverTools}
	if len(builtinTools) > 0 {
		candidates = append(candidates, builtinTools[len(builtinTools)-1:])
	}
	for _, tools := range candidates {
		text, err := Render(doc.Settings.Prompt, doc.Request.Instructions, tools, created)
		if err == nil && export.Digest([]byte(text))[:checksumDigits] == checksum {
			return text, true
		}
	}
	return "", false
}

// Render renders a system prompt like the agent: the template t, then t.Instructions, then the request's instructions,
// which may be "". tools and created are the template's values. An error is about the time zone or the template.
func Render(t export.Template, instructions string, tools []catalog.Tool, created time.Time) (string, error) {
	zone, err := time.LoadLocation(cmp.Or(t.Timezone, "UTC"))
	if err != nil {
		return "", fmt.Errorf("render a system prompt: %w", err)
	}
	p, err := prompt.New(prompt.Options{Template: t.Template, Username: t.Username, Location: zone})
	if err != nil {
		return "", err
	}
	text, err := p.Render(tools, created)
	if err != nil {
		return "", err
	}
	text += t.Instructions
	if instructions != "" {
		text = strings.TrimSpace(text) + "\n\n" + instructions
	}
	return text, nil
}

// addRequests adds the requests to the model in all steps to doc.
func (r *Recorder) addRequests(ctx context.Context, doc *export.Document, events []event.Event) error {
	for _, e := range events {
		if started, ok := e.Body.(event.StepStart); ok {
			if err := r.addStepRequests(ctx, doc, started.Step); err != nil {
				return err
			}
		}
	}
	return nil
}

// addStepRequests adds one step's requests to the model to doc. A step has several requests if the endpoint refused the
// first ones as too long. If the step ran again after a takeover, the requests of the newest attempt have replaced
// earlier ones with the same number. But if an earlier attempt made more requests, the remaining ones are still stored;
// their attempt differs from the first request's, and they are left out.
func (r *Recorder) addStepRequests(ctx context.Context, doc *export.Document, step int) error {
	firstAttempt := 0 // the attempt of the step's first request
	for try := 1; ; try++ {
		var request storedRequest
		isStored, err := r.readResult(ctx, doc.Run.ID, requestKey(step, try), &request)
		if err != nil || !isStored {
			return err
		}
		if try == 1 {
			firstAttempt = request.Attempt
		}
		if request.Attempt != firstAttempt {
			return nil
		}
		doc.ModelRequests = append(doc.ModelRequests, request.ModelRequest)
	}
}

// addCalls adds to doc the full results of calls whose events have only a part, and the documents of child runs. level
// is the number of runs above doc's run. At maxLevels, child runs are left out.
func (r *Recorder) addCalls(ctx context.Context, doc *export.Document, events []event.Event, level int) error {
	for _, e := range events {
		if hasPartOfResult(e) {
			if err := r.addResult(ctx, doc, e.CallID()); err != nil {
				return err
			}
		}
		childID, _ := e.EndsCall()
		if childID == "" || level == maxLevels {
			continue
		}
		if err := r.addChild(ctx, doc, childID, level+1); err != nil {
			return err
		}
	}
	return nil
}

// hasPartOfResult reports whether e ended a call and has only a part of the call's result.
func hasPartOfResult(e event.Event) bool {
	switch body := e.Body.(type) {
	case event.ToolResult:
		return body.Truncated != nil
	case event.ToolError:
		return body.Truncated != nil
	}
	return false
}

// addChild adds a child run's document to doc.Children. If the child run was deleted or has not ended, it is listed in
// doc.Missing instead.
func (r *Recorder) addChild(ctx context.Context, doc *export.Document, childID string, level int) error {
	child, err := r.exportRun(ctx, childID, level)
	switch {
	case errors.Is(err, event.ErrNotFound), errors.Is(err, event.ErrGone), errors.Is(err, event.ErrLost),
		errors.Is(err, ErrNotEnded):
		doc.Missing = append(doc.Missing, "the child run "+childID)
	case err != nil:
		return err
	default:
		doc.Children = append(doc.Children, *child)
	}
	return nil
}

// addResult adds a call's full result to doc.Results or, if the log no longer has it, lists it in doc.Missing.
func (r *Recorder) addResult(ctx context.Context, doc *export.Document, callID string) error {
	var result json.RawMessage
	isStored, err := r.readResult(ctx, doc.Run.ID, callID, &result)
	if err != nil {
		return err
	}
	if !isStored {
		doc.Missing = append(doc.Missing, "the whole result of the call "+callID)
		return nil
	}
	if doc.Results == nil {
		doc.Results = make(map[string]json.RawMessage)
	}
	doc.Results[callID] = result
	return nil
}

// addInputs adds people's answers to doc. It leaves out inputs with which the run closed an unanswered question itself,
// because the run's events show that.
func (r *Recorder) addInputs(ctx context.Context, doc *export.Document) error {
	position := int64(0) // of the last input that was read; 0 before the first one
	for {
		page, err := r.Log.Inputs(ctx, doc.Run.ID, position)
		if err != nil {
			return fmt.Errorf("read the inputs of a run: %w", err)
		}
		if len(page.Inputs) == 0 {
			return nil
		}
		for _, in := range page.Inputs {
			position = in.Pos
			var byRun struct{ Closed bool } // set in an input of the run itself
			if json.Unmarshal(in.Data, &byRun) == nil && byRun.Closed {
				continue
			}
			doc.Inputs = append(doc.Inputs, export.Input{ID: in.ID, Data: in.Data})
		}
	}
}
