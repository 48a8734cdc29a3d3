// Package toolsearch finds the tools that fit a query among very many, by the words that both have in common.
//
//	index := toolsearch.New(tools)
//	for _, i := range index.Find("open a new issue", 8) {
//		fmt.Println(tools[i].Name)
//	}
//
// Tools are ranked by BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009) over several fields:
// a rare word counts more than a common one, and a word in a tool's name more than one in a parameter's description.
// Each field saturates on its own, so a server that repeats a word in a description gains at most the weight of the
// description. No model and no network is used: the same query over the same tools always finds the same.
//
// An Index is immutable and may be used concurrently. So is a Catalog, which has the tools of runs and their Index. A
// Search belongs to one run: it is the tool with which the model searches, and has the list of the tools found so far.
package toolsearch

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"

	"answerd/internal/mcp/catalog"
)

// The fields of a tool, used as array indices.
const (
	inName = iota
	inTitle
	inServer
	inDescription
	inParameterNames
	inParameterTexts
	fieldCount
)

// perField has one value per field.
type perField [fieldCount]float64

// fieldWeights says how much a word counts in each field.
var fieldWeights = perField{
	inName: 2, inTitle: 2, inServer: 1.5, inDescription: 2, inParameterNames: 0.5, inParameterTexts: 0.25,
}

const (
	// k1 and b are the constants of BM25, with their usual values. k1 controls how soon more occurrences of a word stop
	// counting, and b how much less an occurrence counts in a long field.
	k1 = 1.2
	b  = 0.75

	prefixWeight = 0.4 // the weight of a match in which one word is only the beginning of the other
)

// Index is a searchable index of tools' words.
type Index struct {
	toolCount int
	words     []string             // all words, sorted, to find words by prefix
	postings  map[string][]posting // by word: the tools that have it
}

// posting is one tool that has a word.
type posting struct {
	tool  int32   // the tool's index in the argument of New
	score float32 // the tool's BM25 score for the word
}

// New returns an index of tools. Their texts may be of any length: only the first maxWords words of each field are
// indexed. An input schema that is not valid JSON is ignored.
func New(tools []catalog.Tool) *Index {
	counts := make([]map[string]*perField, len(tools)) // by tool: the counts from countWords
	lengths := make([]perField, len(tools))            // by tool: how many words each field has
	var meanLengths perField
	toolsWithWord := make(map[string]int)
	for i := range tools {
		counts[i], lengths[i] = countWords(&tools[i])
		for word := range counts[i] {
			toolsWithWord[word]++
		}
		for field, length := range lengths[i] {
			meanLengths[field] += length
		}
	}
	total := float64(len(tools))
	for field := range meanLengths {
		meanLengths[field] /= total
	}

	index := &Index{toolCount: len(tools), postings: make(map[string][]posting, len(toolsWithWord))}
	for i := range tools {
		for word, count := range counts[i] {
			withWord := float64(toolsWithWord[word])
			inverseFrequency := math.Log(1 + (total-withWord+0.5)/(withWord+0.5))
			score := inverseFrequency * weightOf(count, &lengths[i], &meanLengths)
			index.postings[word] = append(index.postings[word], posting{tool: int32(i), score: float32(score)})
		}
	}
	index.words = slices.Sorted(maps.Keys(index.postings))
	return index
}

// countWords returns how often each word of a tool occurs in each field, and how many words each field has.
func countWords(tool *catalog.Tool) (counts map[string]*perField, lengths perField) {
	counts = make(map[string]*perField)
	for field, words := range fieldWords(tool) {
		lengths[field] = float64(len(words))
		for _, word := range words {
			if counts[word] == nil {
				counts[word] = new(perField)
			}
			counts[word][field]++
		}
	}
	return counts, lengths
}

// weightOf returns a word's weight in a tool: the sum, over the fields, of the word's saturated frequency times the
// field's weight. counts says how often the word occurs in each field of the tool, lengths how many words each field
// has, and meanLengths the mean of lengths over all tools.
func weightOf(counts, lengths, meanLengths *perField) float64 {
	weight := 0.0
	for field, count := range counts {
		if count > 0 {
			frequency := count / (1 - b + b*lengths[field]/meanLengths[field])
			weight += fieldWeights[field] * frequency / (k1 + frequency)
		}
	}
	return weight
}

// fieldWords returns the words in each field of a tool.
func fieldWords(tool *catalog.Tool) [fieldCount][]string {
	var names, texts strings.Builder
	var schema any
	if json.Unmarshal(tool.InputSchema, &schema) == nil {
		collectSchemaText(schema, &names, &texts, 0)
	}
	return [fieldCount][]string{
		inName:           splitWords(tool.Name),
		inTitle:          splitWords(tool.Title),
		inServer:         splitWords(tool.Server),
		inDescription:    splitWords(tool.Description),
		inParameterNames: splitWords(names.String()),
		inParameterTexts: splitWords(texts.String()),
	}
}

// maxSchemaDepth is how many levels of a schema are indexed.
const maxSchemaDepth = 16

// collectSchemaText appends the names of the parameters in a decoded schema to names, and their descriptions to texts.
// depth is the level of schema within the whole schema, from 0. Levels below maxSchemaDepth are ignored.
func collectSchemaText(schema any, names, texts *strings.Builder, depth int) {
	if depth > maxSchemaDepth {
		return
	}
	switch s := schema.(type) {
	case []any: // the list in anyOf, oneOf or allOf
		for _, alternative := range s {
			collectSchemaText(alternative, names, texts, depth+1)
		}
	case map[string]any:
		if text, ok := s["description"].(string); ok {
			texts.WriteString(text)
			texts.WriteByte(' ')
		}
		if properties, ok := s["properties"].(map[string]any); ok {
			for name, property := range properties {
				names.WriteString(name)
				names.WriteByte(' ')
				collectSchemaText(property, names, texts, depth+1)
			}
		}
		for _, keyword := range []string{"items", "anyOf", "oneOf", "allOf", "additionalProperties"} {
			collectSchemaText(s[keyword], names, texts, depth+1)
		}
	}
}

// Find returns up to limit tools that have a word of the query, best first, as indices into the argument of New.
func (x *Index) Find(query string, limit int) []int {
	scores := make([]float32, x.toolCount)
	words := splitWords(query)
	slices.Sort(words)
	for _, word := range slices.Compact(words) {
		best := make(map[int32]float32) // by tool: the score of its best form of word
		for form, weight := range x.matchingForms(word) {
			for _, p := range x.postings[form] {
				best[p.tool] = max(best[p.tool], p.score*weight)
			}
		}
		for tool, score := range best {
			scores[tool] += score
		}
	}
	var found []int
	for tool, score := range scores {
		if score > 0 {
			found = append(found, tool)
		}
	}
	slices.SortFunc(found, func(a, b int) int {
		return cmp.Or(cmp.Compare(scores[b], scores[a]), cmp.Compare(a, b))
	})
	return found[:min(len(found), max(limit, 0))]
}

// Words that are shorter than this, in bytes, are not matched as prefixes, because they are prefixes of too many words.
const (
	minQueryPrefix = 3 // a word of the query that begins a word of a tool
	minToolPrefix  = 4 // a word of a tool that begins a word of the query
)

// matchingForms returns the words that match a word of a query, with their weights. These are the word itself, words in
// the index that begin with it (repository for repo), and words in the index that it begins with.
func (x *Index) matchingForms(word string) map[string]float32 {
	weights := map[string]float32{word: 1}
	if len(word) < minQueryPrefix {
		return weights
	}
	first, _ := slices.BinarySearch(x.words, word)
	for _, longer := range x.words[first:] {
		if !strings.HasPrefix(longer, word) {
			break
		}
		if longer != word {
			weights[longer] = prefixWeight
		}
	}
	for size := len(word) - 1; size >= minToolPrefix; size-- {
		shorter := word[:size]
		if _, isIndexed := x.postings[shorter]; isIndexed {
			weights[shorter] = prefixWeight
		}
	}
	return weights
}
