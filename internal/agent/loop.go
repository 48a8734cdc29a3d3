package agent

import (
	"cmp"
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
)

// runTurns runs a run's turns and returns its terminal event. In each turn the model answers and may call tools, whose
// results go back to the model. The run ends when the model answers without a call, when it calls a tool that the API
// client executes, or one turn after a limit was reached. Turns that are already in the log are replayed. If an earlier
// process has stored the run's end, runTurns only returns that.
//
// Limits are checked twice per turn. The check before the calls may ask for a higher budget: if the model's output has
// used up the budget, all calls would be refused. The check after the calls decides whether the next turn is the last.
// The last turn has no tools.
func (l *loop) runTurns(ctx context.Context) (end event.Body, err error) {
	defer recoverTo(&err)
	if end, err := l.restoredEnd(); end != nil || err != nil {
		return end, err
	}
	if err := l.prepareRun(ctx); err != nil {
		return nil, err
	}
	for turn := 1; ; turn++ {
		// After a limit, one more turn without tools lets the model summarize. After an answer that violates its
		// schema, one more turn lets the model correct it.
		final := l.stopReason != "" || l.repairing
		if final && !l.repairing {
			l.messages = append(l.messages, llm.Message{Role: llm.User, Text: summaryPrompt})
		}
		reply, err := l.modelTurn(ctx, turn, final)
		if err != nil {
			return nil, err
		}
		if err := l.spendTokens(ctx, reply.usage); err != nil {
			return nil, err
		}
		if len(reply.calls) > 0 {
			if err := l.checkBudgetBeforeCalls(ctx, turn, reply, final); err != nil {
				return nil, err
			}
			if err := l.toolTurn(ctx, reply, final); err != nil {
				return nil, err
			}
		}
		if final || len(reply.calls) == 0 {
			if end := l.endOrRepair(reply); end != nil {
				return end, nil
			}
			continue // the next turn corrects the answer
		}
		if reply.hasClientCalls() {
			// The API client executes its own tools and sends their results with its next request. It does so only if
			// the finish reason is tool_calls, which not every endpoint reports.
			reply.finish = "tool_calls"
			return l.finalAnswer(reply), nil
		}
		if err := l.checkLimits(ctx, turn); err != nil {
			return nil, err
		}
	}
}

// summaryPrompt is the message before the last turn of a run that reached a limit.
const summaryPrompt = "You have reached the limit of this run and cannot call any more tools. " +
	"Answer the question now with what you have, and say what is missing."

// prepareRun sets up the run's tools, conversation, budget and metadata. After a takeover it uses the tools and servers
// of this process, which may differ from those of the process that began the run. What the model answered before the
// takeover comes from the replayed steps. Only the process that begins the first step stores what the run's export needs
// (recordBeginning). An error ends the run.
func (l *loop) prepareRun(ctx context.Context) (err error) {
	req := l.run.req
	l.profile = l.agent.profileOf(req.Model)
	l.catalog = req.namedAgent.catalogFor(l.agent.ToolsFor(ctx, l.run.caller), req)
	// Set these before the first return with an error, because logEnd and recordRunEnd read them.
	l.budget = budget.New(req.Budget, req.MaxTurns, l.profile.Price, &l.run.clock, l.run.suspension.wakeCalls)
	l.media = mediaBudget{profile: l.profile, budget: l.budget}
	l.metadata = event.Metadata{
		ToolNames:          []string{},
		ToolParams:         []jsonText{},
		ToolResults:        []jsonText{},
		Model:              req.Model,
		UnavailableServers: l.agent.unavailableServers(l.run.caller, req, afterToolsFor),
	}
	if len(req.OutputSchema) > 0 {
		if l.output, err = output.Compile(req.OutputSchema); err != nil {
			return fmt.Errorf("the schema of the answer cannot be used: %w", err)
		}
	}

	l.window = window.New(l.profile)
	if req.MaxTokens > 0 {
		l.window.LimitReserve(req.MaxTokens)
	}
	l.window.LearnSize(l.agent.windowSizes.Size(req.Model))
	l.offerTools()
	l.callIDs = make(map[string]bool)
	l.requestCallIDs = make(map[string]bool)
	err = l.openConversation(ctx)
	if err == nil && req.Prompt != nil {
		err = l.insertServerPrompt(ctx, *req.Prompt)
	}
	l.restoreLoop() // even after an error: the run's end includes what earlier processes used
	hasNotBegun := l.replayed == nil || len(l.replayed.Steps) == 0 && !l.replayed.HasBeginning
	if err == nil && hasNotBegun {
		l.recordBeginning(ctx)
	}
	return err
}

// offerTools decides which tools the model is offered: the catalog's tools or a search over them, the tools that ask
// other agents, and the API client's own tools. Later changes to the servers' tools do not affect the run.
func (l *loop) offerTools() {
	l.search = l.newToolSearch()
	if l.search == nil && l.replayed.HasCallOf(l.catalog.SearchToolName()) {
		// The model has called the search tool, so an earlier process had switched to tool search, because the endpoint
		// named a small window (fitTools). This process does not know that window's size.
		l.search = toolsearch.NewSearch(l.catalog.Catalog, 0)
	}
	l.askTools = l.agent.askTools(l.run.caller, l.run.req)
	l.clientTools = l.run.req.clientTools(l.catalog, l.search, l.askTools)
	l.updateOffered()
}

// spendTokens charges used, the tokens of a turn as the provider counted them, to the run's budget, and corrects the
// window's token estimates with them. It appends the budget events that are due. If a budget of the caller is used up,
// it reports that too, once per run. An error comes from the log.
func (l *loop) spendTokens(ctx context.Context, used event.Usage) error {
	l.window.Observe(used)
	l.lastPromptTokens = used.InputTokens
	if err := l.budget.SpendTokens(ctx, l.run.out, used); err != nil {
		return err
	}
	if spent := l.callerSpent.Load(); spent != nil && !l.callerSpentReported {
		l.callerSpentReported = true
		return l.run.out.Append(ctx, event.Budget{Limit: callerLimitPrefix + spent.Limit.Name, Used: spent.Used, Max: spent.Limit.Max})
	}
	return nil
}

// checkLimits decides, after a turn's calls, whether the next turn is the final one. If so, it sets stopReason and
// stores it in a note. Before that, it may ask the run's owner to raise a limit (checkBudget). For a replayed step it
// takes the decision from the log: a new decision could differ, for example because more time has passed.
func (l *loop) checkLimits(ctx context.Context, turn int) error {
	if step := l.replayed.Step(l.step); step != nil {
		l.repeatIncreases(step.RaisedAfter)
		// The earlier process may have died after the step ended but before it decided.
		isDecided := step.StopReason != "" || l.step < len(l.replayed.Steps)
		if isDecided {
			l.stopReason = step.StopReason
			return nil
		}
	}
	// People who answer the run's interrupts cannot raise the caller's budget, so do not ask them.
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

// finalAnswer completes l.metadata and returns the terminal event of a run that ends with reply. The event's finish
// reason is stopReason if a limit stopped the run, and otherwise the model's own.
func (l *loop) finalAnswer(reply modelReply) event.FinalAnswer {
	l.metadata.Steps = l.step
	l.metadata.FinishReason = cmp.Or(l.stopReason, reply.finish)
	l.metadata.Cost = l.cost()
	return event.FinalAnswer{Answer: reply.text, Metadata: l.metadata, FinishReason: l.metadata.FinishReason}
}

// endOrRepair returns the terminal event of a run whose model answered with reply. If the answer violates its schema
// for the first time, endOrRepair returns nil instead: it sets repairing and adds a message that lists the violations,
// so that the next turn corrects the answer. After a second violation it returns a RunError. It stores no note for a
// takeover, because the next process reaches the same decision from the step's text.
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

// checkBudgetBeforeCalls asks for a higher budget if the model's output alone has used it up, because all of the turn's
// calls would be refused. It does not ask in the final turn, or if the agent executes none of the calls.
func (l *loop) checkBudgetBeforeCalls(ctx context.Context, turn int, reply modelReply, final bool) error {
	if step := l.replayed.Step(l.step); step != nil {
		l.repeatIncreases(step.RaisedBefore)
		if step.HasEndedCall() {
			return nil // the earlier process already made this check
		}
	}
	if final || len(reply.ownCalls()) == 0 {
		return nil
	}
	return l.checkBudget(ctx, turn)
}

// checkBudget sets budgetSpent if a limit of the run's budget is reached and not raised. It asks the run's owner to
// raise the limit, and blocks until the question is resolved, provided that the request allows questions, the turn is
// not the last one, and the operator's limit is higher. After an increase it checks again, because another limit may be
// reached too. The error is that of askForIncrease.
func (l *loop) checkBudget(ctx context.Context, turn int) error {
	mayAsk := turn != l.run.req.MaxTurns && l.run.req.canAnswer(event.KindBudget)
	if l.replayed != nil && l.replayed.BudgetQuestion != nil { // an earlier process asked it, and it is still open
		if err := l.askForIncrease(ctx, l.replayed.BudgetQuestion.Limit); err != nil || l.budgetSpent {
			return err
		}
	}
	for {
		limit := l.budget.ReachedLimit()
		if limit == "" {
			return nil
		}
		if !mayAsk || !l.canIncrease(limit) {
			l.budgetSpent = true
			return nil
		}
		if err := l.askForIncrease(ctx, limit); err != nil || l.budgetSpent {
			return err
		}
	}
}

// canIncrease reports whether the limit called name may be raised, because it is still below the operator's limit.
func (l *loop) canIncrease(name string) bool {
	operatorLimit := l.operatorLimit(name)
	return operatorLimit <= 0 || l.budget.Status(name).Max < operatorLimit
}

// operatorLimit returns the highest value to which this run's limit called name may be raised: the lower of the
// service's limit and the limit in the agent's definition when the run started. 0 means no limit.
func (l *loop) operatorLimit(name string) float64 {
	return l.agent.budgetLimits(l.run.req.namedAgent).ByName()[name]
}

// askForIncrease asks the run's owner to raise the limit called name, and blocks until the question is resolved. If the
// owner agrees, it raises the limit. If the owner refuses or does not answer in time, it sets budgetSpent. No call may
// be in flight, because the question may suspend the run. The error is the cause of ctx, or comes from the log.
func (l *loop) askForIncrease(ctx context.Context, name string) error {
	limit := l.budget.Status(name)
	s := &l.run.suspension
	s.beginCalls(ctx, runQuestion) // the run waits as if one of its calls asked the question, and so can be suspended
	res, err := l.askOwner(ctx, event.Interrupt{
		Kind: event.KindBudget, Limit: name, Used: limit.Used, Max: limit.Max,
		Message: fmt.Sprintf("The run has used %s of its %s %s. Allow it more?", formatNumber(limit.Used), formatNumber(limit.Max), name),
	})
	err = errors.Join(err, s.endCall(runQuestion))
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	if !res.isApproved() {
		l.budgetSpent = true
		return nil
	}
	raised := res.raisedLimit(limit.Max, l.operatorLimit(name))
	l.budget.Raise(name, raised)
	if name == "seconds" {
		l.run.clock.Raise(raised, l.run.out)
	}
	return nil
}

// repeatIncreases raises the limits that people raised during a replayed step. increases are their answers.
func (l *loop) repeatIncreases(increases []event.BudgetResolved) {
	for _, increase := range increases {
		l.budget.Raise(increase.Limit, increase.Max)
	}
}

// reserveConversation sets the run's counted memory to what the run holds between two turns: its request, and the
// messages after the question. This corrects the count, which only grows during a turn.
func (l *loop) reserveConversation() {
	held := l.run.req.size()
	fromRequest := min(1+l.historyLen+1, len(l.messages)) // the system prompt, the history and the question
	for _, m := range l.messages[fromRequest:] {
		held += len(m.Text) + mediaSize(m.Media)
	}
	l.run.reserveMemory(held - int(l.run.textBytes.Load()))
}
