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
	"slices"
	"strings"
	"text/tabwriter"

	"answerd/internal/agent"
	"answerd/internal/agent/definition"
	"answerd/internal/llm"
	"answerd/internal/mcp"
)

// readAgents reads AGENTS_FILE, if it is set, with the models and servers of the configuration.
func (c *config) readAgents() error {
	if c.AgentsFile == "" {
		return nil
	}
	var servers []string
	if configured, _, err := mcpServers(*c); err == nil { // an error of mcp.json is reported where it is read
		servers = []string{}
		for _, s := range configured {
			servers = append(servers, s.Name)
		}
	}
	c.agentsWatch = newFileWatch(c.AgentsFile)
	file, err := c.parseAgents(c.DefaultModelID, c.profiles(), servers)
	if err != nil {
		return err
	}
	c.agents = file.Agents
	c.agentsWatch.setPaths(append([]string{c.AgentsFile}, file.PromptFiles...)...)
	return nil
}

// parseAgents reads AGENTS_FILE for these models and servers.
func (c *config) parseAgents(defaultModel string, models map[string]llm.Profile, servers []string) (definition.File, error) {
	opts := definition.Options{
		Dir: filepath.Dir(c.AgentsFile), AnyModel: len(models) == 0, Models: []string{defaultModel}, Servers: servers,
		HasPrice: func(model string) bool { return models[cmp.Or(model, defaultModel)].Price != nil },
		ReadFile: func(name string) ([]byte, error) {
			data, err := os.ReadFile(name)
			if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
				err = pathErr.Err
			}
			return data, err
		},
	}
	for id := range models {
		opts.Models = append(opts.Models, id)
	}
	return parseFile("AGENTS_FILE", c.AgentsFile, func(data []byte) (definition.File, error) { return definition.Parse(data, opts) })
}

// startReloadingAgents reads AGENTS_FILE again when it or the file of a prompt changes, until end is
// called. A file that cannot be used is refused, and the agents stay.
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
		if err == nil {
			c.agentsWatch.setPaths(append([]string{c.AgentsFile}, file.PromptFiles...)...)
			err = runs.ReplaceAgents(file.Agents)
		}
		if err != nil {
			return slog.Attr{}, err
		}
		return slog.Int("agents", len(file.Agents)), nil
	})
}

// checkAgentIDs refuses a new list of models that has the id of an agent.
func checkAgentIDs(models map[string]llm.Profile, runs *agent.Agent) error {
	for id := range models {
		if runs.HasAgent(id) {
			return &configError{"MODELS_FILE", fmt.Sprintf("model %s has the id of an agent", id)}
		}
	}
	return nil
}

// agentIDs returns the ids of the agents.
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

// describeAgents returns the agents in one line.
func (c *config) describeAgents() string {
	if len(c.agents) == 0 {
		return fmt.Sprintf("default, at most %d turns", c.MaxTurns)
	}
	return fmt.Sprintf("%s, of AGENTS_FILE %s", strings.Join(c.agentIDs(), ", "), c.AgentsFile)
}

// printAgents prints what each agent of AGENTS_FILE may use, of the tools that were listed.
func printAgents(ctx context.Context, stdout io.Writer, cfg config, tools *mcp.Client) {
	if len(cfg.agents) == 0 {
		return
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "AGENT\tMODEL\tTURNS\tTOOLS\tAPPROVAL\tASKS\tBUDGET")

	all := tools.Tools(ctx)
	for i := range cfg.agents {
		a := &cfg.agents[i]
		var names, approved, limits []string
		for _, t := range a.FilterTools(all) {
			names = append(names, t.Name)
			if t.NeedsApproval {
				approved = append(approved, t.Name)
			}
		}
		budget := a.Budget.Within(cfg.budget()).ByName()
		for _, name := range []string{"tool_calls", "input_tokens", "output_tokens", "total_tokens", "seconds", "result_bytes", "cost"} {
			if budget[name] > 0 {
				limits = append(limits, fmt.Sprintf("%s %g", name, budget[name]))
			}
		}
		id, turns := a.ID, cfg.MaxTurns
		if a.MaxTurns > 0 {
			turns = min(turns, a.MaxTurns)
		}
		if i == 0 {
			id += " (default)"
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n", id, cmp.Or(a.Model, cfg.DefaultModelID), turns,
			summarizeNames(names), summarizeNames(approved), summarizeNames(a.Agents), summarizeNames(limits))
	}

	table.Flush()
	fmt.Fprintln(stdout)
}

// maxNamesInTable is how many names a cell of a table has.
const maxNamesInTable = 12

// summarizeNames returns names in one line, or a dash if there are none.
func summarizeNames(names []string) string {
	n := len(names)
	switch {
	case n == 0:
		return "–"
	case n > maxNamesInTable:
		return fmt.Sprintf("%s and %d more", strings.Join(slices.Clone(names[:maxNamesInTable]), ", "), n-maxNamesInTable)
	}
	return strings.Join(names, ", ")
}
