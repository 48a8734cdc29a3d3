package demo

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// searchArgs are the arguments; their bounds and defaults stand in the tool's schema.
type searchArgs struct {
	Query string `json:"query"`
	Limit int    `json:"limit"`
}

// searchHit is an entry that matched, whole: the entries are short.
type searchHit struct {
	Title string  `json:"title"`
	Text  string  `json:"text"`
	Score float64 `json:"score" jsonschema:"BM25; higher is better"`
}

// searchResult is the structured result.
type searchResult struct {
	Query   string      `json:"query"`
	Results []searchHit `json:"results" jsonschema:"best first; empty if nothing matches"`
	Summary string      `json:"summary" jsonschema:"the best entry, and the titles of the others"`
}

// addSearch adds search_docs.
func addSearch(s *sdk.Server) {
	index := newDocIndex(docs)
	sdk.AddTool(s, &sdk.Tool{
		Name: "search_docs", Title: "Search answerd's documentation", Annotations: readOnly(),
		Description: "Searches the documentation of answerd, this agent backend, and is the place for any question about it. " +
			"Topics: endpoints, events, streaming, resume after a disconnect, runs, errors and codes, MCP servers and sessions, tokens, JWT and IAM, " +
			"approval, tracing, metrics, configuration and settings, limits, budgets and timeouts, hooks, OpenAI and other faces, the demo and its stand-in model.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{
			"query":{"type":"string","description":"What to look for: a question or a few keywords","minLength":1,"maxLength":300},
			"limit":{"type":"integer","description":"How many entries to return at most","minimum":1,"maximum":5,"default":3}
		},"required":["query"],"additionalProperties":false}`),
	}, func(_ context.Context, _ *sdk.CallToolRequest, in searchArgs) (*sdk.CallToolResult, *searchResult, error) {
		r := index.search(in.Query, in.Limit)
		return said(r.Summary), r, nil
	})
}

// docIndex ranks the entries by Okapi BM25 over word stems. A title's word counts
// three times, because it says what the entry is about.
type docIndex struct {
	docs   []doc
	counts []map[string]float64 // per entry: how often a stem occurs
	sizes  []float64            // per entry: how many stems
	mean   float64              // of sizes
	having map[string]float64   // in how many entries a stem occurs
}

// newDocIndex counts the words once; the index is never changed afterwards and may be
// searched concurrently.
func newDocIndex(docs []doc) *docIndex {
	x := &docIndex{docs: docs, having: make(map[string]float64)}
	for _, d := range docs {
		count := make(map[string]float64)
		size := 0.0
		for _, w := range stems(strings.Repeat(d.title+" ", 3) + d.text) {
			count[w]++
			size++
		}
		for w := range count {
			x.having[w]++
		}
		x.counts, x.sizes, x.mean = append(x.counts, count), append(x.sizes, size), x.mean+size/float64(len(docs))
	}
	return x
}

// score is BM25 with the customary k1 = 1.2 and b = 0.75.
func (x *docIndex) score(i int, query []string) float64 {
	const k1, b = 1.2, 0.75
	sum := 0.0
	for _, w := range query {
		n, f := x.having[w], x.counts[i][w]
		idf := math.Log(1 + (float64(len(x.docs))-n+0.5)/(n+0.5))
		sum += idf * f * (k1 + 1) / (f + k1*(1-b+b*x.sizes[i]/x.mean))
	}
	return sum
}

// search gives at most limit entries, best first, those of equal score in their own
// order. Words of the query that no entry has count for nothing.
func (x *docIndex) search(query string, limit int) *searchResult {
	words := stems(query)
	slices.Sort(words)
	words = slices.Compact(words)
	hits := []searchHit{}
	for i, d := range x.docs {
		if s := x.score(i, words); s > 0 {
			hits = append(hits, searchHit{d.title, d.text, math.Round(s*100) / 100})
		}
	}
	slices.SortStableFunc(hits, func(a, b searchHit) int { return cmp.Compare(b.Score, a.Score) })
	hits = hits[:min(limit, len(hits))]
	r := &searchResult{Query: query, Results: hits, Summary: "The documentation has nothing about that."}
	if len(hits) > 0 {
		r.Summary = hits[0].Title + ": " + hits[0].Text
	}
	if len(hits) > 1 {
		var also []string
		for _, h := range hits[1:] {
			also = append(also, h.Title)
		}
		r.Summary += " See also: " + strings.Join(also, "; ") + "."
	}
	return r
}
