package toolsearch

import (
	"fmt"
	"sync"

	"answerd/internal/llm"
	"answerd/internal/mcp/catalog"
)

// Catalog holds the tools that a run may use. Runs share it, so it must not change.
type Catalog struct {
	Tools   []catalog.Tool
	ByName  map[string]catalog.Tool
	Offered []llm.Tool // Tools in the form in which the model is offered them, in the same order

	bytes int // the total size of names, descriptions and schemas
	// index and searchTool compute their result on the first call, because an index of 1,000 tools takes about 20 ms.
	index      func() *Index
	searchTool func() catalog.Tool
}

// NewCatalog returns a catalog of tools. The slice must not change afterwards.
func NewCatalog(tools []catalog.Tool) *Catalog {
	c := &Catalog{Tools: tools, ByName: make(map[string]catalog.Tool, len(tools)), Offered: make([]llm.Tool, len(tools))}
	for i, t := range tools {
		c.ByName[t.Name] = t
		c.Offered[i] = llm.Tool{Name: t.Name, Description: t.Description, Schema: t.InputSchema}
		c.bytes += len(t.Name) + len(t.Description) + len(t.InputSchema)
	}
	c.searchTool = sync.OnceValue(func() catalog.Tool { return newSearchTool(c) })
	c.index = sync.OnceValue(func() *Index { return New(tools) })
	return c
}

// SearchToolName returns the search tool's name: search_tools, with a number if the catalog has a tool of that name.
func (c *Catalog) SearchToolName() string {
	name := "search_tools"
	for n := 2; c.ByName[name].Name != ""; n++ {
		name = fmt.Sprintf("search_tools_%d", n)
	}
	return name
}
