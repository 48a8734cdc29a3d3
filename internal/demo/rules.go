package demo

import (
	"cmp"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// rule recognizes one kind of question. If its pattern matches, the tool is called with the result
// of arguments for the match. A nil result means that the question is of another kind. example is a
// question of that kind, for the help.
type rule struct {
	tool, example string
	pattern       *regexp.Regexp
	arguments     func(m []string) any
}

// args are the arguments of a call.
type args map[string]any

// Parts of patterns.
const (
	place = `([\pL_/' -]+)`
	sum   = `([-(\s]*\d[\d.]*(?:[\s()]*[-+*/][-\s(]*\d[\d.]*[\s)]*)+)`
)

// rules lists the kinds of questions that the stand-in recognizes. A question may match several.
var rules = []rule{
	{"current_time", "What time is it in Tokyo?", regexp.MustCompile(
		`(?i)\bwhat (?:time|day|date) is it(?: now| today)?(?: in ` + place + `)?|^and in ` + place), zoneArguments},
	{"calculate", "What is 12.5 * 8?", regexp.MustCompile(
		`(?i)\b(?:what is|what's|how much is|calculate|compute)\s+` + sum + `|^\s*` + sum + `[\s=?.!]*$`),
		func(m []string) any { return args{"expression": truncate(strings.TrimRight(m[1]+m[2], ". "), 200)} }},
	{"convert", "How much is 12 miles in km?", regexp.MustCompile(
		`(?i)(-?\d{1,15}(?:\.\d{1,15})?)\s*(°?\pL+|[€$£])\s+(?:in|to|into)\s+(°?\pL+|[€$£])`), conversionArguments},
	{"search_docs", "How do I resume a stream?", regexp.MustCompile(
		`(?i)\b(?:how|what|which|why|where|when|does|can|explain|search)\b[^.?!,]*\b(?:answerd|docs|resume|streams?|events?|runs?|tokens?|iam|jwt|mcp|approval|limits?|budgets?|tracing|metrics|settings|errors?)\b[^.?!]*`),
		func(m []string) any { return args{"query": truncate(m[0], 300)} }},
	{"slow_report", "Write a slow report about tea", regexp.MustCompile(
		`(?i)\breport (?:about|on) ([^.?!,]+?)(?: in (\d{1,4}) steps?)?(?: of (\d{1,6}) ?ms)?(?:[.?!,]|$)`), reportArguments},
	{"flaky_service", "Call the flaky service", regexp.MustCompile(`(?i)\bflaky service\b|^(?:please )?fail\b`), noArguments},
	{"list_notes", "Show my notes", regexp.MustCompile(`(?i)\b(?:show|list)\b[^.?!]*\bnotes\b`), noArguments},
	{"delete_note", "Delete note 2", regexp.MustCompile(`(?i)\b(?:delete|remove) (?:the )?note #?(\d{1,6})\b`),
		func(m []string) any { id, _ := strconv.Atoi(m[1]); return args{"id": id} }},
	{"book_table", "Book a table", regexp.MustCompile(`(?i)\b(?:book|reserve)\b[^.?!]*\btable\b`), noArguments},
	{"connect_calendar", "Connect my calendar", regexp.MustCompile(`(?i)\bconnect\b[^.?!]*\bcalendar\b`), noArguments},
	// Other tools are called by their name, which is the first group of this pattern.
	{"", `Use TOOL with {"name": "value"}`, regexp.MustCompile(`(?is)\b(?:use|call) (\S+) with (\{.*\})`), namedArguments},
}

// noArguments returns no arguments.
func noArguments([]string) any { return args{} }

// truncate returns at most n bytes of s, without white space around it.
func truncate(s string, n int) string {
	s = strings.TrimSpace(s)
	return strings.ToValidUTF8(s[:min(n, len(s))], "")
}

// namedArguments returns the JSON object that the question contains.
func namedArguments(m []string) any {
	if !json.Valid([]byte(m[2])) {
		return nil
	}
	return json.RawMessage(m[2])
}

// conversionArguments returns the arguments of convert. It returns nil unless both units exist: "3
// people in Rome" is not a conversion.
func conversionArguments(m []string) any {
	if _, _, err := findUnits(m[2], m[3]); err != nil {
		return nil
	}
	value, _ := strconv.ParseFloat(m[1], 64)
	return args{"value": value, "from": m[2], "to": m[3]}
}

// reportArguments returns the topic, and the number and length of steps if the question has them.
func reportArguments(m []string) any {
	given := args{"topic": truncate(m[1], 100)}
	for i, name := range []string{"steps", "step_ms"} {
		if n, err := strconv.Atoi(m[2+i]); err == nil {
			given[name] = n
		}
	}
	return given
}

// wordStart matches the letters that are in upper case in the name of a time zone.
var wordStart = regexp.MustCompile(`(?:^|_)\pL`)

// otherPlaces has large cities after which no time zone is named.
var otherPlaces = map[string]string{
	"osaka": "Asia/Tokyo", "beijing": "Asia/Shanghai", "delhi": "Asia/Kolkata", "milan": "Europe/Rome", "munich": "Europe/Berlin", "san francisco": "America/Los_Angeles",
}

// zoneArguments returns the time zone of the place that a question names. Without a place,
// current_time uses its default. For a place without a time zone it returns the place, which the
// tool refuses.
func zoneArguments(m []string) any {
	named, _, _ := strings.Cut(m[1]+m[2], " and ")
	words := strings.Fields(named)
	if len(words) == 0 {
		return args{}
	}
	for n := min(3, len(words)); n > 0; n-- {
		name := strings.Join(words[:n], " ")
		if zone := otherPlaces[strings.ToLower(name)]; zone != "" {
			return args{"time_zone": zone}
		}
		city := wordStart.ReplaceAllStringFunc(strings.ReplaceAll(strings.ToLower(name), " ", "_"), strings.ToUpper)
		for _, zone := range []string{name, "Europe/" + city, "America/" + city, "Asia/" + city, "Africa/" + city, "Australia/" + city, "Pacific/" + city} {
			if _, err := time.LoadLocation(zone); err == nil {
				return args{"time_zone": zone}
			}
		}
	}
	return args{"time_zone": truncate(named, 64)}
}

// followUp matches a question that continues a calculation: "And times two?". equals matches the value
// that was said before.
var (
	followUp = regexp.MustCompile(`(?i)^\s*(?:and|now|then|so)?[\s,]*(?:what is )?(?:(?:that|it)\s+)?(times|multiplied by|divided by|over|plus|minus|[-+*/×÷])\s*(-?\d+(?:\.\d+)?|` +
		strings.Join(numberWords, "|") + `)\s*[?.!]*\s*$`)
	equals     = regexp.MustCompile(`= (-?\d+(?:\.\d+)?)`)
	askedRecap = regexp.MustCompile(`(?i)\bwhat (?:did|have) I (?:just )?ask`)
)

// numberWords has the words of followUp for numbers, at the index that is their value.
var numberWords = []string{"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"}

// operators has the operator of calculate for each word or sign of followUp that is not one itself.
var operators = map[string]string{"times": "*", "multiplied by": "*", "×": "*", "divided by": "/", "over": "/", "÷": "/", "plus": "+", "minus": "-"}

// resolveFollowUp returns the whole question of one that continues a calculation whose value was said
// before, and other questions as they are.
func resolveFollowUp(question, value string) string {
	m := followUp.FindStringSubmatch(question)
	if m == nil || value == "" {
		return question
	}
	operand := strings.ToLower(m[2])
	if n := slices.Index(numberWords, operand); n >= 0 {
		operand = strconv.Itoa(n)
	}
	operator := strings.ToLower(m[1])
	return "What is " + value + " " + cmp.Or(operators[operator], operator) + " " + operand + "?"
}

// recapText answers the question what was asked before; "" for other questions.
func recapText(question string, asked []string) string {
	switch {
	case !askedRecap.MatchString(question):
		return ""
	case len(asked) == 0:
		return "This is your first question in this conversation."
	}
	text := "Before this you asked:"
	for _, earlier := range asked {
		line, _, _ := strings.Cut(strings.TrimSpace(earlier), "\n")
		text += "\n- " + truncate(line, 200)
	}
	return text
}

// planCalls returns the calls that a question needs, in its order and each once.
func planCalls(question string, offered []string) []call {
	question = truncate(question, 4000)
	at := make(map[call]int) // position of the call in the question
	for _, r := range rules {
		places := r.pattern.FindAllStringIndex(question, 8)
		for i, m := range r.pattern.FindAllStringSubmatch(question, 8) {
			tool := r.tool
			if tool == "" {
				tool = m[1]
			}
			// A server's prefix in the name of a tool is ignored.
			known := slices.IndexFunc(offered, func(name string) bool { return name == tool || strings.HasSuffix(name, "_"+tool) })
			if given := r.arguments(m); given != nil && known >= 0 {
				at[call{tool: offered[known], arguments: encodeJSON(given)}] = places[i][0]
			}
		}
	}
	return slices.SortedFunc(maps.Keys(at), func(a, b call) int {
		return cmp.Or(cmp.Compare(at[a], at[b]), cmp.Compare(a.tool, b.tool), cmp.Compare(a.arguments, b.arguments))
	})
}

// helpText returns examples of questions that these tools can answer.
func helpText(offered []string) string {
	if len(offered) == 0 {
		return "I was given no tools, and I know nothing by myself."
	}
	text := "I have no rule for this question, and I know nothing by myself. What I can do here:"
	for _, r := range rules {
		if r.tool == "" || len(planCalls(r.example, offered)) > 0 {
			text += "\n- " + r.example
		}
	}
	return text + "\n\nThe tools are " + strings.Join(offered[:min(len(offered), 20)], ", ") + "."
}
