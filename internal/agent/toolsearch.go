package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"answerd/internal/llm"
	"answerd/internal/mcp"
	"answerd/internal/mcp/content"
)

// ToolSearch says from when on a model is no longer shown all tools, but one to look
// for them and those that it has found. A field of 0 is no bound.
type ToolSearch struct {
	MinTools int // with more tools than this
	MinBytes int // or with more bytes of names, descriptions and schemas
}

// Bounds of the search.
const (
	maxFindings  = 8    // tools that one search finds
	maxShown     = 48   // found tools that the model is shown, the latest
	maxWish      = 1000 // bytes of a query
	maxSynopsis  = 300  // bytes of a description in a finding
	maxMentioned = 20   // servers that the search tool names
)

var searchSchema = json.RawMessage(`{"type":"object","properties":{"query":{"type":"string","minLength":1,` +
	`"description":"A few words on what the tool should do, such as: create calendar event"}},"required":["query"],"additionalProperties":false}`)

// toolSearch is the tool by which the model of one run finds the others.
type toolSearch struct {
	from  *catalogue
	tool  mcp.Tool
	found []string // names, those that were found last at the end
}

// newToolSearch returns nil where the run's model is shown all of its tools: they are
// few, or the request says itself which it wants, or that one must be called.
func (o ToolSearch) newToolSearch(from *catalogue, r Request) *toolSearch {
	many := o.MinTools > 0 && len(from.tools) > o.MinTools || o.MinBytes > 0 && from.bytes > o.MinBytes
	if !many || r.narrows() || r.ToolChoice == ToolRequired {
		return nil
	}
	return &toolSearch{from: from, tool: from.searchTool()}
}

// newSearchTool is the tool that searches c, under a name that no tool of c has.
func newSearchTool(c *catalogue) mcp.Tool {
	name := "search_tools"
	for n := 2; c.byName[name].Name != ""; n++ {
		name = fmt.Sprintf("search_tools_%d", n)
	}
	return mcp.Tool{
		Name: name, Title: "Search tools", Description: searchDescription(c.tools), InputSchema: searchSchema,
		Annotations: &mcp.Annotations{ReadOnly: true, Idempotent: true},
	}
}

// searchDescription tells the model what it cannot see.
func searchDescription(tools []mcp.Tool) string {
	var servers []string
	known := make(map[string]bool)
	for _, t := range tools {
		if !known[t.Server] {
			known[t.Server] = true
			servers = append(servers, t.Server)
		}
	}
	more := ""
	if len(servers) > maxMentioned {
		more = fmt.Sprintf(" and %d more", len(servers)-maxMentioned)
		servers = servers[:maxMentioned]
	}
	return fmt.Sprintf("Finds tools by what they do. %d tools can be used, of the servers %s%s; you are shown only those that you have found. "+
		"Search before you say that you cannot do something, and again in other words if nothing fits. "+
		"From your next turn on you can call what you found.", len(tools), strings.Join(servers, ", "), more)
}

// shown is what the model is shown: the search itself, then what it found. What is new
// stands last, so that a provider's cache of the prompt holds as long as it can.
func (s *toolSearch) shown() []llm.Tool {
	out := make([]llm.Tool, 0, len(s.found)+1)
	out = append(out, llm.Tool{Name: s.tool.Name, Description: s.tool.Description, Schema: s.tool.InputSchema})
	for _, name := range s.found {
		t := s.from.byName[name]
		out = append(out, llm.Tool{Name: t.Name, Description: t.Description, Schema: t.InputSchema})
	}
	return out
}

// take shows the model what the calls of a turn found, in call order, and what it
// called rightly without having found it. It reports whether that changes anything.
func (s *toolSearch) take(calls []*call) bool {
	before := len(s.found)
	for _, c := range calls {
		names := c.found
		if s.from.byName[c.Tool].Name != "" {
			names = []string{c.Tool}
		}
		for _, name := range names {
			if !slices.Contains(s.found, name) {
				s.found = append(s.found, name)
			}
		}
	}
	changed := len(s.found) > before
	s.found = s.found[max(0, len(s.found)-maxShown):]
	return changed
}

// finding is one tool in the result of a search.
type finding struct {
	Name        string `json:"name"`
	Title       string `json:"title,omitempty"`
	Server      string `json:"server"`
	Description string `json:"description"`
}

// search makes one call of the search tool.
func (s *toolSearch) search(_ context.Context, in *invocation) (*content.Result, error) {
	query, err := wishOf(in.args)
	if err != nil {
		return nil, in.fail(mcp.InvalidArguments, fmt.Sprintf("the arguments cannot be used: %v", err))
	}
	findings := []finding{}
	var said strings.Builder
	for _, i := range s.from.index().Find(query, maxFindings) {
		t := s.from.tools[i]
		f := finding{t.Name, t.Title, t.Server, synopsis(t.Description)}
		findings = append(findings, f)
		in.found = append(in.found, t.Name)
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

// wishOf reads the arguments of a search, a JSON object.
func wishOf(args jsonText) (string, error) {
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
	case len(query) > maxWish:
		return "", fmt.Errorf("query is longer than %d bytes", maxWish)
	}
	return query, nil
}

// synopsis is the beginning of a description, on one line.
func synopsis(description string) string {
	line := strings.Join(strings.Fields(description), " ")
	if len(line) <= maxSynopsis {
		return line
	}
	cut := maxSynopsis
	for !utf8.RuneStart(line[cut]) {
		cut--
	}
	return line[:cut] + "…"
}
