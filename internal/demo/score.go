package demo

import (
	"math"
	"slices"
	"strings"
)

// What a word in common between a clause and a tool is worth. The threshold is such
// that one word of a tool's name is enough, or one of the first sentence of its
// description, while further words of the description need each other's company.
const (
	nameWorth     = 3.0
	firstWorth    = 1.5
	restWorth     = 0.9
	verbWorth     = 1.0
	threshold     = 2.5
	maxRarity     = 2.0
	foundWorth    = 5.0  // a sum for a tool that takes one; a quantity likewise
	calledByName  = 10.0 // the clause has the tool's very name
	hintWorth     = 1.0  // an argument found, beside words in common
	missingCost   = 3.0
	unaskedChange = 6.0 // a tool that changes things, which nobody asked for
)

// Verbs say little in a tool's name: half of all tools "get" something.
var (
	plainVerbs  = stemSet("get list show find fetch read search lookup query run call make check")
	changeVerbs = stemSet("delete drop create update send write cancel set add insert post put pay buy book move reset stop restart kill")
)

// stemSet is the stems of a list of words.
func stemSet(words string) map[string]bool {
	m := make(map[string]bool)
	for _, w := range stems(words + " ") {
		m[w] = true
	}
	return m
}

// wordScale weighs the words of one request's tools.
type wordScale struct {
	names  []map[string]bool    // per tool: stems of its name
	worth  []map[string]float64 // per tool: what each stem is worth
	rarity map[string]float64
}

// newWordScale weighs each tool's words: where a word stands tells how much it says,
// and a word that most of the tools have says little about any of them.
func newWordScale(tools []tool) *wordScale {
	s := &wordScale{rarity: make(map[string]float64)}
	for _, t := range tools {
		name, worth := make(map[string]bool), make(map[string]float64)
		weigh := func(text string, w float64) {
			for _, stem := range stems(text) {
				worth[stem] = max(worth[stem], w)
			}
		}
		first, rest, _ := strings.Cut(t.description, ". ")
		weigh(first, firstWorth)
		weigh(rest, restWorth)
		for _, p := range t.params {
			weigh(p.name, restWorth)
		}
		for _, stem := range stems(t.name) {
			name[stem] = true
			worth[stem] = nameWorth
			if plainVerbs[stem] {
				worth[stem] = verbWorth
			}
		}
		for stem := range worth {
			s.rarity[stem]++
		}
		s.names, s.worth = append(s.names, name), append(s.worth, worth)
	}
	for stem, n := range s.rarity {
		s.rarity[stem] = min(maxRarity, 1+math.Log(float64(len(tools))/n))
	}
	return s
}

// words is how much the clause's words speak for tool i.
func (s *wordScale) words(i int, c clause) float64 {
	sum := 0.0
	seen := make(map[string]bool)
	for _, stem := range c.stems {
		if !seen[stem] {
			seen[stem] = true
			sum += s.worth[i][stem] * s.rarity[stem]
		}
	}
	all := len(s.names[i]) > 0
	for stem := range s.names[i] {
		all = all && seen[stem]
		if changeVerbs[stem] && !seen[stem] {
			sum -= unaskedChange
		}
	}
	if all {
		sum += 2 * hintWorth
	}
	return sum
}

// candidate is a tool with the arguments that the clause gives it.
type candidate struct {
	tool    *tool
	args    map[string]any
	missing []string // required parameters that the clause says nothing about
	words   float64
	score   float64
}

// choose is the best tool for the clause, and the reply is false if even that one
// does not fit. Of equals the first offered wins.
func (p *planner) choose(c clause) (candidate, bool) {
	best := candidate{score: math.Inf(-1)}
	for i := range p.tools {
		if k := p.weigh(i, c); k.score > best.score {
			best = k
		}
	}
	return best, best.tool != nil && best.score >= threshold && len(best.missing) == 0
}

// weigh scores tool i for the clause. Arguments found only add to words in common: a
// place alone is no reason to ask for the weather there.
func (p *planner) weigh(i int, c clause) candidate {
	t := &p.tools[i]
	f := fill(t, c)
	k := candidate{tool: t, args: f.args, missing: f.missing, words: p.scale.words(i, c)}
	k.score = k.words + f.found - missingCost*float64(len(f.missing))
	if k.words > 0 {
		k.score += hintWorth * float64(f.hints)
	}
	if _, ok := t.param(meansQuery); ok && k.words > 0 && c.asks {
		k.score += hintWorth
	}
	if namesTool(c.text, t.name) {
		k.score += calledByName
	}
	return k
}

// namesTool reports whether text has the name as a word. A name without a separator
// is an ordinary word and counts as such elsewhere.
func namesTool(text, name string) bool {
	return strings.ContainsAny(name, "_-") && slices.Contains(strings.FieldsFunc(text, func(r rune) bool {
		return !strings.ContainsRune("_-", r) && strings.ContainsRune(" \t\n.,;:!?\"'`()", r)
	}), name)
}
