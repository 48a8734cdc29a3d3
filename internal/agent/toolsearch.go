package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"answerd/internal/agent/record"
	"answerd/internal/agent/toolsearch"
	"answerd/internal/agent/window"
	"answerd/internal/auth"
	"answerd/internal/event"
	"answerd/internal/llm"
	"answerd/internal/mcp"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/content"
)

// ToolSearch sets when a model is offered a search tool and the tools that it has found, instead
// of all tools. A zero field means no limit. If one is set, tools are also searched when their
// definitions take more than a third of the model's window, as far as its size is known.
type ToolSearch struct {
	MinTools int // with more tools than this
	MinBytes int // or with more bytes of names, descriptions and schemas
}

// Bounds of the tool search.
const (
	maxToolShare     = 3    // the offered tools may take one part in so many of the model's window
	maxHits          = 8    // tools that one search finds
	maxShownTools    = 48   // the latest found tools that the model is offered
	maxQuery         = 1000 // bytes of a query
	maxSummary       = 300  // bytes of a description in a hit
	maxListedServers = 20   // servers that the search tool names
)

var searchSchema = json.RawMessage(`{"type":"object","properties":{"query":{"type":"string","minLength":1,` +
	`"description":"A few words on what the tool should do, such as: create calendar event"}},"required":["query"],"additionalProperties":false}`)

// toolSearch implements the tool by which the model of one run finds the others.
type toolSearch struct {
	catalog    *toolCatalog
	tool       catalog.Tool
	maxTokens  int64    // that the offered tools may take of the model's window; 0 means no limit
	foundNames []string // the last found names are at the end
}

// newToolSearch returns nil if the model is offered all of its tools, because they are few, or
// because the request names its tools or requires a call. windowTokens is the size of the model's
// window; 0 if it is unknown.
func (o ToolSearch) newToolSearch(from *toolCatalog, r Request, windowTokens int64) *toolSearch {
	many := o.MinTools > 0 && len(from.tools) > o.MinTools || o.MinBytes > 0 && from.bytes > o.MinBytes
	if windowTokens > 0 && o != (ToolSearch{}) && len(from.tools) > 1 {
		many = many || window.ToolTokens(from.offered) > windowTokens/maxToolShare
	}
	if !many || r.restrictsTools() || r.ToolChoice == ToolRequired {
		return nil
	}
	return newToolSearch(from, windowTokens)
}

// newToolSearch returns a search that has found nothing, whatever the number of tools.
func newToolSearch(from *toolCatalog, windowTokens int64) *toolSearch {
	return &toolSearch{catalog: from, tool: from.searchTool(), maxTokens: windowTokens / maxToolShare}
}

// fitTools adapts the offered tools to the model's window after its size was learned: it starts the
// tool search if they take too much of the window. Tools that the run has called stay offered.
func (l *loop) fitTools(ctx context.Context) (err error) {
	if l.search == nil {
		l.search = l.agent.ToolSearch.newToolSearch(l.catalog, l.run.req, l.window.Size())
		if l.search == nil {
			return nil
		}
		for _, m := range l.messages {
			for _, c := range m.Calls {
				l.search.offerFound(c.Name)
			}
		}
		l.clientTools = l.run.req.clientTools(l.catalog, l.search)
		l.messages[0].Text, err = l.systemPrompt(ctx, []catalog.Tool{l.search.tool})
	}
	l.search.maxTokens = l.window.Size() / maxToolShare
	l.search.dropOldest()
	l.updateOffered()
	return err
}

// searchToolName returns the name that the search tool for c has.
func searchToolName(c *toolCatalog) string {
	name := "search_tools"
	for n := 2; c.byName[name].Name != ""; n++ {
		name = fmt.Sprintf("search_tools_%d", n)
	}
	return name
}

// newSearchTool returns the tool that searches c, under a name that no tool of c has.
func newSearchTool(c *toolCatalog) catalog.Tool {
	return catalog.Tool{
		Name: searchToolName(c), Title: "Search tools", Description: searchDescription(c.tools), InputSchema: searchSchema,
		Annotations: &catalog.Annotations{ReadOnly: true, Idempotent: true},
	}
}

// searchDescription describes to the model the tools that it is not offered.
func searchDescription(tools []catalog.Tool) string {
	var servers []string
	known := make(map[string]bool)
	for _, t := range tools {
		if !known[t.Server] {
			known[t.Server] = true
			servers = append(servers, t.Server)
		}
	}
	more := ""
	if len(servers) > maxListedServers {
		more = fmt.Sprintf(" and %d more", len(servers)-maxListedServers)
		servers = servers[:maxListedServers]
	}
	return fmt.Sprintf("Finds tools by what they do. %d tools can be used, of the servers %s%s; you are shown only those that you have found. "+
		"Search before you say that you cannot do something, and again in other words if nothing fits. "+
		"From your next turn on you can call what you found.", len(tools), strings.Join(servers, ", "), more)
}

// shownTools returns the search tool and then the found tools, the newest last. A provider's
// prompt cache stays valid for as much of the beginning as stays the same.
func (s *toolSearch) shownTools() []llm.Tool {
	out := make([]llm.Tool, 0, len(s.foundNames)+1)
	out = append(out, llm.Tool{Name: s.tool.Name, Description: s.tool.Description, Schema: s.tool.InputSchema})
	for _, name := range s.foundNames {
		t := s.catalog.byName[name]
		out = append(out, llm.Tool{Name: t.Name, Description: t.Description, Schema: t.InputSchema})
	}
	return out
}

// addFound offers the tools that the calls of a turn found, in call order, and tools that the
// model called by name without a search. It reports whether that changes the offered tools.
func (s *toolSearch) addFound(calls []*call) bool {
	before := len(s.foundNames)
	for _, c := range calls {
		s.offerFound(c.Tool)
		for _, name := range c.foundTools {
			s.offerFound(name)
		}
	}
	changed := len(s.foundNames) > before
	s.dropOldest()
	return changed
}

// offerFound offers the tool of that name, unless it is offered already or does not exist.
func (s *toolSearch) offerFound(name string) {
	if s.catalog.byName[name].Name != "" && !slices.Contains(s.foundNames, name) {
		s.foundNames = append(s.foundNames, name)
	}
}

// dropOldest keeps the found tools within their limits. The latest one always stays.
func (s *toolSearch) dropOldest() {
	s.foundNames = s.foundNames[max(0, len(s.foundNames)-maxShownTools):]
	for s.maxTokens > 0 && len(s.foundNames) > 1 && window.ToolTokens(s.shownTools()) > s.maxTokens {
		s.foundNames = s.foundNames[1:]
	}
}

// searchHit describes one tool in the result of a search.
type searchHit struct {
	Name        string `json:"name"`
	Title       string `json:"title,omitempty"`
	Server      string `json:"server"`
	Description string `json:"description"`
}

// searchTools executes one call of the search tool.
func (s *toolSearch) searchTools(_ context.Context, x *toolExecution) (*content.Result, error) {
	query, err := queryOf(x.args)
	if err != nil {
		return nil, x.failure(mcp.InvalidArguments, fmt.Sprintf("the arguments cannot be used: %v", err))
	}
	findings := []searchHit{}
	var said strings.Builder
	tokens := window.ToolTokens(s.shownTools()[:1])
	for _, i := range s.catalog.index().Find(query, maxHits) {
		t := s.catalog.tools[i]
		tokens += window.ToolTokens(s.catalog.offered[i : i+1])
		if s.maxTokens > 0 && tokens > s.maxTokens && len(findings) > 0 {
			break // the best hits come first
		}
		f := searchHit{t.Name, t.Title, t.Server, summarize(t.Description)}
		findings = append(findings, f)
		x.foundTools = append(x.foundTools, t.Name)
		fmt.Fprintf(&said, "- %s (%s): %s\n", f.Name, f.Server, f.Description)
	}
	text := "You can call these tools from your next turn on:\n" + said.String()
	if len(findings) == 0 {
		text = "No tool has these words. Try others."
	}
	block, err := json.Marshal(map[string]string{"type": "text", "text": text})
	if err != nil {
		return nil, fmt.Errorf("encode what was found: %w", err)
	}
	structured, err := json.Marshal(map[string]any{"tools": findings})
	if err != nil {
		return nil, fmt.Errorf("encode what was found: %w", err)
	}
	return &content.Result{Content: []json.RawMessage{block}, Structured: structured}, nil
}

// queryOf returns the query of a search by its arguments, a JSON object.
func queryOf(args jsonText) (string, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(args, &members); err != nil {
		return "", err
	}
	for name := range members {
		if name != "query" {
			return "", fmt.Errorf("there is no field %.40q", name)
		}
	}
	var query string
	switch raw, given := members["query"]; {
	case !given:
		return "", fmt.Errorf("missing required field: query")
	case json.Unmarshal(raw, &query) != nil || string(raw) == "null":
		return "", fmt.Errorf("query is not a string")
	case strings.TrimSpace(query) == "":
		return "", fmt.Errorf("query is empty")
	case len(query) > maxQuery:
		return "", fmt.Errorf("query is longer than %d bytes", maxQuery)
	}
	return query, nil
}

// summarize returns the beginning of a description, on one line.
func summarize(description string) string {
	line := strings.Join(strings.Fields(description), " ")
	if len(line) <= maxSummary {
		return line
	}
	cut := maxSummary
	for !utf8.RuneStart(line[cut]) {
		cut--
	}
	return line[:cut] + "…"
}

// toolCatalog holds the tools that a run may use. Runs share it, so it never changes.
type toolCatalog struct {
	tools   []catalog.Tool
	source  []catalog.Tool // that the tools were chosen from
	byName  map[string]catalog.Tool
	offered []llm.Tool // the same tools in the same order
	bytes   int        // of the tools' definitions for the model
	list    *record.ToolList
	// Computed on first use, because the index of 1,000 tools takes about 20 ms.
	index      func() *toolsearch.Index
	searchTool func() catalog.Tool
}

// newToolCatalog returns the catalog of some tools, which must not change any more.
func newToolCatalog(tools []catalog.Tool) *toolCatalog {
	c := &toolCatalog{tools: tools, byName: make(map[string]catalog.Tool, len(tools)), offered: make([]llm.Tool, len(tools)), list: record.NewToolList(tools)}
	for i, t := range tools {
		c.byName[t.Name] = t
		c.offered[i] = llm.Tool{Name: t.Name, Description: t.Description, Schema: t.InputSchema}
		c.bytes += len(t.Name) + len(t.Description) + len(t.InputSchema)
	}
	c.searchTool = sync.OnceValue(func() catalog.Tool { return newSearchTool(c) })
	c.index = sync.OnceValue(func() *toolsearch.Index {
		docs := make([]toolsearch.Doc, len(tools))
		for i, t := range tools {
			docs[i] = toolsearch.Doc{Name: t.Name, Title: t.Title, Server: t.Server, Description: t.Description, Schema: t.InputSchema}
		}
		return toolsearch.New(docs)
	})
	return c
}

// toolCatalogCache caches the catalog of all tools of an agent. Almost every run uses it, and computing
// one costs more than the rest of a run's start.
type toolCatalogCache struct{ last atomic.Pointer[toolCatalog] }

// catalogFor returns the catalog of the tools in all that r may use. The caller must not change
// it.
func (c *toolCatalogCache) catalogFor(all []catalog.Tool, r Request) *toolCatalog {
	if len(all) == 0 || r.restrictsTools() {
		return newToolCatalog(r.filterTools(all))
	}
	// Package mcp returns the same slice until a tool changes.
	if last := c.last.Load(); last != nil && len(all) == len(last.source) && &all[0] == &last.source[0] {
		return last
	}
	made := newToolCatalog(r.filterTools(all))
	made.source = all
	c.last.Store(made)
	return made
}

// UsableTools returns the tools that a request of the caller may use; none if they may not use its agent.
// The caller must not change the slice.
func (a *Agent) UsableTools(ctx context.Context, caller auth.Identity, r Request) []catalog.Tool {
	var err error
	if r.as, err = a.selectAgent(caller, r.Agent); err != nil {
		return nil
	}
	return r.filterTools(a.ToolsFor(ctx, caller))
}

// foundToolNames returns the names of the tools in the result event of a search.
func foundToolNames(b event.ToolResult) (names []string) {
	var found struct{ Tools []searchHit }
	if json.Unmarshal(b.Structured, &found) == nil {
		for _, hit := range found.Tools {
			names = append(names, hit.Name)
		}
	}
	return names
}
