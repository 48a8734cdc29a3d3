package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/event/memory"
	"answerd/internal/mcp/catalog"
)

// askOnce asks the default model one question and prints the calls and the answer. It offers the
// model one tool that needs no approval, if there is one. The run is a real one, with its own log
// in memory. The error is nil only if the run ends with an answer.
func askOnce(ctx context.Context, c config, tools toolset, stdout io.Writer, logger *slog.Logger) error {
	c.EnableTracing = false
	tel, err := newTelemetry(ctx, c, logger)
	if err != nil {
		return err
	}
	defer func() { _ = tel.Shutdown(ctx) }()
	models := openModels(ctx, c, tel, logger)
	defer func() { models.end() }()
	prompt, err := newPrompt(c)
	if err != nil {
		return err
	}
	log := memory.New(memory.Options{})
	a, err := agent.New(agent.Options{
		Model: models.router, Tools: tools.client, Log: log, DefaultModel: c.DefaultModelID, Profiles: c.profiles(), Prompt: prompt,
		MaxTurns: 3, MaxOutputTokens: c.MaxOutputTokens, Logger: logger, Tracer: tel.Tracer("answerd/agent"), Meter: tel.Meter("answerd/agent"),
	})
	if err != nil {
		return err
	}
	defer a.Drain(ctx)
	question := agent.Request{Question: "Answer with the word ready.", ToolChoice: agent.ToolNone, Background: true}
	if tool, ok := harmlessTool(a.ToolsFor(ctx, auth.Identity{})); ok {
		question.ToolChoice, question.Tools = agent.ToolAuto, []string{tool.Name}
		question.Question = fmt.Sprintf("Call the tool %s once, with arguments of your choice, and say in one sentence what it returned.", tool.Name)
	}
	fmt.Fprintf(stdout, "asking %s: %s\n", c.DefaultModelID, question.Question)
	run, err := a.Start(ctx, auth.Identity{}, question)
	if err != nil {
		return fmt.Errorf("start a run: %w", err)
	}
	return printRun(ctx, log, run.ID, stdout)
}

// harmlessTool returns a tool that a question may call without an approval: one that its server
// describes as read-only, or else the first one.
func harmlessTool(tools []catalog.Tool) (catalog.Tool, bool) {
	tools = slices.DeleteFunc(slices.Clone(tools), func(t catalog.Tool) bool { return t.NeedsApproval })
	if i := slices.IndexFunc(tools, func(t catalog.Tool) bool { return t.Annotations != nil && t.Annotations.ReadOnly }); i >= 0 {
		return tools[i], true
	}
	if len(tools) == 0 {
		return catalog.Tool{}, false
	}
	return tools[0], true
}

// printRun prints the calls of a run and its answer, and waits for its end.
func printRun(ctx context.Context, log event.Log, run string, stdout io.Writer) error {
	for position := int64(0); ; {
		page, err := log.After(ctx, run, position)
		if err != nil {
			return fmt.Errorf("read the run: %w", err)
		}
		for _, e := range page.Events {
			position = e.Seq
			switch b := e.Body.(type) {
			case event.ToolResult:
				fmt.Fprintf(stdout, "called %s: it answered in %d ms\n", b.Tool, b.DurationMS)
			case event.ToolError:
				fmt.Fprintf(stdout, "called %s: %s: %s\n", b.Tool, b.Kind, b.Payload)
			case event.FinalAnswer:
				fmt.Fprintf(stdout, "answer: %s\n\n", strings.TrimSpace(b.Answer))
				return nil
			case event.RunError:
				return errors.New(b.Message)
			case event.Cancelled:
				return errors.New("the run was cancelled: " + b.Reason)
			}
		}
		if page.More == nil {
			continue
		}
		select {
		case <-page.More:
		case <-ctx.Done():
			return fmt.Errorf("wait for the answer: %w", context.Cause(ctx))
		}
	}
}
