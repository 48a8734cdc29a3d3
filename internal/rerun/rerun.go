// Package rerun runs an exported run again, through the run loop of package agent: with the recorded
// answers of the model and the recorded results of the tools, and without a connection.
//
//	result, err := rerun.Run(ctx, doc, rerun.Options{})
//	for _, d := range result.Differences {
//		fmt.Println(d)
//	}
//
// Time, ids and the order of calls that are made at the same time are inputs, taken from the recording. So
// are the answers of people, cancellations and takeovers by other processes. Events are compared without
// ids and times. With Options.Model another model is asked, and the calls that match get the recorded
// results. Runs are independent of each other, and any number may be run at the same time.
//
// A document becomes a recording: its events, sorted into what the model, the tools, people and other processes
// did. A session has one recording, a log in memory and an agent, whose model and tools give the recorded
// answers and results. Each run of the session, also each child, has a runState. The agent asks it for what it
// cannot know (recorded.Inputs, see order.go and decision.go), and its driveRun reads the new events, compares them
// (compare.go), and does what came from outside at the recorded place.
//
// A new run that has taken another way may never reach the place for which something waits. So all waits end
// when watch sees that no run appends events any more: the run then continues without the recorded order, and
// its differences say where it left the recording. No wait needs a time of its own.
package rerun

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"answerd/internal/agent"
	"answerd/internal/agent/definition"
	"answerd/internal/agent/prompt"
	"answerd/internal/agent/record"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/export"
	"answerd/internal/llm"
)

// Options configure Run. The zero value replays the recorded answers.
type Options struct {
	// Model is asked in place of the recorded answers, as ModelID. Calls get recorded results then, if tool
	// and arguments match, and nothing is compared.
	Model   llm.Model
	ModelID string
	// Stall is how long the runs may do nothing before the recorded order is given up; 0 means 2 s. After as long
	// again the run is cancelled, and after as long again Run returns ErrStalled. Only recorded answers are watched.
	Stall time.Duration
}

// Result is what came of a run.
type Result struct {
	Differences []Difference
	// Events are those of the run, without those of its children.
	Events []event.Event
}

// Run runs a document again, until the new run and its children have ended. Differences are part of the result, not an
// error. The error wraps ErrUnusable or ErrStalled, or is the cause with which ctx ended.
func Run(ctx context.Context, doc *export.Document, opts Options) (*Result, error) {
	rec, err := newRecording(doc)
	if err != nil {
		return nil, err
	}
	if opts.Stall <= 0 {
		opts.Stall = 2 * time.Second
	}
	s := newSession(ctx, rec, opts)
	defer s.end(nil)
	first, err := s.newAgent()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	s.agents = []*agent.Agent{first}
	defer s.close()
	request := newRequest(doc)
	if opts.Model != nil {
		request.Model = opts.ModelID
		request.ApprovalsDeclined = true
		request.AskAtLimit = false
		request.Budget.Cost = 0 // the price of the other model is not known
	}

	run, err := first.Start(ctx, auth.Identity{Subject: doc.Run.Subject}, request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	root := s.attach(record.Executing{Run: run.ID})
	watchCtx, stopWatch := context.WithCancel(s.ctx)
	defer stopWatch()
	if opts.Model == nil {
		s.drivers.Go(func() { s.watch.run(watchCtx, opts.Stall, s.end) })
	}
	events, err := root.driveRun(s.ctx)
	stopWatch()
	if err != nil {
		return nil, err
	}
	s.drivers.Wait()
	return &Result{Differences: s.differences(), Events: events}, nil
}

// newSession returns the session of a recording, without agents and runs. The caller must call s.end.
func newSession(ctx context.Context, rec *recording, opts Options) *session {
	s := &session{
		otherModel: opts.Model != nil,
		root:       rec,
		log:        memory.New(memory.Options{Retention: 24 * time.Hour}),
		runs:       make(map[string]*runState),
		attached:   make(chan struct{}),
		watch:      newWatch(),
	}
	s.ctx, s.end = context.WithCancelCause(ctx)
	s.newAgent = func() (*agent.Agent, error) { return newAgent(s, opts) }
	return s
}

// newAgent returns an agent that executes the runs of a session with the settings of the recording. History, turns
// and the time for input have no limit of their own: what the recorded run met is in the recording.
func newAgent(s *session, options Options) (*agent.Agent, error) {
	doc := s.root.doc
	opts := agent.Options{
		Model: modelFunc(s.recordedAnswer), Tools: &tools{s}, Log: s.log, DefaultModel: doc.Request.Model, Profiles: recordedProfiles(doc),
		ToolSearch: agent.ToolSearch(doc.Settings.Search), MaxHistory: 1 << 30, MaxTurns: 1 << 30, MaxOutputTokens: doc.Settings.Output,
		InputTimeout: 24 * time.Hour, Durable: s.root.isTakenOver(),
	}
	if options.Model != nil {
		opts.Model = askAs(options.ModelID, options.Model)
		opts.Profiles[options.ModelID] = llm.Profile{ID: options.ModelID, Images: llm.AcceptsImages(options.ModelID)}
	} else {
		opts.Repeat = s.repetition()
	}

	zone, err := time.LoadLocation(doc.Settings.Prompt.Timezone)
	if err != nil {
		return nil, fmt.Errorf("its time zone: %w", err)
	}
	promptOptions := prompt.Options{Username: doc.Settings.Prompt.Username, Location: zone}
	if doc.Run.Agent == "" { // otherwise a named agent has a prompt and a budget of its own
		promptOptions.Template = doc.Settings.Prompt.Template
		opts.Budget = agent.Budget(doc.Settings.Budget)
	} else if opts.Agents, err = definitions(doc); err != nil {
		return nil, err
	}
	if opts.Prompt, err = prompt.New(promptOptions); err != nil {
		return nil, err
	}
	return agent.New(opts)
}

// withChildren returns the document of a run, followed by those of its children and of their children.
func withChildren(doc *export.Document) []*export.Document {
	out := []*export.Document{doc}
	for i := range doc.Children {
		out = append(out, withChildren(&doc.Children[i])...)
	}
	return out
}

// recordedProfiles returns the profiles of the models that a run and its children asked, by the id of the model.
func recordedProfiles(root *export.Document) map[string]llm.Profile {
	profiles := make(map[string]llm.Profile)
	for _, doc := range withChildren(root) {
		m := doc.Settings.Model
		profiles[doc.Request.Model] = llm.Profile{
			ID:              doc.Request.Model,
			ContextTokens:   m.ContextTokens,
			MaxOutputTokens: m.MaxOutputTokens,
			Images:          m.Images,
			Audio:           m.Audio,
			PDF:             m.PDF,
			Price:           m.Price,
		}
	}
	return profiles
}

// definitions returns the definitions of the agents that executed a run and its children, the run's own first. An
// agent that could have been asked, but was not, is not in the document: it gets a definition with its id alone, so
// that the tool for asking it exists.
func definitions(root *export.Document) ([]definition.Agent, error) {
	var out []definition.Agent
	known := make(map[string]bool) // by the id of the agent
	for _, doc := range withChildren(root) {
		var d definition.Agent
		if err := json.Unmarshal(doc.Settings.Agent, &d); err != nil {
			return nil, fmt.Errorf("the definition of its agent: %w", err)
		}
		if known[d.ID] {
			continue
		}
		known[d.ID] = true
		d.Prompt = doc.Settings.Prompt.Template
		d.Budget = agent.Budget(doc.Settings.Budget)
		d.Model = doc.Request.Model
		d.MaxTurns = doc.Request.MaxTurns
		out = append(out, d)
	}

	for i := 0; i < len(out); i++ { // out grows in this loop
		for _, id := range out[i].Agents {
			if !known[id] {
				known[id] = true
				out = append(out, definition.Agent{ID: id})
			}
		}
	}
	return out, nil
}

// newRequest returns the request that starts a run again. The messages that the run began with are its history,
// except the question: doc.Request has its text, so only the files are taken from its message.
func newRequest(doc *export.Document) agent.Request {
	r := &doc.Request
	out := agent.Request{
		Question: r.Question, Agent: doc.Run.Agent, Model: r.Model, Instructions: r.Instructions, OutputSchema: r.OutputSchema, Sampling: r.Sampling,
		MaxTokens: r.MaxTokens, ToolChoice: r.ToolChoice, ForcedTool: r.ForcedTool, Servers: r.Servers, Tools: r.Tools, MaxTurns: r.MaxTurns,
		Budget: agent.Budget(r.Budget), AskAtLimit: r.AskAtLimit, Context: r.Context, Metadata: r.Metadata, Background: true,
		Interactive: r.Interactive, FormsDeclined: r.FormsDeclined, ApprovalsDeclined: r.ApprovalsDeclined, Hops: r.Hops,
	}
	for _, t := range r.ClientTools {
		out.ClientTools = append(out.ClientTools, llm.Tool(t))
	}
	history := doc.Messages
	if n := len(history); n > 0 && history[n-1].Role == string(llm.User) {
		out.Media, history = media(history[n-1].Media), history[:n-1]
	} else if n > 0 { // The run began with the results of the caller's own tools, and no question.
		out.Question = ""
	}
	for _, m := range history {
		h := agent.Message{Role: m.Role, Content: m.Text, CallID: m.CallID, Media: media(m.Media)}
		for n, c := range m.Calls {
			h.Calls = append(h.Calls, llm.ToolCall{Index: n, ID: c.ID, Name: c.Name, Arguments: c.Arguments})
		}
		out.History = append(out.History, h)
	}
	return out
}

// media converts the files of a document to those of package llm.
func media(all []export.Media) (out []llm.Media) {
	for _, m := range all {
		out = append(out, llm.Media(m))
	}
	return out
}
