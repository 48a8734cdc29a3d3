package demo

import (
	"regexp"
	"slices"
	"strings"
)

// Bounds of what is read. Each clause is weighed against each tool, so their product
// is what a hostile request could make expensive.
const (
	maxQuestion = 4000 // bytes of a question that are read
	maxClauses  = 8    // that are answered
)

// clause is one thing that a question asks for, and what was recognised in it.
type clause struct {
	text     string
	leads    bool     // begins like a follow-up: "and …", "what about …"
	asks     bool     // begins like a question about something
	stems    []string // of what is left when sums and quantities are taken out
	sum      string   // an arithmetic expression
	tail     string   // the rest of one that began earlier: "* 3"
	quantity *quantity
	place    *place
	quoted   []string
	numbers  []string // in order, those of sums and quantities left out
	ids      []string // words with a digit in them, in order
	tokens   []string // all words, in lower case, and numbers
	named    map[string]string
}

// How questions are cut up and begin. All patterns run in linear time (RE2).
var (
	leadWords  = regexp.MustCompile(`(?i)^(?:\s*(?:and then|and now|and also|and|then|also|now|so|ok(?:ay)?|what about|how about)\b[\s,]*)+`)
	filler     = regexp.MustCompile(`(?i)^(?:\s*(?:please|hi|hello|hey|can you|could you|would you|will you|i want(?: you)? to|i would like to|i'd like to|i need to|let's)\b[\s,]*)+`)
	asking     = regexp.MustCompile(`(?i)^(?:what|how|why|who|which|when|where|is|are|does|do|can|explain|describe|tell me (?:about|how|what|why))\b`)
	starting   = regexp.MustCompile(`(?i)^(?:what|how|when|where|who|why|which|is|are|does|please|tell|show|give|get|list|find|search|look|run|call|use|write|make|create|delete|remove|convert|calculate|compute|translate|send)\b`)
	sentences  = regexp.MustCompile(`[?!;]+(?:\s+|$)|\s*\n\s*|\.\s+`)
	connectors = regexp.MustCompile(`(?i)\s*,?\s+(?:and then|and also|and|then)\s+|,\s+`)
	quotation  = regexp.MustCompile(`"([^"]{1,200})"|“([^”]{1,200})”|'([^']{2,200})'`)
	namedValue = regexp.MustCompile(`\b([A-Za-z]\w*)\s*(?::|=)\s*("[^"]*"|[\w./@+-]+)`)
	numberWord = regexp.MustCompile(`[-−]?\b\d+(?:\.\d+)?\b`)
	token      = regexp.MustCompile(`-?\d+(?:\.\d+)?|\p{L}+`)
	idWord     = regexp.MustCompile(`[\p{L}\d]*(?:[-_]?\d)[\p{L}\d_-]*`)
)

// operatorNames are what tools for one operation may be called.
var operatorNames = map[byte]string{'+': "add sum plus", '-': "subtract difference minus", '*': "multiply product times", '/': "divide quotient", '^': "power"}

// readClause recognises what there is in text. Each kind of find is taken out before
// the next is looked for, so that no number is used twice.
func readClause(text string) clause {
	c := clause{text: strings.TrimSpace(text), named: make(map[string]string)}
	body := c.text
	if lead := leadWords.FindString(body); lead != "" {
		c.leads, body = true, body[len(lead):]
	}
	body = body[len(filler.FindString(body)):]
	c.asks = asking.MatchString(body)
	for _, m := range namedValue.FindAllStringSubmatch(body, 16) {
		c.named[strings.ToLower(m[1])] = strings.Trim(m[2], `"`)
	}
	for _, m := range quotation.FindAllStringSubmatch(body, 16) {
		c.quoted = append(c.quoted, m[1]+m[2]+m[3])
	}
	if p, ok := findPlace(body); ok {
		c.place = &p
	}
	hints := ""
	c.quantity, body = findQuantity(body)
	if c.quantity != nil {
		hints = " " + c.quantity.kind
	} else {
		c.sum, body = findSum(body)
		if c.tail = findTail(body); c.tail != "" {
			body = ""
		}
		hints = " " + operationNames(c.sum)
	}
	c.numbers = numberWord.FindAllString(body, 32)
	c.ids = idWord.FindAllString(body, 32)
	c.tokens = token.FindAllString(strings.ToLower(c.text), -1)
	c.stems = stems(body + hints)
	return c
}

// operationNames are the names of an expression's operation if it has just one.
func operationNames(expression string) string {
	names := ""
	for op, n := range operatorNames {
		if strings.IndexByte(expression, op) >= 0 {
			if names != "" {
				return ""
			}
			names = n
		}
	}
	return names
}

// splitQuestion cuts a question into its clauses. "and" joins words as often as
// questions, and so does a comma: what follows one stands alone only if it looks like
// a question, a sum or a conversion, or names another place after a first one.
func splitQuestion(question string) []clause {
	if len(question) > maxQuestion {
		question = strings.ToValidUTF8(question[:maxQuestion], "")
	}
	var out []clause
	for _, sentence := range splitOutsideQuotes(question, sentences) {
		first := true
		for _, part := range splitOutsideQuotes(sentence.text, connectors) {
			c := readClause(part.text)
			if c.text == "" {
				continue
			}
			if !first && !c.standsAlone(out[len(out)-1]) {
				leads := out[len(out)-1].leads
				out[len(out)-1] = readClause(out[len(out)-1].text + part.joint + c.text)
				out[len(out)-1].leads = leads
				continue
			}
			c.leads = c.leads || !first
			out, first = append(out, c), false
		}
	}
	return out[:min(len(out), maxClauses)]
}

// textPart is a piece of a text and what joined it to the one before.
type textPart struct{ joint, text string }

// splitOutsideQuotes cuts text at the joints and leaves what is quoted whole.
func splitOutsideQuotes(text string, joints *regexp.Regexp) []textPart {
	quotes := quotation.FindAllStringIndex(text, -1)
	var parts []textPart
	from, joint := 0, ""
	for _, at := range joints.FindAllStringIndex(text, -1) {
		if slices.ContainsFunc(quotes, func(q []int) bool { return q[0] < at[0] && at[1] <= q[1] }) {
			continue
		}
		parts = append(parts, textPart{joint, text[from:at[0]]})
		from, joint = at[1], text[at[0]:at[1]]
	}
	return append(parts, textPart{joint, text[from:]})
}

// standsAlone reports whether c, which follows before and a connector, is a clause of
// its own.
func (c clause) standsAlone(before clause) bool {
	if c.sum != "" || c.tail != "" || c.quantity != nil || starting.MatchString(c.text) {
		return true
	}
	return before.place != nil && c.place != nil && len(strings.Fields(c.text)) <= 4
}

// What is not the subject of a clause.
var (
	commands = regexp.MustCompile(`(?i)^(?:search|look up|look for|find|show me|show|tell me|give me|explain|describe|write|run|make|create|start|call|use|translate|what(?:'s| is| are)|how (?:do|does|can|to)(?: i| you| it| one)?)\b\s*`)
	aboutIt  = regexp.MustCompile(`(?i)\b(?:about|regarding|concerning|for|on)\s+(.+)$`)
	manner   = regexp.MustCompile(`(?i)[\s,]+(?:with|using|in|taking|of)\s+\d+\s+\p{L}+(?:\s+of\s+\d+\s*ms)?`)
)

// subject is what the clause is about, for a parameter that takes free text: what
// follows "about" in a command, else the clause without its first words.
func (c clause) subject() string {
	if len(c.quoted) > 0 {
		return c.quoted[0]
	}
	s := leadWords.ReplaceAllString(c.text, "")
	s = strings.TrimRight(filler.ReplaceAllString(s, ""), " .?!")
	s = manner.ReplaceAllString(s, "")
	if m := aboutIt.FindStringSubmatch(s); m != nil && commands.MatchString(s) && !asking.MatchString(s) {
		return strings.TrimSpace(m[1])
	}
	if cut := strings.TrimSpace(commands.ReplaceAllString(s, "")); cut != "" {
		return cut
	}
	return c.text
}
