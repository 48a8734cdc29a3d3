// Package toolsearch finds the few tools that fit a wish among very many, by the words
// that both have in common.
//
//	index := toolsearch.New([]toolsearch.Doc{{Name: "create_issue", Server: "tracker", Description: "Opens an issue."}})
//	for _, i := range index.Find("open a new issue", 8) {
//		fmt.Println(docs[i].Name)
//	}
//
// The order is that of BM25 (Robertson and Zaragoza, "The Probabilistic Relevance
// Framework", 2009) over the fields of a tool: rare words count more than common ones, a
// word in a name more than one in the description of a parameter. Each field saturates
// by itself, so that a server which repeats a word in a description wins no more by it
// than the description is worth. There is no model in it and no network: the same query
// over the same tools gives the same answer.
//
// An Index does not change once it is made and may be used by any number of goroutines. Neither does a Catalog, which
// has the tools of runs and their Index. A Search belongs to one run: it is the tool by which the model finds others,
// and knows which ones it has found.
package toolsearch

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strings"
)

// Doc is one tool. What a server says of itself is as long as it likes: at most
// maxWords words of each field are looked at.
type Doc struct {
	Name, Title, Server, Description string
	Schema                           json.RawMessage // of its parameters; what is no JSON has no words
}

// The fields of a tool and what a word in each is worth.
const (
	inName = iota
	inTitle
	inServer
	inDescription
	inParameterNames
	inParameterTexts
	fields
)

var worth = [fields]float64{inName: 2, inTitle: 2, inServer: 1.5, inDescription: 2, inParameterNames: 0.5, inParameterTexts: 0.25}

const (
	// k1 and b are BM25's usual constants: how soon a repeated word stops counting, and
	// how much a long field is marked down.
	k1 = 1.2
	b  = 0.75

	partMatch = 0.4 // what a word counts that begins like the one asked for, or it like that
)

// Index is the words of many tools.
type Index struct {
	docs     int
	words    []string // sorted, to find those that begin alike
	postings map[string][]posting
}

// posting is one tool that has a word, and how much the word says for it.
type posting struct {
	doc   int32
	score float32
}

// New makes an index of docs.
func New(docs []Doc) *Index {
	counts := make([]map[string]*[fields]float64, len(docs))
	var lengths [fields]float64 // of all docs together
	own := make([][fields]float64, len(docs))
	holders := make(map[string]int) // how many docs have a word
	for i, d := range docs {
		counts[i] = make(map[string]*[fields]float64)
		for field, words := range d.fieldWords() {
			own[i][field] = float64(len(words))
			lengths[field] += float64(len(words))
			for _, w := range words {
				count := counts[i][w]
				if count == nil {
					count = new([fields]float64)
					counts[i][w] = count
					holders[w]++
				}
				count[field]++
			}
		}
	}

	index := &Index{docs: len(docs), postings: make(map[string][]posting, len(holders))}
	for w := range holders {
		index.words = append(index.words, w)
	}

	slices.Sort(index.words)
	for i := range docs {
		for w, count := range counts[i] {
			weight := 0.0
			for field := range fields {
				if count[field] > 0 {
					mean := lengths[field] / float64(len(docs))
					often := count[field] / (1 - b + b*own[i][field]/mean)
					weight += worth[field] * often / (k1 + often)
				}
			}
			n := float64(holders[w])
			idf := math.Log(1 + (float64(len(docs))-n+0.5)/(n+0.5))
			index.postings[w] = append(index.postings[w], posting{int32(i), float32(idf * weight)})
		}
	}
	return index
}

// fieldWords returns the words of each field.
func (d *Doc) fieldWords() [fields][]string {
	var names, texts strings.Builder
	var schema any
	if json.Unmarshal(d.Schema, &schema) == nil {
		collectSchemaText(schema, &names, &texts, 0)
	}
	return [fields][]string{
		inName: splitWords(d.Name), inTitle: splitWords(d.Title), inServer: splitWords(d.Server), inDescription: splitWords(d.Description),
		inParameterNames: splitWords(names.String()), inParameterTexts: splitWords(texts.String()),
	}
}

// collectSchemaText collects the names of parameters and what is said about them, at any level
// of a schema that anybody would use.
func collectSchemaText(schema any, names, texts *strings.Builder, depth int) {
	if depth > 16 {
		return
	}
	switch s := schema.(type) {
	case []any: // of anyOf and its kin
		for _, one := range s {
			collectSchemaText(one, names, texts, depth+1)
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

// Find returns the tools that fit the query, best first, at most limit of them. Tools
// without any word of it are not among them.
func (x *Index) Find(query string, limit int) []int {
	scores := make([]float32, x.docs)
	for _, w := range dropRepeated(splitWords(query)) {
		best := make(map[int32]float32) // a tool counts once for a word, by its best form
		for form, share := range x.matchingForms(w) {
			for _, p := range x.postings[form] {
				best[p.doc] = max(best[p.doc], p.score*share)
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

// matchingForms returns the words of the index that may stand for w, and what they count: w
// itself, those that it begins (repo, repository) and those that begin it.
func (x *Index) matchingForms(w string) map[string]float32 {
	out := map[string]float32{w: 1}
	if len(w) < 3 {
		return out
	}
	at, _ := slices.BinarySearch(x.words, w)
	for ; at < len(x.words) && strings.HasPrefix(x.words[at], w); at++ {
		if x.words[at] != w {
			out[x.words[at]] = partMatch
		}
	}
	for n := len(w) - 1; n >= 4; n-- {
		if _, ok := x.postings[w[:n]]; ok {
			out[w[:n]] = partMatch
		}
	}
	return out
}

// dropRepeated drops repeated words: a query gains nothing by saying one twice.
func dropRepeated(words []string) []string {
	slices.Sort(words)
	return slices.Compact(words)
}
