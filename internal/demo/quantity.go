package demo

import (
	"regexp"
	"strings"
)

// quantity is an amount to convert: "12 miles in km". The units are symbols where
// the unit table knows them and the question's own words where it does not.
type quantity struct {
	value    string // a number; "" for "it": what came before
	from, to string
	kind     string // what the units measure, or ""
}

// Pieces of the patterns below. A unit is one word or two: "US dollars".
const (
	numberPattern = `[-−]?\d[\d,]*(?:\.\d+)?`
	unitPattern   = `[°$€£¥\p{L}][°\p{L}\d]*(?:\s\p{L}+)?`
)

// The ways in which people ask for a conversion.
var (
	// "12 miles in km", "100 from EUR to USD", "it from miles to km"
	amountInUnit = regexp.MustCompile(`(?i)(` + numberPattern + `|\bit|\bthat|\bthis|\bthe result)\s*(?:from\s+)?(` + unitPattern + `)\s+(?:in|to|into|as)\s+(?:the\s+)?(` + unitPattern + `)`)
	// "how many km are (there in) 12 miles"
	unitsOfAmount = regexp.MustCompile(`(?i)how (?:many|much)\s+(` + unitPattern + `)\s+(?:are\s+|is\s+|make\s+)?(?:there\s+)?(?:in\s+)?(` + numberPattern + `)\s*(` + unitPattern + `)`)
	// "$100" is how people write 100 $
	moneySign     = regexp.MustCompile(`([$€£¥])\s?(` + numberPattern + `)`)
	asksToConvert = regexp.MustCompile(`(?i)\bconver(?:t|ting|sion)\b`)
)

// findQuantity finds a conversion in text, and gives text without it. Units that the
// table doesn't know are believed only of someone who says "convert": otherwise any
// "3 people in Rome" would be one.
func findQuantity(text string) (*quantity, string) {
	text = moneySign.ReplaceAllString(text, "$2 $1")
	var q quantity
	span := amountInUnit.FindStringSubmatchIndex(text)
	if span != nil {
		q = quantity{value: text[span[2]:span[3]], from: text[span[4]:span[5]], to: text[span[6]:span[7]]}
	} else if span = unitsOfAmount.FindStringSubmatchIndex(text); span != nil {
		q = quantity{value: text[span[4]:span[5]], from: text[span[6]:span[7]], to: text[span[2]:span[3]]}
	} else {
		return nil, text
	}
	if strings.ContainsAny(q.value, "0123456789") {
		q.value = plainNumber(q.value)
	} else {
		q.value = ""
	}
	q.from, q.to = knownUnit(q.from), knownUnit(q.to)
	f, t, err := unitPair(q.from, q.to)
	if err == nil {
		q.from, q.to, q.kind = f.symbol, t.symbol, f.kind
	} else if !asksToConvert.MatchString(text) {
		return nil, text
	}
	return &q, text[:span[0]] + " " + text[span[1]:]
}

// knownUnit cuts the second word off a unit unless the two are one unit's name:
// "km please" is km, "us dollars" is not "us".
func knownUnit(name string) string {
	if first, _, two := strings.Cut(name, " "); two && len(findUnits(name)) == 0 {
		return first
	}
	return name
}

// plainNumber is a number as JSON writes it: without thousands commas.
func plainNumber(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, ",", ""), "−", "-")
}
