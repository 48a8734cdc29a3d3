package texttool

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"answerd/internal/llm"
)

// maxReminders is how often in a conversation a near miss causes another turn that explains how to write a call. After
// that, a near miss counts as the answer. Otherwise an answer that explains the tools to the user would cause one turn
// after another.
const maxReminders = 2

// maxNearMiss is the largest part of an answer that is quoted because it resembles a call, in bytes.
const maxNearMiss = 512

// headerLine matches a line that begins like a call: "TOOL: name" in capitals, possibly quoted or marked, with nothing
// but parentheses after the name.
var headerLine = regexp.MustCompile("(?m)^[ \t>*#`-]*TOOL[ \t*`]*:[ \t*`\"']*([\\pL\\pM\\pN_./-]+)[*`\"'.]*[ \t]*(\\([^\n]*\\))?[ \t*`]*\r?$")

// findNearMiss returns a call for an answer that contains a near miss: a call in a form that no parser understands,
// such as "TOOL: x()", "> TOOL: x", "TOOL: x" followed by "ARGUMENTS: {…}", or only a tool's name. The call's arguments
// are the model's words, at most maxNearMiss bytes. They are not JSON, so the call fails, and its error shows the model
// how to write a call.
func (e *extractor) findNearMiss(answer string) (call writtenCall, found bool) {
	if m := headerLine.FindStringSubmatchIndex(answer); m != nil {
		name := strings.TrimRight(answer[m[2]:m[3]], "./")
		excerpt := strings.TrimSpace(answer[m[0]:])
		return writtenCall{name, cutText(excerpt, maxNearMiss)}, name != ""
	}
	bare := strings.Trim(answer, whiteSpace+marks+"\"'.")
	name, arguments, _ := strings.Cut(bare, "(")
	isClosed := arguments == "" || strings.HasSuffix(arguments, ")")
	isOneLine := !strings.Contains(arguments, "\n")
	if isClosed && isOneLine && e.tools.isKnown(name) {
		return writtenCall{name, cutText(bare, maxNearMiss)}, true
	}
	return writtenCall{}, false
}

// cutText returns at most the first limit bytes of text, without splitting a character.
func cutText(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "")
}

// isNearMiss reports whether call was made by findNearMiss or callUsed. text is the text of call's message, and
// contains the arguments of a call that findNearMiss made.
func isNearMiss(call llm.ToolCall, text string) bool {
	if isUseCall(call) {
		return true
	}
	if call.Arguments == "" || isObject(call.Arguments) || !strings.Contains(text, call.Arguments) {
		return false
	}
	return headerLine.MatchString(call.Arguments) || strings.HasPrefix(call.Arguments, call.Name)
}

// isUseCall reports whether call was made by callUsed, for a tool that needs arguments.
func isUseCall(call llm.ToolCall) bool { return call.Arguments == usePhrase(call.Name) }

// countReminders returns how many answers in the conversation were reported to the model as near misses.
func countReminders(messages []llm.Message) int {
	n := 0
	for _, m := range messages {
		if slices.ContainsFunc(m.Calls, func(c llm.ToolCall) bool { return isNearMiss(c, m.Text) }) {
			n++
		}
	}
	return n
}

// explainNearMiss returns an explanation for the model: why call, which isNearMiss reports, is not a call in the form of
// the prompt, and on which line of answer it is.
func explainNearMiss(call llm.ToolCall, answer string) string {
	if isUseCall(call) {
		return "You wrote that you use the tool " + call.Name + ", but that does not call it."
	}
	where := "Line " + lineNumber(answer, call.Arguments) + " of your answer is not a call: "
	first, rest, _ := strings.Cut(call.Arguments, "\n")
	second, _, _ := strings.Cut(rest, "\n")
	second = strings.TrimSpace(second)
	switch {
	case !headerLine.MatchString(call.Arguments):
		return where + "a tool's name alone does not call it."
	case strings.Contains(first, "("):
		return where + "only the tool's name may follow \"TOOL:\", and its arguments belong on the next line."
	case !strings.HasPrefix(strings.TrimLeft(first, whiteSpace), "TOOL"):
		return where + "it must begin with \"TOOL:\"."
	case second == "":
		return where + "the line \"PARAMETERS: {…}\" is missing after it."
	}
	return where + "the next line is " + strconv.Quote(cutText(second, 80)) + " where \"PARAMETERS: {…}\" must stand."
}

// lineNumber returns the number of the line of text on which part begins.
func lineNumber(text, part string) string {
	before, _, _ := strings.Cut(text, part)
	return strconv.Itoa(strings.Count(before, "\n") + 1)
}
