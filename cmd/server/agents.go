package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"answerd/internal/agent"
	"answerd/internal/agent/definition"
	"answerd/internal/llm"
	"answerd/internal/mcp"
)

// readAgents sets c.agents and c.agentsWatch from AGENTS_FILE. It does nothing if AGENTS_FILE is not set. Every error
// is a *configError.
func (c *config) readAgents() error {
	if c.AgentsFile == "" {
		return nil
	}
	var servers []string                                  // nil lets agents name any server
	if configured, _, err := mcpServers(*c); err == nil { // connectTools reports the error
		servers = []string{}
		for _, s := range configured {
			servers = append(servers, s.Name)
		}
	}
	c.agentsWatch = newFileWatch(c.AgentsFile) // before the file is read, so that a change in between is noticed
	file, err := c.parseAgents(c.DefaultModelID, c.profiles(), servers)
	if err != nil {
		return err
	}
	c.agents = file.Agents
	c.agentsWatch.setPaths(append([]string{c.AgentsFile}, file.PromptFiles...)...)
	return nil
}

// parseAgents reads AGENTS_FILE and checks that its agents name only known models and servers. The keys of models are
// model ids, and servers has server names. If models is empty, an agent may name any model; if servers is nil, any
// server. Every error is a *configError.
func (c *config) parseAgents(defaultModel string, models map[string]llm.Profile, servers []string) (definition.File, error) {
	opts := definition.Options{
		Dir: filepath.Dir(c.AgentsFile), AnyModel: len(models) == 0, Models: []string{defaultModel}, Servers: servers,
		HasPrice: func(model string) bool { return models[cmp.Or(model, defaultModel)].Price != nil },
		ReadFile: func(name string) ([]byte, error) {
			data, err := os.ReadFile(name)
			if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
				err = pathErr.Err // the parser adds the name of the file
			}
			return data, err
		},
	}
	for id := range models {
		opts.Models = append(opts.Models, id)
	}
	return parseFile("AGENTS_FILE", c.AgentsFile, func(data []byte) (definition.File, error) { return definition.Parse(data, opts) })
}

// startReloadingAgents reloads AGENTS_FILE when it or one of its prompt files changes, and at SIGHUP, until end is
// called. Then runs uses the new agents. If the new files cannot be used, runs keeps the current agents. Without
// AGENTS_FILE it does nothing.
func (c config) startReloadingAgents(ctx context.Context, runs *agent.Agent, tools *mcp.Client, logger *slog.Logger) (end func()) {
	if c.AgentsFile == "" {
		return func() {}
	}
	return startFollowing(ctx, c.agentsWatch, "AGENTS_FILE", logger, func() (slog.Attr, error) {
		defaultModel, models := runs.Models()
		servers := []string{}
		for _, s := range tools.Servers() {
			servers = append(servers, s.Name)
		}
		file, err := c.parseAgents(defaultModel, models, servers)
		if err != nil {
			return slog.Attr{}, err
		}
		c.agentsWatch.setPaths(append([]string{c.AgentsFile}, file.PromptFiles...)...)
		if err := runs.ReplaceAgents(file.Agents); err != nil {
			return slog.Attr{}, err
		}
		return slog.Int("agents", len(file.Agents)), nil
	})
}

// agentIDs returns the ids of all agents. The first one is the default agent.
func (c *config) agentIDs() []string {
	if len(c.agents) == 0 {
		return []string{"default"}
	}
	ids := make([]string, len(c.agents))
	for i, a := range c.agents {
		ids[i] = a.ID
	}
	return ids
}

// describeAgents describes the agents on one line, for people.
func (c *config) describeAgents() string {
	if len(c.agents) == 0 {
		return fmt.Sprintf("default, at most %d turns", c.MaxTurns)
	}
	return fmt.Sprintf("%s, of AGENTS_FILE %s", strings.Join(c.agentIDs(), ", "), c.AgentsFile)
}

// printAgents prints a table of the agents in AGENTS_FILE. The tools of an agent are those that the connected servers
// have listed. Without AGENTS_FILE it prints nothing.
func printAgents(ctx context.Context, stdout io.Writer, cfg config, tools *mcp.Client) {
	if len(cfg.agents) == 0 {
		return
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "AGENT\tMODEL\tTURNS\tTOOLS\tAPPROVAL\tASKS\tBUDGET")
	allTools := tools.Tools(ctx)
	for i := range cfg.agents {
		a := &cfg.agents[i]
		var names, needApproval []string
		for _, t := range a.FilterTools(allTools) {
			names = append(names, t.Name)
			if t.NeedsApproval {
				needApproval = append(needApproval, t.Name)
			}
		}
		limits := describeLimits(a.Budget.Within(cfg.budget()))
		id, turns := a.ID, cfg.MaxTurns
		if a.MaxTurns > 0 {
			turns = min(turns, a.MaxTurns)
		}
		if i == 0 {
			id += " (default)"
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n", id, cmp.Or(a.Model, cfg.DefaultModelID), turns,
			summarizeNames(names), summarizeNames(needApproval), summarizeNames(a.Agents), summarizeNames(limits))
	}
	table.Flush()
	fmt.Fprintln(stdout)
}

// describeLimits returns the limits of a budget that are set, such as "tool_calls 5".
func describeLimits(budget agent.Budget) (limits []string) {
	byName := budget.ByName()
	for _, name := range []string{"tool_calls", "input_tokens", "output_tokens", "total_tokens", "seconds", "result_bytes", "cost"} {
		if byName[name] > 0 {
			limits = append(limits, fmt.Sprintf("%s %g", name, byName[name]))
		}
	}
	return limits
}

// maxNamesInTable bounds the names in one table cell.
const maxNamesInTable = 12

// summarizeNames joins names with commas. After maxNamesInTable names it says how many more follow. For no names it
// returns a dash.
func summarizeNames(names []string) string {
	n := len(names)
	switch {
	case n == 0:
		return "–"
	case n > maxNamesInTable:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamesInTable], ", "), n-maxNamesInTable)
	}
	return strings.Join(names, ", ")
}
