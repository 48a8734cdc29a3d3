// Package rerun executes an exported run again with the run loop of package agent. It uses the recorded answers of the
// model and the recorded results of the tools, and opens no connection.
//
//	result, err := rerun.Run(ctx, doc, rerun.Options{})
//	for _, d := range result.Differences {
//		fmt.Println(d)
//	}
//
// The passing of time and the order of concurrent calls are taken from the recording. So are people's answers,
// cancellations and takeovers by other processes. Events are compared without ids and times. With Options.Model,
// another model is asked instead, and calls that match recorded ones get the recorded results. Calls of Run are
// independent of each other and may be concurrent.
//
// A document becomes a recording, which has its events sorted by who caused them: the model, the tools, people and
// other processes. A session has one recording, a log in memory and an agent, whose model and tools return the recorded
// answers and results. Each run of the session, including each child run, has a runState. The agent asks it for
// everything that it cannot know (recorded.Inputs, see order.go and decision.go). Its method driveRun reads the new
// events, compares them with the recorded ones (compare.go), and repeats what came from outside at the recorded
// positions.
//
// A new run that differs from the recorded one may never reach a position for which something waits. Therefore all
// waits end when watch notices that no run appends events any more. The run then continues without the recorded order,
// and its differences show where it left the recording. No wait needs a timeout of its own.
package rerun

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
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

// Options configures Run. With the zero value, Run uses the recorded answers.
type Options struct {
	// Model, unless nil, is asked as ModelID instead of using the recorded answers. A call then gets a recorded result
	// if its tool and arguments match a recorded call, and events are not compared.
	Model   llm.Model
	ModelID string
	// Stall is how long the runs may append no event before the recorded order is given up. 0 means 2 s. After twice
	// that time, the run is cancelled, and after three times, Run returns ErrStalled. With Model, runs are not watched.
	Stall time.Duration
}

// Result is the outcome of Run.
type Result struct {
	Differences []Difference
	// Events has the run's events, without those of its child runs.
	Events []event.Event
}

// Run executes the run in a document again, and returns when the new run and its child runs have ended. Differences
// from the recording are part of the result and not an error. The error wraps ErrUnusable if the document cannot be
// executed, and ErrStalled if the run makes no progress (Options.Stall), or it is the cause of the end of ctx.
func Run(ctx context.Context, doc *export.Document, opts Options) (*Result, error) {
	rec, err := newRecording(doc)
	if err != nil {
		return nil, err
	}
	if opts.Stall <= 0 {
		opts.Stall = 2 * time.Second
	}
	s := newSession(ctx, rec, opts)
	defer s.cancel(nil)
	firstAgent, err := s.newAgent()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	s.agents = []*agent.Agent{firstAgent}
	defer s.close()
	request := newRequest(doc)
	if opts.Model != nil {
		request.Model = opts.ModelID
		request.ApprovalsDeclined = true
		request.AskAtLimit = false
		request.Budget.Cost = 0 // the price of the other model is not known
	}

	run, err := firstAgent.Start(ctx, auth.Identity{Subject: doc.Run.Subject}, request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	root := s.attach(record.Executing{Run: run.ID})
	watchCtx, stopWatch := context.WithCancel(s.ctx)
	defer stopWatch()
	if opts.Model == nil {
		s.drivers.Go(func() { s.watch.run(watchCtx, opts.Stall, s.cancel) })
	}
	events, err := root.driveRun(s.ctx)
	stopWatch()
	if err != nil {
		return nil, err
	}
	s.drivers.Wait()
	return &Result{Differences: s.differences(), Events: events}, nil
}

// newSession returns the session for a recording, without agents and runs. Callers must call s.cancel.
func newSession(ctx context.Context, rec *recording, opts Options) *session {
	s := &session{
		otherModel: opts.Model != nil,
		root:       rec,
		log:        memory.New(memory.Options{Retention: 24 * time.Hour}),
		runs:       make(map[string]*runState),
		attached:   make(chan struct{}),
		watch:      newWatch(),
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.newAgent = func() (*agent.Agent, error) { return newAgent(s, opts) }
	return s
}

// newAgent returns an agent that executes the session's runs with the recording's settings. The limits for history,
// turns and the time for input are too high to be reached: what the limits of the recorded run did is in the recording.
func newAgent(s *session, opts Options) (*agent.Agent, error) {
	const unreachable = 1 << 30
	doc := s.root.doc
	settings := agent.Options{
		Model:           modelFunc(s.recordedAnswer),
		Tools:           &tools{s},
		Log:             s.log,
		DefaultModel:    doc.Request.Model,
		Profiles:        recordedProfiles(doc),
		ToolSearch:      agent.ToolSearch(doc.Settings.Search),
		MaxHistory:      unreachable,
		MaxTurns:        unreachable,
		MaxOutputTokens: doc.Settings.Output,
		InputTimeout:    24 * time.Hour,
		Durable:         s.root.isTakenOver(),
	}
	if opts.Model != nil {
		settings.Model = askAs(opts.ModelID, opts.Model)
		settings.Profiles[opts.ModelID] = llm.Profile{ID: opts.ModelID, Images: llm.AcceptsImages(opts.ModelID)}
	} else {
		settings.Repeat = s.recordedInputs()
	}

	zone, err := time.LoadLocation(doc.Settings.Prompt.Timezone)
	if err != nil {
		return nil, fmt.Errorf("the time zone of the recording: %w", err)
	}
	promptOptions := prompt.Options{Username: doc.Settings.Prompt.Username, Location: zone}
	if doc.Run.Agent == "" {
		promptOptions.Template = doc.Settings.Prompt.Template
		settings.Budget = agent.Budget(doc.Settings.Budget)
	} else { // each named agent has a prompt and a budget of its own
		settings.Agents, err = definitions(doc)
		if err != nil {
			return nil, err
		}
	}
	settings.Prompt, err = prompt.New(promptOptions)
	if err != nil {
		return nil, err
	}
	return agent.New(settings)
}

// withChildren returns doc followed by the documents of all its descendants.
func withChildren(doc *export.Document) []*export.Document {
	out := []*export.Document{doc}
	for i := range doc.Children {
		out = append(out, withChildren(&doc.Children[i])...)
	}
	return out
}

// recordedProfiles returns the profiles of the models that the run and its descendants asked, by model id.
func recordedProfiles(root *export.Document) map[string]llm.Profile {
	profiles := make(map[string]llm.Profile)
	for _, doc := range withChildren(root) {
		id, profile := doc.Request.Model, doc.Settings.Model
		profiles[id] = llm.Profile{
			ID:              id,
			ContextTokens:   profile.ContextTokens,
			MaxOutputTokens: profile.MaxOutputTokens,
			Images:          profile.Images,
			Audio:           profile.Audio,
			PDF:             profile.PDF,
			Price:           profile.Price,
		}
	}
	return profiles
}

// definitions returns the definitions of the agents that executed the run and its descendants, the run's own first. The
// document does not have an agent that could have been asked but was not. Such an agent gets a definition with its id
// and description, so that the tool for asking it exists and is as long as the recorded one.
func definitions(root *export.Document) ([]definition.Agent, error) {
	var out []definition.Agent
	known := make(map[string]bool)          // by the id of the agent
	descriptions := make(map[string]string) // of the tools, by name
	for _, doc := range withChildren(root) {
		for _, t := range doc.Tools {
			descriptions[t.Name] = t.Description
		}
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

	for _, recorded := range out {
		for _, id := range recorded.Agents {
			if !known[id] {
				known[id] = true
				description, _ := strings.CutPrefix(descriptions[definition.AskPrefix+id], definition.AskSentence(id))
				out = append(out, definition.Agent{ID: id, Description: strings.TrimPrefix(description, " ")})
			}
		}
	}
	return out, nil
}

// newRequest returns the request that starts the run again. The messages that the run began with become the history,
// except the last one if it is the question: its text is in doc.Request, so only its files are used.
func newRequest(doc *export.Document) agent.Request {
	r := &doc.Request
	out := agent.Request{
		Question:          r.Question,
		Agent:             doc.Run.Agent,
		Model:             r.Model,
		Instructions:      r.Instructions,
		OutputSchema:      r.OutputSchema,
		Sampling:          r.Sampling,
		MaxTokens:         r.MaxTokens,
		ToolChoice:        r.ToolChoice,
		ForcedTool:        r.ForcedTool,
		Servers:           r.Servers,
		Tools:             r.Tools,
		MaxTurns:          r.MaxTurns,
		Budget:            agent.Budget(r.Budget),
		AskAtLimit:        r.AskAtLimit,
		Context:           r.Context,
		Metadata:          r.Metadata,
		Background:        true,
		Interactive:       r.Interactive,
		FormsDeclined:     r.FormsDeclined,
		ApprovalsDeclined: r.ApprovalsDeclined,
		Hops:              r.Hops,
	}
	for _, t := range r.ClientTools {
		out.ClientTools = append(out.ClientTools, llm.Tool(t))
	}
	history := doc.Messages
	if n := len(history); n > 0 {
		if last := history[n-1]; last.Role == string(llm.User) {
			out.Media = media(last.Media)
			history = history[:n-1]
		} else { // the run began with results of the client's own tools, and without a question
			out.Question = ""
		}
	}
	for _, m := range history {
		message := agent.Message{Role: m.Role, Content: m.Text, CallID: m.CallID, Media: media(m.Media)}
		for i, c := range m.Calls {
			message.Calls = append(message.Calls, llm.ToolCall{Index: i, ID: c.ID, Name: c.Name, Arguments: c.Arguments})
		}
		out.History = append(out.History, message)
	}
	return out
}

// media converts a document's files to the type in package llm.
func media(all []export.Media) (out []llm.Media) {
	for _, m := range all {
		out = append(out, llm.Media(m))
	}
	return out
}
