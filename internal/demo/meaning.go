package demo

// meaning is what a parameter wants, guessed from its name, format and description.
type meaning int

// What the stand-in can find in a question.
const (
	meansOther meaning = iota
	meansZone
	meansExpression
	meansFrom // the unit to convert from
	meansTo
	meansAmount // the number to convert
	meansID
	meansPlace
	meansDate
	meansEmail
	meansURL
	meansQuery // free text: what the question is about
)

// meaning guesses. The order matters: a name says more than a description, and a
// special format more than both.
func (p param) meaning() meaning {
	switch {
	case p.format == "email" || p.hasWord("email", "mail"):
		return meansEmail
	case p.format == "uri" || p.hasWord("url", "uri", "link"):
		return meansURL
	case p.format == "date" || p.format == "date-time" || p.hasWord("date"):
		return meansDate
	case p.is("number", "integer") && p.hasWord("value", "amount", "quantity"):
		return meansAmount
	case !p.is("string"):
		if p.hasWord("id", "number", "no") {
			return meansID
		}
		return meansOther
	case p.hasWord("zone", "timezone", "tz") || p.speaksOf("iana") || p.speaksOf("time zone"):
		return meansZone
	case p.hasWord("expression", "expr", "formula", "equation") || p.speaksOf("arithmetic expression"):
		return meansExpression
	case p.hasWord("from", "source", "base"):
		return meansFrom
	case p.hasWord("to", "target"):
		return meansTo
	case p.hasWord("id", "number", "code", "key", "ref", "reference", "sku", "uuid"):
		return meansID
	case p.hasWord("city", "location", "place", "town", "country", "region", "destination"):
		return meansPlace
	case p.hasWord("query", "question", "q", "search", "keyword", "keywords", "text", "topic", "prompt", "message",
		"input", "content", "body", "subject", "title", "term", "terms", "task", "reason", "comment"):
		return meansQuery
	}
	return meansOther
}

// param finds the parameter of t that means m.
func (t tool) param(m meaning) (param, bool) {
	for _, p := range t.params {
		if p.means == m {
			return p, true
		}
	}
	return param{}, false
}

// converts reports whether t can be given a quantity and a unit.
func (t tool) converts() bool {
	_, amount := t.param(meansAmount)
	_, from := t.param(meansFrom)
	_, to := t.param(meansTo)
	return amount && from && to
}
