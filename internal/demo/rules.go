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

// rule recognizes one kind of question and chooses the tool that answers it.
type rule struct {
	tool    string         // name without a server's prefix; "" if the first group of pattern has the name
	example string         // a question of this kind, for the help text
	pattern *regexp.Regexp // matches questions of this kind
	// arguments returns the arguments of the call, as a value for encodeJSON. groups is the match of pattern, followed
	// by its groups. arguments returns nil if the question is of another kind although pattern matches.
	arguments func(groups []string) any
}

// args holds the arguments of a call.
type args map[string]any

// place is the part of a pattern that matches the name of a place.
const place = `([\pL_/' -]+)`

// sum is the part of a pattern that matches an arithmetic expression.
const sum = `([-(\s]*\d[\d.]*(?:[\s()]*[-+*/][-\s(]*\d[\d.]*[\s)]*)+)`

// rules lists the kinds of questions that the stand-in recognizes. A question may match several.
var rules = []rule{
	{"current_time", "What time is it in Tokyo?", regexp.MustCompile(
		`(?i)\bwhat (?:time|day|date) is it(?: now| today)?(?: in ` + place + `)?|^and in ` + place), zoneArguments},
	{"calculate", "What is 12.5 * 8?", regexp.MustCompile(
		`(?i)\b(?:what is|what's|how much is|calculate|compute)\s+` + sum + `|^\s*` + sum + `[\s=?.!]*$`),
		func(groups []string) any {
			return args{"expression": truncate(strings.TrimRight(groups[1]+groups[2], ". "), 200)}
		}},
	{"convert", "How much is 12 miles in km?", regexp.MustCompile(
		`(?i)(-?\d{1,15}(?:\.\d{1,15})?)\s*(°?\pL+|[€$£])\s+(?:in|to|into)\s+(°?\pL+|[€$£])`), conversionArguments},
	{"search_docs", "How do I resume a stream?", regexp.MustCompile(
		`(?i)\b(?:how|what|which|why|where|when|does|can|explain|search)\b[^.?!,]*\b(?:answerd|docs|resume|streams?|events?|runs?|tokens?|iam|jwt|mcp|approval|limits?|budgets?|tracing|metrics|settings|errors?)\b[^.?!]*`),
		func(groups []string) any { return args{"query": truncate(groups[0], 300)} }},
	{"slow_report", "Write a slow report about tea", regexp.MustCompile(
		`(?i)\breport (?:about|on) ([^.?!,]+?)(?: in (\d{1,4}) steps?)?(?: of (\d{1,6}) ?ms)?(?:[.?!,]|$)`), reportArguments},
	{"flaky_service", "Call the flaky service", regexp.MustCompile(`(?i)\bflaky service\b|^(?:please )?fail\b`), noArguments},
	{"list_notes", "Show my notes", regexp.MustCompile(`(?i)\b(?:show|list)\b[^.?!]*\bnotes\b`), noArguments},
	{"delete_note", "Delete note 2", regexp.MustCompile(`(?i)\b(?:delete|remove) (?:the )?note #?(\d{1,6})\b`),
		noteArguments},
	{"book_table", "Book a table", regexp.MustCompile(`(?i)\b(?:book|reserve)\b[^.?!]*\btable\b`), noArguments},
	{"connect_calendar", "Connect my calendar", regexp.MustCompile(`(?i)\bconnect\b[^.?!]*\bcalendar\b`), noArguments},
	// This rule is for all other tools. The question names the tool, in the first group of the pattern.
	{"", `Use TOOL with {"name": "value"}`, regexp.MustCompile(`(?is)\b(?:use|call) (\S+) with (\{.*\})`), namedArguments},
}

// noArguments is the arguments function for tools without arguments.
func noArguments([]string) any { return args{} }

// truncate trims white space around s and returns at most n bytes of the rest. It does not cut a character in two.
func truncate(s string, n int) string {
	s = strings.TrimSpace(s)
	return strings.ToValidUTF8(s[:min(n, len(s))], "")
}

// namedArguments returns the JSON object that follows the name of the tool, or nil if it is not valid JSON.
func namedArguments(groups []string) any {
	if !json.Valid([]byte(groups[2])) {
		return nil
	}
	return json.RawMessage(groups[2])
}

// noteArguments returns the argument of delete_note.
func noteArguments(groups []string) any {
	id, _ := strconv.Atoi(groups[1]) // cannot fail: the group has one to six digits
	return args{"id": id}
}

// conversionArguments returns the arguments of convert. It returns nil unless both units exist and are of the same
// kind, because "3 people in Rome" is not a conversion.
func conversionArguments(groups []string) any {
	number, from, to := groups[1], groups[2], groups[3]
	if _, _, err := findUnits(from, to); err != nil {
		return nil
	}
	value, _ := strconv.ParseFloat(number, 64) // cannot fail: the group has the form of a number
	return args{"value": value, "from": from, "to": to}
}

// reportArguments returns the arguments of slow_report: the topic, and the number and duration of the steps if the
// question names them.
func reportArguments(groups []string) any {
	arguments := args{"topic": truncate(groups[1], 100)}
	if steps, err := strconv.Atoi(groups[2]); err == nil {
		arguments["steps"] = steps
	}
	if milliseconds, err := strconv.Atoi(groups[3]); err == nil {
		arguments["step_ms"] = milliseconds
	}
	return arguments
}

// wordStart matches the letters that a time zone name has in upper case.
var wordStart = regexp.MustCompile(`(?:^|_)\pL`)

// cityZones maps large cities, in lower case, to their time zones. It has only cities that no time zone is named after.
var cityZones = map[string]string{
	"osaka": "Asia/Tokyo", "beijing": "Asia/Shanghai", "delhi": "Asia/Kolkata", "milan": "Europe/Rome", "munich": "Europe/Berlin", "san francisco": "America/Los_Angeles",
}

// zoneArguments returns the arguments of current_time. It looks for the time zone of the place in the question, and
// takes at most three words as the name of the place. Without a place it returns no arguments, so that current_time
// uses its default. For an unknown place it returns the place itself as the time zone, so that the tool's error names
// the place.
func zoneArguments(groups []string) any {
	placeName, _, _ := strings.Cut(groups[1]+groups[2], " and ") // one of the two groups is empty
	words := strings.Fields(placeName)
	if len(words) == 0 {
		return args{}
	}
	for n := min(3, len(words)); n > 0; n-- {
		if zone := zoneOf(strings.Join(words[:n], " ")); zone != "" {
			return args{"time_zone": zone}
		}
	}
	return args{"time_zone": truncate(placeName, 64)}
}

// zoneOf returns the IANA time zone of place, or "" if it does not know the place. place may also be the name of a time
// zone.
func zoneOf(place string) string {
	if zone := cityZones[strings.ToLower(place)]; zone != "" {
		return zone
	}
	city := wordStart.ReplaceAllStringFunc(strings.ReplaceAll(strings.ToLower(place), " ", "_"), strings.ToUpper)
	for _, zone := range []string{place, "Europe/" + city, "America/" + city, "Asia/" + city, "Africa/" + city, "Australia/" + city, "Pacific/" + city} {
		if _, err := time.LoadLocation(zone); err == nil {
			return zone
		}
	}
	return ""
}

// followUp matches a question that continues a calculation, such as "And times two?".
var followUp = regexp.MustCompile(`(?i)^\s*(?:and|now|then|so)?[\s,]*(?:what is )?(?:(?:that|it)\s+)?(times|multiplied by|divided by|over|plus|minus|[-+*/×÷])\s*(-?\d+(?:\.\d+)?|` +
	strings.Join(numberWords, "|") + `)\s*[?.!]*\s*$`)

// resultValue matches the result of calculate in an earlier message.
var resultValue = regexp.MustCompile(`= (-?\d+(?:\.\d+)?)`)

// askedRecap matches a question about the earlier questions.
var askedRecap = regexp.MustCompile(`(?i)\bwhat (?:did|have) I (?:just )?ask`)

// numberWords lists the words for numbers that followUp accepts. The index of a word is its value.
var numberWords = []string{"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"}

// operators maps the words and signs of followUp to operators of calculate, except those that are such operators
// already.
var operators = map[string]string{"times": "*", "multiplied by": "*", "×": "*", "divided by": "/", "over": "/", "÷": "/", "plus": "+", "minus": "-"}

// resolveFollowUp rewrites a follow-up question so that it can be answered without the conversation. With the value 6,
// "And times two?" becomes "What is 6 * 2?". It returns all other questions unchanged, and every question if value is
// "".
func resolveFollowUp(question, value string) string {
	groups := followUp.FindStringSubmatch(question)
	if groups == nil || value == "" {
		return question
	}
	operator, operand := strings.ToLower(groups[1]), strings.ToLower(groups[2])
	if number := slices.Index(numberWords, operand); number >= 0 {
		operand = strconv.Itoa(number)
	}
	return "What is " + value + " " + cmp.Or(operators[operator], operator) + " " + operand + "?"
}

// recapText returns the answer to a question about the earlier questions of the conversation. It returns "" if question
// is of another kind.
func recapText(question string, earlierQuestions []string) string {
	switch {
	case !askedRecap.MatchString(question):
		return ""
	case len(earlierQuestions) == 0:
		return "This is your first question in this conversation."
	}
	text := "Before this you asked:"
	for _, earlier := range earlierQuestions {
		line, _, _ := strings.Cut(strings.TrimSpace(earlier), "\n")
		text += "\n- " + truncate(line, 200)
	}
	return text
}

// planCalls returns the calls that the rules derive from question, in the order in which they occur in it. offered
// lists the names of the tools that may be called. The calls have no ids yet, and no two are equal. planCalls reads at
// most the first 4000 bytes of the question and maxMatches matches of each rule.
func planCalls(question string, offered []string) []call {
	const maxMatches = 8
	question = truncate(question, 4000)
	positions := make(map[call]int) // byte offset of each call in the question
	for _, r := range rules {
		offsets := r.pattern.FindAllStringIndex(question, maxMatches)
		for i, groups := range r.pattern.FindAllStringSubmatch(question, maxMatches) {
			tool := r.tool
			if tool == "" {
				tool = groups[1]
			}
			name := offeredName(offered, tool)
			if arguments := r.arguments(groups); arguments != nil && name != "" {
				positions[call{tool: name, arguments: encodeJSON(arguments)}] = offsets[i][0]
			}
		}
	}
	return slices.SortedFunc(maps.Keys(positions), func(a, b call) int {
		return cmp.Or(cmp.Compare(positions[a], positions[b]), cmp.Compare(a.tool, b.tool), cmp.Compare(a.arguments, b.arguments))
	})
}

// offeredName returns the name under which tool is offered, which may begin with a server's prefix. It returns "" if the
// tool is not offered.
func offeredName(offered []string, tool string) string {
	for _, name := range offered {
		if name == tool || strings.HasSuffix(name, "_"+tool) {
			return name
		}
	}
	return ""
}

// helpText answers a question that no rule recognizes: with example questions for the offered tools, and the names of
// up to 20 of these tools.
func helpText(offered []string) string {
	if len(offered) == 0 {
		return "I was given no tools, and I know nothing by myself."
	}
	text := "I have no rule for this question, and I know nothing by myself. What I can do here:"
	for _, r := range rules {
		// Always show the example of the rule for all other tools: it names no real tool, so planCalls finds none.
		if r.tool == "" || len(planCalls(r.example, offered)) > 0 {
			text += "\n- " + r.example
		}
	}
	return text + "\n\nThe tools are " + strings.Join(offered[:min(len(offered), 20)], ", ") + "."
}
