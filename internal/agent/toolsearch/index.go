// Package toolsearch finds the few tools that fit a query among very many, by the words
// that query and tool have in common.
//
//	index := toolsearch.New([]toolsearch.Doc{{Name: "create_issue", Server: "tracker", Description: "Opens an issue."}})
//	for _, i := range index.Find("open a new issue", 8) {
//		fmt.Println(docs[i].Name)
//	}
//
// The order is that of BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009) over the fields of
// a tool: rare words count more than common ones, a word in a name more than one in the description of a parameter.
// Each field saturates by itself, so that a server which repeats a word in a description gains at most the weight of
// the description. No model and no network are used: the same query over the same tools gives the same answer.
//
// An Index does not change and may be used by any number of goroutines. The same is true of a Catalog, which has the
// tools of runs and their Index. A Search belongs to one run: it is the tool by which the model finds tools, and has
// the list of those that it has found.
package toolsearch

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
)

// Doc is one tool. Its texts may have any length: at most maxWords words of each field are indexed.
type Doc struct {
	Name, Title, Server, Description string
	Schema                           json.RawMessage // the input schema; ignored if it is not JSON
}

// The fields of a tool, as indices of arrays.
const (
	inName = iota
	inTitle
	inServer
	inDescription
	inParameterNames
	inParameterTexts
	fieldCount
)

// perField has one value for each field of a tool.
type perField [fieldCount]float64

// fieldWeights are the weights of a word by the field that has it.
var fieldWeights = perField{
	inName: 2, inTitle: 2, inServer: 1.5, inDescription: 2, inParameterNames: 0.5, inParameterTexts: 0.25,
}

const (
	// k1 and b are constants of BM25 with their usual values: how soon further occurrences of a word stop counting, and
	// how much less an occurrence counts in a long field.
	k1 = 1.2
	b  = 0.75

	prefixWeight = 0.4 // the weight of a word of a tool that begins with the word of the query, or the reverse
)

// Index is the words of many tools.
type Index struct {
	docs     int                  // the number of tools
	words    []string             // all words, sorted, to find those with a common beginning
	postings map[string][]posting // the tools that have a word, by word
}

// posting is one tool that has a word.
type posting struct {
	doc   int32   // the index of the tool in the argument of New
	score float32 // the BM25 score of the tool for the word
}

// New returns an index of docs.
func New(docs []Doc) *Index {
	counts := make([]map[string]*perField, len(docs)) // by doc: the result of countWords
	lengths := make([]perField, len(docs))            // by doc: the words in each field
	var meanLengths perField
	docsWithWord := make(map[string]int)
	for i := range docs {
		counts[i], lengths[i] = docs[i].countWords()
		for word := range counts[i] {
			docsWithWord[word]++
		}
		for field, length := range lengths[i] {
			meanLengths[field] += length
		}
	}
	total := float64(len(docs))
	for field := range meanLengths {
		meanLengths[field] /= total
	}

	index := &Index{docs: len(docs), postings: make(map[string][]posting, len(docsWithWord))}
	for i := range docs {
		for word, count := range counts[i] {
			n := float64(docsWithWord[word])
			inverseFrequency := math.Log(1 + (total-n+0.5)/(n+0.5))
			score := inverseFrequency * weightOf(count, &lengths[i], &meanLengths)
			index.postings[word] = append(index.postings[word], posting{doc: int32(i), score: float32(score)})
		}
	}
	index.words = slices.Sorted(maps.Keys(index.postings))
	return index
}

// countWords returns how often each word occurs in each field of d, by word, and how many words each field has.
func (d *Doc) countWords() (counts map[string]*perField, lengths perField) {
	counts = make(map[string]*perField)
	for field, words := range d.fieldWords() {
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

// weightOf returns the weight of a word in a tool, which is the sum of its saturated frequency in each field by the
// weight of the field. counts are the occurrences of the word in each field, lengths the words in each field of the
// tool, and meanLengths the mean of lengths over all tools.
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

// fieldWords returns the words of each field.
func (d *Doc) fieldWords() [fieldCount][]string {
	var names, texts strings.Builder
	var schema any
	if json.Unmarshal(d.Schema, &schema) == nil {
		collectSchemaText(schema, &names, &texts, 0)
	}
	return [fieldCount][]string{
		inName:           splitWords(d.Name),
		inTitle:          splitWords(d.Title),
		inServer:         splitWords(d.Server),
		inDescription:    splitWords(d.Description),
		inParameterNames: splitWords(names.String()),
		inParameterTexts: splitWords(texts.String()),
	}
}

// maxSchemaDepth bounds the levels of a schema whose texts are indexed.
const maxSchemaDepth = 16

// collectSchemaText appends the names of the parameters in a decoded schema to names, and their descriptions to texts.
// depth is the level of schema within the whole schema, from 0; levels below maxSchemaDepth are ignored.
func collectSchemaText(schema any, names, texts *strings.Builder, depth int) {
	if depth > maxSchemaDepth {
		return
	}
	switch s := schema.(type) {
	case []any: // the value of anyOf, oneOf or allOf
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

// Find returns the indices of the tools that have a word of the query, best first, and at most limit of them. The
// indices are those of the argument of New.
func (x *Index) Find(query string, limit int) []int {
	scores := make([]float32, x.docs)
	words := splitWords(query)
	slices.Sort(words)
	for _, w := range slices.Compact(words) {
		best := make(map[int32]float32) // by tool: the score of its best form of w
		for form, weight := range x.matchingForms(w) {
			for _, p := range x.postings[form] {
				best[p.doc] = max(best[p.doc], p.score*weight)
			}
		}
		for doc, score := range best {
			scores[doc] += score
		}
	}
	var found []int
	for doc, score := range scores {
		if score > 0 {
			found = append(found, doc)
		}
	}
	slices.SortFunc(found, func(a, b int) int {
		return cmp.Or(cmp.Compare(scores[b], scores[a]), cmp.Compare(a, b))
	})
	return found[:min(len(found), max(limit, 0))]
}

// Words that are shorter, in bytes, are not compared as prefixes: too many words begin with them.
const (
	minQueryPrefix = 3 // of a word of the query that begins a word of a tool
	minToolPrefix  = 4 // of a word of a tool that begins a word of the query
)

// matchingForms returns the words that match a word of a query, each with its weight: word itself, the words of the
// index that begin with word (repository for repo), and the words of the index that word begins with.
func (x *Index) matchingForms(word string) map[string]float32 {
	out := map[string]float32{word: 1}
	if len(word) < minQueryPrefix {
		return out
	}
	at, _ := slices.BinarySearch(x.words, word)
	for ; at < len(x.words) && strings.HasPrefix(x.words[at], word); at++ {
		if x.words[at] != word {
			out[x.words[at]] = prefixWeight
		}
	}
	for n := len(word) - 1; n >= minToolPrefix; n-- {
		if _, ok := x.postings[word[:n]]; ok {
			out[word[:n]] = prefixWeight
		}
	}
	return out
}
