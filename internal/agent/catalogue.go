package agent

import (
	"context"
	"sync"
	"sync/atomic"

	"answerd/internal/agent/toolsearch"
	"answerd/internal/auth"
	"answerd/internal/llm"
	"answerd/internal/mcp"
)

// catalogue is the tools that a run may use, in the forms that a run needs. Runs share
// it: nothing in it is written once it is made.
type catalogue struct {
	tools   []mcp.Tool
	byName  map[string]mcp.Tool
	offered []llm.Tool // the same tools in the same order
	bytes   int        // of what the model is told about them
	// Made when they are first asked for: the index of 1,000 tools takes some 20 ms.
	index      func() *toolsearch.Index
	searchTool func() mcp.Tool
}

func newCatalogue(tools []mcp.Tool) *catalogue {
	c := &catalogue{tools: tools, byName: make(map[string]mcp.Tool, len(tools)), offered: make([]llm.Tool, len(tools))}
	for i, t := range tools {
		c.byName[t.Name] = t
		c.offered[i] = llm.Tool{Name: t.Name, Description: t.Description, Schema: t.InputSchema}
		c.bytes += len(t.Name) + len(t.Description) + len(t.InputSchema)
	}
	c.searchTool = sync.OnceValue(func() mcp.Tool { return newSearchTool(c) })
	c.index = sync.OnceValue(func() *toolsearch.Index {
		docs := make([]toolsearch.Doc, len(tools))
		for i, t := range tools {
			docs[i] = toolsearch.Doc{Name: t.Name, Title: t.Title, Server: t.Server, Description: t.Description, Schema: t.InputSchema}
		}
		return toolsearch.New(docs)
	})
	return c
}

// catalogueCache keeps the catalogue of all tools. Almost every run uses it, and making
// it anew costs more than the rest of a run's beginning.
type catalogueCache struct{ last atomic.Pointer[catalogue] }

// of returns the catalogue of what r may use of all, which must not be changed.
func (c *catalogueCache) of(all []mcp.Tool, r Request) *catalogue {
	if len(all) == 0 || r.narrows() {
		return newCatalogue(r.narrow(all))
	}
	// mcp gives out one slice until something in it changes.
	if last := c.last.Load(); last != nil && len(all) == len(last.tools) && &all[0] == &last.tools[0] {
		return last
	}
	made := newCatalogue(all)
	c.last.Store(made)
	return made
}

// UsableTools returns the tools that a request of the caller's may use: its Servers, Tools and
// ToolChoice are looked at. The caller must not change them.
func (a *Agent) UsableTools(ctx context.Context, caller auth.Identity, r Request) []mcp.Tool {
	return r.narrow(a.ToolsFor(ctx, caller))
}
