package demo

import (
	"errors"
	"regexp"
	"strings"
)

// wordOperators turn spoken arithmetic into signs, in this order.
var wordOperators = []struct {
	pattern *regexp.Regexp
	sign    string
}{
	{regexp.MustCompile(`(\d),(\d{3})\b`), "$1$2"},
	{regexp.MustCompile(`(?i)(\d)\s*(?:%|percent)\s+of\s+`), "$1 / 100 * "},
	{regexp.MustCompile(`(?i)\bsquare root of\s+(\d+(?:\.\d+)?)`), "$1 ^ 0.5"},
	{regexp.MustCompile(`(?i)\bmultiply\s+(?:(?:it|that|this|the result)\s+)?by\b`), " * "},
	{regexp.MustCompile(`(?i)\bdivide\s+(?:(?:it|that|this|the result)\s+)?by\b`), " / "},
	{regexp.MustCompile(`(?i)\badd\s+(\d+(?:\.\d+)?)\s+to\s+(?:it|that|this|the result)\b`), " + $1 "},
	{regexp.MustCompile(`(?i)\bsubtract\s+(\d+(?:\.\d+)?)\s+from\s+(?:it|that|this|the result)\b`), " - $1 "},
	{regexp.MustCompile(`(?i)\b(?:multiplied by|times)\b`), " * "},
	{regexp.MustCompile(`(?i)\bdivided by\b`), " / "},
	{regexp.MustCompile(`(?i)\bto the power of\b`), " ^ "},
	{regexp.MustCompile(`(?i)\bsquared\b`), " ^ 2 "},
	{regexp.MustCompile(`(?i)\bcubed\b`), " ^ 3 "},
	{regexp.MustCompile(`(?i)\bplus\b`), " + "},
	{regexp.MustCompile(`(?i)\bminus\b`), " - "},
	{regexp.MustCompile(`(?i)\b(?:mod|modulo)\b`), " % "},
	{regexp.MustCompile(`(?i)(\d)\s*x\s*(\d)`), "$1 * $2"},
}

// What may be an expression, and what only looks like one.
var (
	sumRun = regexp.MustCompile(`[\d.()+\-*/%^×÷·−–\s]+`)
	// notSums look like arithmetic and are dates, times and numbers of things.
	notSums  = regexp.MustCompile(`\d{4}-\d{2}-\d{2}\S*|\d+(?:-\d+){2,}|\d{1,2}:\d{2}\S*|[\p{L}_]+[-_/]\d[\w-]*`)
	joined   = regexp.MustCompile(`^\d+[-–/]\d+$`) // a range, a fraction or a sum
	asksSum  = regexp.MustCompile(`(?i)\b(?:what is|what's|how much|calculate|compute|evaluate|result|solve)\b|=`)
	sumSigns = "+-*/%^×÷·−–"
)

// findSum finds the longest arithmetic expression in text. rest is text without it
// and with spoken operators as signs, so that "times" is not taken for the time.
func findSum(text string) (expression, rest string) {
	for _, w := range wordOperators {
		text = w.pattern.ReplaceAllString(text, w.sign)
	}
	masked := notSums.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("_", len(s)) })
	for _, run := range sumRun.FindAllString(masked, 64) {
		e := tidySum(run)
		if len(e) <= len(expression) || !isSum(e) || (joined.MatchString(e) && e != strings.TrimSpace(text) && !asksSum.MatchString(text)) {
			continue
		}
		expression = e
	}
	if expression == "" {
		return "", text
	}
	return strings.Join(strings.Fields(expression), " "), strings.Replace(text, expression, " ", 1)
}

// tidySum takes off what belongs to the sentence: its full stop, loose signs.
func tidySum(run string) string {
	return strings.TrimLeft(strings.TrimRight(run, " \t\r\n."+sumSigns+"("), " \t\r\n.*/%^×÷·)+")
}

// isSum reports whether e is an expression that says more than one number. One that
// has no result, such as 1/0, still is one: the tool will say what is wrong.
func isSum(e string) bool {
	if len(e) > maxExpression || !strings.ContainsAny(strings.TrimLeft(e, "+-−– "), sumSigns) {
		return false
	}
	_, err := evaluate(e)
	return err == nil || errors.Is(err, errDivisionByZero) || errors.Is(err, errNotFinite)
}

// findTail recognises a text that goes on from an earlier result, such as "* 3". It
// is the operator with its operand, or "".
func findTail(text string) string {
	tail := strings.Join(strings.Fields(strings.TrimRight(text, " .?!=\n")), " ")
	if tail == "" || !strings.ContainsAny(tail[:1], "+-*/%^") || sumRun.FindString(tail) != tail {
		return ""
	}
	if !isSum("1 " + tail) {
		return ""
	}
	return tail
}
