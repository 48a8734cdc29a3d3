package toolsearch

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"answerd/internal/agent/window"
	"answerd/internal/llm"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/content"
)

// Options say when a model is offered a search tool and the tools found with it, instead of all tools. A zero field
// means no limit. If either field is set, the search tool is also used when the definitions of the tools take more than
// a third of the model's context window, provided that the window's size is known.
type Options struct {
	MinTools int // use the search tool if there are more tools than this
	MinBytes int // use it if names, descriptions and schemas have more bytes than this in total
}

// Limits of the tool search.
const (
	maxToolShare     = 3    // the offered tools may take 1/3 of the model's context window
	maxHits          = 8    // tools found by one search
	maxShownTools    = 48   // found tools offered to the model at the same time
	maxQuery         = 1000 // bytes of a query
	maxSummary       = 300  // bytes of a description in a search result
	maxListedServers = 20   // servers named in the description of the search tool
)

// searchSchema is the input schema of the search tool.
var searchSchema = json.RawMessage(`{"type":"object","properties":{"query":{"type":"string","minLength":1,` +
	`"description":"A few words on what the tool should do, such as: create calendar event"}},` +
	`"required":["query"],"additionalProperties":false}`)

// Search is one run's search tool, with the tools that it has found. Find may be called concurrently; the other methods
// may not be called concurrently with each other or with Find.
type Search struct {
	Tool catalog.Tool // the search tool itself

	catalog   *Catalog
	maxTokens int64 // how many tokens the offered tools may take; 0 means no limit
	// foundNames has the names of the found tools that the model is offered, in the order they were first found.
	foundNames []string
	recent     []string // the same names, in the order they were last found or called
}

// Search returns a new Search, or nil if the catalog is within the limits of o, so that the model can be offered all
// tools. windowTokens is the size of the model's context window, or 0 if unknown.
func (o Options) Search(catalog *Catalog, windowTokens int64) *Search {
	exceedsTools := o.MinTools > 0 && len(catalog.Tools) > o.MinTools
	exceedsBytes := o.MinBytes > 0 && catalog.bytes > o.MinBytes
	if exceedsTools || exceedsBytes || o != (Options{}) && exceedsWindow(catalog, windowTokens) {
		return NewSearch(catalog, windowTokens)
	}
	return nil
}

// exceedsWindow reports whether the definitions of several tools take more than their share of a context window. It
// returns false if the window's size is 0, which means unknown.
func exceedsWindow(catalog *Catalog, windowTokens int64) bool {
	return windowTokens > 0 && len(catalog.Tools) > 1 && window.ToolTokens(catalog.Offered) > windowTokens/maxToolShare
}

// NewSearch returns a Search that has found nothing yet, however few tools the catalog has. windowTokens is the size of
// the model's context window, or 0 if unknown.
func NewSearch(catalog *Catalog, windowTokens int64) *Search {
	return &Search{Tool: catalog.searchTool(), catalog: catalog, maxTokens: windowTokens / maxToolShare}
}

// Fit adapts s to a context window whose size has become known, and drops found tools that exceed their share of it.
func (s *Search) Fit(windowTokens int64) {
	s.maxTokens = windowTokens / maxToolShare
	s.dropOldest()
}

// newSearchTool returns the tool that searches the catalog. No tool of the catalog has the same name.
func newSearchTool(c *Catalog) catalog.Tool {
	return catalog.Tool{
		Name:        c.SearchToolName(),
		Title:       "Search tools",
		Description: searchDescription(c.Tools),
		InputSchema: searchSchema,
		Annotations: &catalog.Annotations{ReadOnly: true, Idempotent: true},
	}
}

// searchDescription returns the search tool's description: how many tools there are, from which servers, and how to
// find them. It names at most maxListedServers servers.
func searchDescription(tools []catalog.Tool) string {
	var servers []string
	for _, t := range tools {
		if !slices.Contains(servers, t.Server) {
			servers = append(servers, t.Server)
		}
	}
	more := ""
	if len(servers) > maxListedServers {
		more = fmt.Sprintf(" and %d more", len(servers)-maxListedServers)
		servers = servers[:maxListedServers]
	}
	return fmt.Sprintf("Finds tools by what they do. %d tools can be used, of the servers %s%s; "+
		"you are shown only those that you have found. "+
		"Search before you say that you cannot do something, and again in other words if nothing fits. "+
		"From your next turn on you can call what you found.", len(tools), strings.Join(servers, ", "), more)
}

// Shown returns the search tool, followed by the found tools in the order they were first found. That order does not
// change between requests, because a provider's prompt cache needs an unchanged beginning of the request.
func (s *Search) Shown() []llm.Tool {
	out := make([]llm.Tool, 0, len(s.foundNames)+1)
	out = append(out, llm.Tool{Name: s.Tool.Name, Description: s.Tool.Description, Schema: s.Tool.InputSchema})
	for _, name := range s.foundNames {
		t := s.catalog.ByName[name]
		out = append(out, llm.Tool{Name: t.Name, Description: t.Description, Schema: t.InputSchema})
	}
	return out
}

// Offer adds tools to those that the model is offered, and marks them as most recently used, in this order. It ignores
// names that the catalog does not have, and drops tools that exceed the limits (dropOldest). It reports whether it
// added a tool. If it added none, it dropped none either.
func (s *Search) Offer(names ...string) (added bool) {
	for _, name := range names {
		if s.catalog.ByName[name].Name == "" {
			continue
		}
		if i := slices.Index(s.recent, name); i >= 0 {
			s.recent = slices.Delete(s.recent, i, i+1)
		} else {
			s.foundNames = append(s.foundNames, name)
			added = true
		}
		s.recent = append(s.recent, name)
	}
	s.dropOldest()
	return added
}

// dropOldest drops found tools until the rest is within maxShownTools and maxTokens, starting with the tool that was
// not found or called for the longest time. Tools in the newest search result are dropped last, even if an earlier
// search had already found them, because that result tells the model that it can call them. One tool is always kept.
func (s *Search) dropOldest() {
	exceedsLimits := func() bool {
		return len(s.recent) > maxShownTools || s.maxTokens > 0 && window.ToolTokens(s.Shown()) > s.maxTokens
	}
	for len(s.recent) > 1 && exceedsLimits() {
		oldest := s.recent[0]
		s.recent = s.recent[1:]
		s.foundNames = slices.DeleteFunc(s.foundNames, func(name string) bool { return name == oldest })
	}
}

// searchHit describes one tool in the result of a search.
type searchHit struct {
	Name        string `json:"name"`
	Title       string `json:"title,omitempty"`
	Server      string `json:"server"`
	Description string `json:"description"`
}

// ErrArguments means that the arguments in a call of the search tool are invalid. Errors that wrap it say why.
var ErrArguments = errors.New("the arguments cannot be used")

// Find executes one call of the search tool. It returns the result, and the names of the tools in it, for Offer once
// the turn has ended. The error wraps ErrArguments if the arguments are wrong. Find does not change s.
func (s *Search) Find(args json.RawMessage) (result *content.Result, found []string, _ error) {
	query, err := queryOf(args)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrArguments, err)
	}
	hits := []searchHit{}                      // not nil, so that the structured content has a list
	tokens := window.ToolTokens(s.Shown()[:1]) // the search tool takes tokens too
	for _, i := range s.catalog.index().Find(query, maxHits) {
		tokens += window.ToolTokens(s.catalog.Offered[i : i+1])
		isFull := s.maxTokens > 0 && tokens > s.maxTokens
		if isFull && len(hits) > 0 {
			break // the remaining hits fit the query less well
		}
		tool := s.catalog.Tools[i]
		hits = append(hits, searchHit{tool.Name, tool.Title, tool.Server, summarize(tool.Description)})
		found = append(found, tool.Name)
	}
	return searchResult(hits), found, nil
}

// searchResult returns a search result, both as text for the model and as structured content.
func searchResult(hits []searchHit) *content.Result {
	text := "No tool has these words. Try others."
	if len(hits) > 0 {
		var list strings.Builder
		for _, hit := range hits {
			fmt.Fprintf(&list, "- %s (%s): %s\n", hit.Name, hit.Server, hit.Description)
		}
		text = "You can call these tools from your next turn on:\n" + list.String()
	}
	block, _ := json.Marshal(map[string]string{"type": "text", "text": text}) // cannot fail for strings
	structured, _ := json.Marshal(map[string]any{"tools": hits})
	return &content.Result{Content: []json.RawMessage{block}, Structured: structured}
}

// queryOf returns the query in the search tool's arguments. The error tells the model what is wrong with them.
func queryOf(args json.RawMessage) (string, error) {
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
	raw, isGiven := members["query"]
	switch {
	case !isGiven:
		return "", errors.New("missing required field: query")
	case json.Unmarshal(raw, &query) != nil || string(raw) == "null":
		return "", errors.New("query is not a string")
	case strings.TrimSpace(query) == "":
		return "", errors.New("query is empty")
	case len(query) > maxQuery:
		return "", fmt.Errorf("query is longer than %d bytes", maxQuery)
	}
	return query, nil
}

// summarize returns a description on one line. After maxSummary bytes it is cut, and ends with an ellipsis.
func summarize(description string) string {
	line := strings.Join(strings.Fields(description), " ")
	if len(line) <= maxSummary {
		return line
	}
	end := maxSummary
	for !utf8.RuneStart(line[end]) { // do not cut within a character
		end--
	}
	return line[:end] + "…"
}

// FoundNames returns the names of the tools in the structured content that Find returned, or nil if that is invalid.
func FoundNames(structured json.RawMessage) (names []string) {
	var found struct{ Tools []searchHit }
	if json.Unmarshal(structured, &found) == nil {
		for _, hit := range found.Tools {
			names = append(names, hit.Name)
		}
	}
	return names
}
