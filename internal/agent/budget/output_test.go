package budget_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"answerd/internal/agent/budget"
	"answerd/internal/llm"
)

func TestOutputIsCutWithin64TokensOfItsLimit(t *testing.T) {
	for name, piece := range map[string]string{"a token in each piece": " word", "a byte in each piece": "w", "many tokens in each piece": strings.Repeat(" word", 10)} {
		o := budget.NewOutput(400)
		tokens := 0.0
		for i := 0; i < 100_000; i++ {
			// Distinct pieces, so that this is not a loop.
			text := piece + string(rune('a'+i%23)) + string(rune('a'+i/23%23)) + string(rune('a'+i/529%23))
			if name == "a byte in each piece" {
				text = text[1+i%3 : 2+i%3]
			}
			tokens += float64(len(text)) / 5
			if _, cut := o.Add(text); cut {
				break
			}
		}
		if tokens < 150 || tokens > 1000 {
			t.Errorf("%s: cut after about %.0f tokens, want near 400", name, tokens)
		}
	}

	o := budget.NewOutput(400)
	n := 1
	for ; ; n++ {
		if _, cut := o.Add(" word" + string(rune('a'+n%23)) + string(rune('a'+n/23))); cut {
			break
		}
	}
	if n < 400 || n > 464 {
		t.Errorf("got a cut at token %d, want between 400 and 464", n)
	}
}

func TestOutputLoopIsCut(t *testing.T) {
	sentence := "I will now look at the weather in Rome, and then I will look at it again. "
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"a sentence twenty times and more": {"Well: " + strings.Repeat(sentence, 80), true},
		"200 bytes twenty times":           {strings.Repeat(numberedLines(40)[:200], 21), true},
		"a short word":                     {strings.Repeat("loop ", 1000), false},
		"one letter":                       {strings.Repeat("a", 5000), false},
		"blanks":                           {strings.Repeat("\n", 5000), false},
		"a sentence ten times":             {strings.Repeat(sentence, 10), false},
		"numbered lines":                   {numberedLines(500), false},
	} {
		o := budget.NewOutput(0)
		cut := false
		for rest := c.text; rest != "" && !cut; {
			n := min(7, len(rest))
			_, cut = o.Add(rest[:n])
			rest = rest[n:]
		}
		if cut != c.want {
			t.Errorf("%s: got cut %v, want %v", name, cut, c.want)
		}
	}
}

// One long piece is cut within it, between characters.
func TestOutputPieceIsCutWithinIt(t *testing.T) {
	var b strings.Builder
	for i := range 1000 {
		b.WriteString("é" + string(rune('a'+i%26)) + string(rune('a'+i/26)) + " ")
	}

	words := b.String()
	for name, c := range map[string]struct {
		limit         int64
		piece         string
		least, atMost int // words
	}{
		"within the limit": {2000, words, 1000, 1000},
		"beyond the limit": {100, words, 100, 164},
	} {
		kept, cut := budget.NewOutput(c.limit).Add(c.piece)
		if n := len(strings.Fields(kept)); n < c.least || n > c.atMost || cut != (kept != c.piece) || !utf8.ValidString(kept) {
			t.Errorf("%s: got %d words, cut %t, want %d to %d", name, n, cut, c.least, c.atMost)
		}
	}

	if kept, cut := budget.NewOutput(0).Add(strings.Repeat("This is a loop of words. ", 20_000)); !cut || len(kept) > 4100 {
		t.Errorf("a loop in one piece: got %d bytes, cut %t, want at most 4100", len(kept), cut)
	}
}

// numberedLines returns n different lines.
func numberedLines(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("Line " + strings.Repeat("i", i%7) + string(rune('a'+i%26)) + string(rune('a'+i/26)) + "\n")
	}
	return b.String()
}

func TestAnswerTokensAreWhatIsLeftOfTheBudget(t *testing.T) {
	price := &llm.Price{Input: 1, Output: 10}
	for name, c := range map[string]struct {
		limits budget.Limits
		last   bool
		want   int64
	}{
		"no limit":               {budget.Limits{}, false, 0},
		"output":                 {budget.Limits{OutputTokens: 400}, false, 400},
		"total without prompt":   {budget.Limits{TotalTokens: 400}, false, 300},
		"cost":                   {budget.Limits{Cost: 0.0021}, false, 200},
		"the lowest":             {budget.Limits{OutputTokens: 400, TotalTokens: 150}, false, 50},
		"never below one":        {budget.Limits{TotalTokens: 50}, false, 1},
		"last turn may sum up":   {budget.Limits{OutputTokens: 4}, true, budget.SummaryTokens},
		"last turn with a lot":   {budget.Limits{OutputTokens: 5000}, true, 5000},
		"last turn, no limit":    {budget.Limits{}, true, 0},
		"calls are not limiting": {budget.Limits{ToolCalls: 1}, false, 0},
	} {
		var clock budget.Clock
		b := budget.New(c.limits, 1, price, &clock, func(changed chan struct{}) { close(changed) })
		if got := b.AnswerTokens(100, c.last); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}
