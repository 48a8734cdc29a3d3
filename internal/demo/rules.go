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

// rule recognizes one kind of question and says which tool answers it.
type rule struct {
	tool    string         // without a server's prefix; "" if the first group of pattern names it
	example string         // a question of this kind, for the help
	pattern *regexp.Regexp // matches questions of this kind
	// arguments returns the arguments of the call, which can be encoded as JSON. m has the match of pattern and its
	// groups. nil means that the question is of another kind although pattern matches.
	arguments func(m []string) any
}

// args are the arguments of a call.
type args map[string]any

// Parts of patterns: the name of a place, and an arithmetic expression.
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

// noArguments returns the arguments of a tool that has none.
func noArguments([]string) any { return args{} }

// truncate returns at most n bytes of s without the white space around s. It does not cut a character in two.
func truncate(s string, n int) string {
	s = strings.TrimSpace(s)
	return strings.ToValidUTF8(s[:min(n, len(s))], "")
}

// namedArguments returns the JSON object after the name of the tool. It returns nil if that is not JSON.
func namedArguments(m []string) any {
	if !json.Valid([]byte(m[2])) {
		return nil
	}
	return json.RawMessage(m[2])
}

// conversionArguments returns the arguments of convert. It returns nil unless both units exist and are of the same
// kind: "3 people in Rome" is not a conversion.
func conversionArguments(m []string) any {
	if _, _, err := findUnits(m[2], m[3]); err != nil {
		return nil
	}
	value, _ := strconv.ParseFloat(m[1], 64)
	return args{"value": value, "from": m[2], "to": m[3]}
}

// reportArguments returns the arguments of slow_report: the topic, and the number and duration of the steps if the
// question has them.
func reportArguments(m []string) any {
	arguments := args{"topic": truncate(m[1], 100)}
	for i, name := range []string{"steps", "step_ms"} {
		if n, err := strconv.Atoi(m[2+i]); err == nil {
			arguments[name] = n
		}
	}
	return arguments
}

// wordStart matches the letters that are in upper case in the name of a time zone.
var wordStart = regexp.MustCompile(`(?:^|_)\pL`)

// cityZones has the time zones of large cities that are not part of a zone's name, by the city in lower case.
var cityZones = map[string]string{
	"osaka": "Asia/Tokyo", "beijing": "Asia/Shanghai", "delhi": "Asia/Kolkata", "milan": "Europe/Rome", "munich": "Europe/Berlin", "san francisco": "America/Los_Angeles",
}

// zoneArguments returns the arguments of current_time for the groups that the rule's pattern has matched. They have the
// time zone of the place in the question, whose name is taken to have at most three words. Without a place there are no
// arguments, and current_time uses its default. If no time zone is found, the arguments have the place itself, so that
// the tool's error names it.
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

// zoneOf returns the IANA time zone of a place, which may also be the name of a time zone. It returns "" for a place that
// it does not know.
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

// followUp matches a question that continues a calculation, such as "And times two?". resultValue matches the value
// that calculate gave in an earlier message. askedRecap matches the question what was asked before.
var (
	followUp = regexp.MustCompile(`(?i)^\s*(?:and|now|then|so)?[\s,]*(?:what is )?(?:(?:that|it)\s+)?(times|multiplied by|divided by|over|plus|minus|[-+*/×÷])\s*(-?\d+(?:\.\d+)?|` +
		strings.Join(numberWords, "|") + `)\s*[?.!]*\s*$`)
	resultValue = regexp.MustCompile(`= (-?\d+(?:\.\d+)?)`)
	askedRecap  = regexp.MustCompile(`(?i)\bwhat (?:did|have) I (?:just )?ask`)
)

// numberWords has the words of followUp for numbers, at the index that is their value.
var numberWords = []string{"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"}

// operators has the operator of calculate for each word or sign of followUp that is not one itself.
var operators = map[string]string{"times": "*", "multiplied by": "*", "×": "*", "divided by": "/", "over": "/", "÷": "/", "plus": "+", "minus": "-"}

// resolveFollowUp returns a question that can be answered without the conversation: with the value 6, "And times two?"
// becomes "What is 6 * 2?". It returns other questions unchanged, and every question if value is "".
func resolveFollowUp(question, value string) string {
	m := followUp.FindStringSubmatch(question)
	if m == nil || value == "" {
		return question
	}
	operator := strings.ToLower(m[1])
	operand := strings.ToLower(m[2])
	if n := slices.Index(numberWords, operand); n >= 0 {
		operand = strconv.Itoa(n)
	}
	return "What is " + value + " " + cmp.Or(operators[operator], operator) + " " + operand + "?"
}

// recapText returns the answer to a question about the earlier questions of the conversation. It returns "" for every
// question of another kind.
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

// planCalls returns the calls that the rules derive from a question, in the order in which the question has them.
// offered has the names of the tools that may be called. Equal calls are made once. Calls have no id yet. Only the
// first 4000 bytes of the question count, and at most maxMatches matches of each rule.
func planCalls(question string, offered []string) []call {
	const maxMatches = 8
	question = truncate(question, 4000)
	positions := make(map[call]int) // of calls in the question
	for _, r := range rules {
		offsets := r.pattern.FindAllStringIndex(question, maxMatches)
		for i, groups := range r.pattern.FindAllStringSubmatch(question, maxMatches) {
			tool := r.tool
			if tool == "" {
				tool = groups[1]
			}
			name, isOffered := offeredName(offered, tool)
			if arguments := r.arguments(groups); arguments != nil && isOffered {
				positions[call{tool: name, arguments: encodeJSON(arguments)}] = offsets[i][0]
			}
		}
	}
	return slices.SortedFunc(maps.Keys(positions), func(a, b call) int {
		return cmp.Or(cmp.Compare(positions[a], positions[b]), cmp.Compare(a.tool, b.tool), cmp.Compare(a.arguments, b.arguments))
	})
}

// offeredName returns the name under which a tool is offered, which may begin with a server's prefix. ok is false if the
// tool is not offered.
func offeredName(offered []string, tool string) (name string, ok bool) {
	i := slices.IndexFunc(offered, func(name string) bool { return name == tool || strings.HasSuffix(name, "_"+tool) })
	if i < 0 {
		return "", false
	}
	return offered[i], true
}

// helpText returns the answer to a question that no rule recognizes: examples of questions for the offered tools, and
// the names of up to 20 of them.
func helpText(offered []string) string {
	if len(offered) == 0 {
		return "I was given no tools, and I know nothing by myself."
	}
	text := "I have no rule for this question, and I know nothing by myself. What I can do here:"
	for _, r := range rules {
		// The rule without a tool is for tools of any name. For its example there is no tool.
		if r.tool == "" || len(planCalls(r.example, offered)) > 0 {
			text += "\n- " + r.example
		}
	}
	return text + "\n\nThe tools are " + strings.Join(offered[:min(len(offered), 20)], ", ") + "."
}
