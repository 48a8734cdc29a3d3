package agent

import (
	"context"
	"errors"
	"fmt"

	"answerd/internal/agent/budget"
	"answerd/internal/agent/output"
	"answerd/internal/agent/replay"
	"answerd/internal/agent/toolsearch"
	"answerd/internal/agent/window"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp/catalog"
)

// runTurns runs the turns of a run and returns its terminal event. In each turn the model answers and may ask for
// tools, whose results go back to the model. The run ends when the model answers without a call, when it calls a tool
// of the caller, or one turn after a limit is reached. Turns that are already in the log are replayed.
//
// Limits are checked before the calls, which would all be refused if the model's output has used up a limit, and after
// them, to decide whether the next turn is the last one, which has no tools.
func (l *loop) runTurns(ctx context.Context) (end event.Body, err error) {
	defer recoverTo(&err)
	if err := l.prepareRun(ctx); err != nil {
		return nil, err
	}
	for turn := 1; ; turn++ {
		// After a limit there is one more turn, without tools, in which the model summarizes, and
		// after an answer that violates its schema one more in which the model repairs it.
		final := l.stopReason != "" || l.repairing
		if final && !l.repairing {
			l.messages = append(l.messages, llm.Message{Role: llm.User, Text: summaryPrompt})
		}
		reply, err := l.modelTurn(ctx, turn, final)
		if err != nil {
			return nil, err
		}
		if err := l.spendTokens(ctx, reply); err != nil {
			return nil, err
		}
		if len(reply.calls) == 0 {
			if end := l.endOrRepair(reply); end != nil {
				return end, nil
			}
			continue
		}
		if err := l.checkBudgetBeforeCalls(ctx, turn, reply, final); err != nil {
			return nil, err
		}
		if err := l.toolTurn(ctx, reply, final); err != nil {
			return nil, err
		}
		switch {
		case final:
			if end := l.endOrRepair(reply); end != nil {
				return end, nil
			}
			continue
		case reply.hasClientCalls():
			// The caller executes its own tools and sends their results with its next request. The finish reason
			// tells it to do so, whatever the endpoint has reported.
			reply.finish = "tool_calls"
			return l.finalAnswer(reply), nil
		}
		if err := l.checkLimits(ctx, turn); err != nil {
			return nil, err
		}
	}
}

// summaryPrompt starts the last turn of a run that a limit stopped.
const summaryPrompt = "You have reached the limit of this run and cannot call any more tools. " +
	"Answer the question now with what you have, and say what is missing."

// prepareRun sets the tools, the conversation, the budget and the metadata of the run. After a takeover, it uses the
// tools and servers of this process, which may differ from those of the process before; what the model has answered
// since comes from the replayed steps. Only the process that began the run stores what the export needs
// (recordBeginning).
func (l *loop) prepareRun(ctx context.Context) (err error) {
	req := l.run.req
	profile := l.agent.profileOf(req.Model)
	l.profile = profile
	l.catalog = req.namedAgent.catalogs.catalogFor(l.agent.ToolsFor(ctx, l.run.caller), req)
	l.tools = l.catalog.ByName
	// These are set before the first error, because logEnd and recordRunEnd read them.
	l.budget = budget.New(req.Budget, req.MaxTurns, profile.Price, &l.run.clock, l.run.suspension.releaseTurn)
	l.media = mediaBudget{profile: profile, budget: l.budget}
	l.metadata = event.Metadata{
		ToolNames:          []string{},
		ToolParams:         []jsonText{},
		ToolResults:        []jsonText{},
		Model:              req.Model,
		UnavailableServers: l.agent.unavailableServers(l.run.caller, req, true),
	}
	if len(req.OutputSchema) > 0 {
		if l.output, err = output.Compile(req.OutputSchema); err != nil {
			return fmt.Errorf("the schema of the answer cannot be used: %w", err)
		}
	}

	l.window = window.New(profile)
	if req.MaxTokens > 0 {
		l.window.LimitReserve(req.MaxTokens)
	}
	l.window.LearnSize(l.agent.windowSizes.Size(req.Model))
	l.offerTools()
	l.callIDs = make(map[string]bool)
	l.requestCallIDs = make(map[string]bool)
	promptTools := l.catalog.Tools
	if l.search != nil {
		promptTools = []catalog.Tool{l.search.Tool}
	}
	err = l.openConversation(ctx, promptTools, profile)
	if err == nil && req.Prompt != nil {
		l.messages, err = l.insertServerPrompt(ctx, l.messages, *req.Prompt)
	}
	l.restoreLoop() // also after an error: the end of the run has what the process before this one has used
	if err == nil && l.replayed == nil {
		l.recordBeginning(ctx)
	}
	return err
}

// offerTools decides which tools the model is offered: the tools of the catalog or a search among them, the tools that
// ask other agents, and those of the caller. Later changes to the servers' tools do not affect the run.
func (l *loop) offerTools() {
	l.search = l.newToolSearch()
	if l.search == nil && l.replayed.HasCallOf(l.catalog.SearchToolName()) {
		// The model has called the search tool, so the process before this one had started a tool search: the endpoint
		// had named a small window (fitTools), whose size this process does not know.
		l.search = toolsearch.NewSearch(l.catalog.Catalog, 0)
	}
	l.askTools = l.agent.askTools(l.run.caller, l.run.req)
	l.clientTools = l.run.req.clientTools(l.catalog, l.search, l.askTools)
	l.updateOffered()
}

// spendTokens charges the tokens that a turn used, as the provider counted them, to the run's budget, and corrects the
// window's estimates with them. It appends budget events where they are due, once also for a budget of the caller
// that is used up.
func (l *loop) spendTokens(ctx context.Context, reply modelReply) error {
	l.window.Observe(reply.usage)
	l.lastPromptTokens = reply.usage.InputTokens
	if err := l.budget.SpendTokens(ctx, l.run.out, reply.usage); err != nil {
		return err
	}
	if spent := l.callerSpent.Load(); spent != nil && !l.callerSpentReported {
		l.callerSpentReported = true
		return l.run.out.Append(ctx, event.Budget{Limit: callerLimitPrefix + spent.Limit.Name, Used: spent.Used, Max: spent.Limit.Max})
	}
	return nil
}

// checkLimits decides after the calls of a turn whether the next turn is the final one. It then sets stopReason and
// stores it in a note. Before that, it may ask the owner of the run to raise a limit (checkBudget). For a replayed
// step, it repeats the decision in the log: a new decision could differ, for example because more time has passed.
func (l *loop) checkLimits(ctx context.Context, turn int) error {
	if recorded := l.replayed.Step(l.step); recorded != nil {
		l.applyRaised(recorded.RaisedAfter)
		// The process before may have died between the end of the last step and its decision.
		isDecided := recorded.StopReason != "" || l.step < len(l.replayed.Steps)
		if isDecided {
			l.stopReason = recorded.StopReason
			return nil
		}
	}
	// The people who answer the run's interrupts cannot raise the budget of the caller, so they are not asked.
	callerSpent := l.callerSpent.Load() != nil
	if !l.budgetSpent && !callerSpent {
		if err := l.checkBudget(ctx, turn); err != nil {
			return err
		}
	}
	switch {
	case l.budgetSpent, callerSpent:
		l.stopReason = "budget_exceeded"
	case turn == l.run.req.MaxTurns:
		l.stopReason = "max_turns"
	default:
		return nil
	}
	return l.run.writeNote(ctx, replay.NoteStopReason, l.stopReason)
}

// finalAnswer returns the terminal event of a run that ends with reply, and completes l.metadata for it. Its finish
// reason is stopReason if a limit ended the run, and otherwise the model's own.
func (l *loop) finalAnswer(reply modelReply) event.FinalAnswer {
	l.metadata.Steps = l.step
	l.metadata.FinishReason = reply.finish
	if l.stopReason != "" {
		l.metadata.FinishReason = l.stopReason
	}
	l.metadata.Cost = l.cost()
	return event.FinalAnswer{Answer: reply.text, Metadata: l.metadata, FinishReason: l.metadata.FinishReason}
}

// endOrRepair returns the terminal event of a run whose model has answered with reply. If the answer violates its
// schema for the first time, it returns nil: it sets repairing and adds a message with the violations, so that the
// next turn corrects the answer. After the second violation it returns a RunError. No note is needed for a
// takeover, since the next process comes to the same decision from the step's text.
func (l *loop) endOrRepair(reply modelReply) event.Body {
	if l.output == nil {
		return l.finalAnswer(reply)
	}
	value, problems := l.output.Check(reply.text)
	switch {
	case problems == nil:
		end := l.finalAnswer(reply)
		end.Output = value
		return end
	case l.repairing:
		end := event.RunError{Code: "invalid_output", PartialAnswer: reply.text,
			Message: "The model's answer does not conform to the schema of the answer, and neither did the one before, which it was asked to correct."}
		for _, p := range problems {
			end.Errors = append(end.Errors, event.FieldError(p))
		}
		return end
	}
	l.repairing = true
	if len(reply.calls) == 0 { // toolTurn adds the answer of a turn with calls
		l.messages = append(l.messages, llm.Message{Role: llm.Assistant, Text: reply.text, Extensions: reply.extensions})
	}
	l.messages = append(l.messages, llm.Message{Role: llm.User, Text: output.RepairPrompt(problems)})
	return nil
}

// checkBudgetBeforeCalls asks for a higher budget if the model's output has already used it up, since all calls of the
// turn would be refused. It does not ask in the final turn, or if the agent executes none of the calls.
func (l *loop) checkBudgetBeforeCalls(ctx context.Context, turn int, reply modelReply, final bool) error {
	if s := l.replayed.Step(l.step); s != nil {
		l.applyRaised(s.RaisedBefore)
		if s.HasEndedCall() {
			return nil // the process before has made this check already
		}
	}
	if final || len(reply.ownCalls()) == 0 {
		return nil
	}
	return l.checkBudget(ctx, turn)
}

// checkBudget sets budgetSpent if a limit is reached and is not raised. If the request allows it, the turn is not the
// last one, and the operator's limit is higher, checkBudget asks the owner of the run to raise the limit, and blocks
// until the question is resolved. After an increase it checks again, because another limit may be reached too.
func (l *loop) checkBudget(ctx context.Context, turn int) error {
	mayAsk := turn != l.run.req.MaxTurns && l.run.req.canAnswer(event.KindBudget)
	for {
		limit := l.budget.Spent()
		switch {
		case l.replayed != nil && l.replayed.BudgetQuestion != nil:
			limit = l.replayed.BudgetQuestion.Limit // another process has asked this question, and it is still open
		case limit == "":
			return nil
		case !mayAsk || !l.canIncrease(limit):
			l.budgetSpent = true
			return nil
		}
		raised, err := l.askForIncrease(ctx, l.budget.Status(limit))
		l.budgetSpent = !raised
		if err != nil || l.budgetSpent {
			return err
		}
	}
}

// canIncrease reports whether the run's limit with that name is below the operator's, so that it may be raised.
func (l *loop) canIncrease(name string) bool {
	operatorLimit := l.operatorLimit(name)
	return operatorLimit <= 0 || l.budget.Status(name).Max < operatorLimit
}

// operatorLimit returns the highest value that the limit with that name can have in this run: the lower of the
// service's and that of the agent's definition at the start of the run. 0 means no limit.
func (l *loop) operatorLimit(name string) float64 {
	return l.agent.budgetLimits(l.run.req.namedAgent).ByName()[name]
}

// askForIncrease asks the owner of the run to raise a limit, blocks until the question is resolved, and raises the
// limit if they agree. raised is false if they refuse or do not answer. No call may be in flight.
func (l *loop) askForIncrease(ctx context.Context, reached budget.Status) (raised bool, _ error) {
	s := &l.run.suspension
	s.beginTurn(ctx, []*call{{}}) // a call without an id stands for the run, so that the question can suspend it
	res, err := l.askOwner(ctx, event.Interrupt{
		Kind: event.KindBudget, Limit: reached.Name, Used: reached.Used, Max: reached.Max,
		Message: fmt.Sprintf("The run has used %s of its %s %s. Allow it more?", formatNumber(reached.Used), formatNumber(reached.Max), reached.Name),
	})
	err = errors.Join(err, s.endCall(""))
	if cause := context.Cause(ctx); cause != nil {
		return false, cause
	}
	if err != nil || !res.isApproved() {
		return false, err
	}
	limit := res.raisedLimit(reached.Max, l.operatorLimit(reached.Name))
	l.budget.Raise(reached.Name, limit)
	if reached.Name == "seconds" {
		l.run.clock.Raise(limit, l.run.out)
	}
	return true, nil
}

// applyRaised applies the increases that the log records for a replayed step.
func (l *loop) applyRaised(raised []event.BudgetResolved) {
	for _, r := range raised {
		l.budget.Raise(r.Limit, r.Max)
	}
}

// reserveConversation sets the memory that is counted for the run to what the run holds between two turns: its
// request, and the messages that follow the question. It corrects what was counted during the turn.
func (l *loop) reserveConversation() {
	n := l.run.req.size()
	ownMessages := min(l.historyLen+2, len(l.messages)) // after the system prompt, the history and the question
	for _, m := range l.messages[ownMessages:] {
		n += len(m.Text) + mediaSize(m.Media)
	}
	l.run.reserveMemory(n - int(l.run.textBytes.Load()))
}
