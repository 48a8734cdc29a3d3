package texttool

import (
	"encoding/json"
	"slices"
	"strings"

	"answerd/internal/llm"
)

// maxMentionText is the largest answer, in bytes, that is searched for mentions of tools. The search is limited because
// it compares every tool, and because a model that wrote a longer answer did not stop for lack of a tool.
const maxMentionText = 64 << 10

// negations are words that negate a sentence: after one of them, "use the X tool" does not express an intention.
var negations = []string{
	" not ", "n't ", "n’t ", " never ", " without ", "cannot ", " avoid ", " no need ", " instead of ", " rather than ", " unable ",
}

// callMentioned emits calls for tools that an answer without calls mentions as if it called them. It looks for a last
// line "TOOL: x", then for a near miss (findNearMiss), and then for the words "use the X tool" (callUsed). It does
// nothing with auto, or if the answer is longer than maxMentionText.
//
// Only a tool that needs no arguments is really called, because guessed arguments would be worse than no call. Other
// calls get the model's own words as arguments. These are not JSON, so the call fails, and its error shows the model
// how to write a call. A conversation has at most maxReminders such calls.
func (e *extractor) callMentioned() error {
	if e.auto || len(e.calls) > 0 {
		return nil
	}
	if size := e.answerText.Len(); size == 0 || size > maxMentionText {
		return nil
	}
	// Search the whole answer at once. Only the end of a sentence shows whether it is a question, and by then its text
	// was already sent.
	answer := e.answerText.String()
	if tool, found := strings.CutPrefix(lastLine(answer), toolLabel); found && !e.toolNeedsArguments(tool) {
		return e.addCall(writtenCall{tool, "{}"})
	}
	if nearMiss, found := e.findNearMiss(answer); found {
		if e.reminders >= maxReminders {
			return nil
		}
		return e.addCall(nearMiss)
	}
	return e.callUsed(plainText(answer))
}

// callUsed emits a call for each tool that text intends to use, as expressed by usePhrase. It stops at llm.MaxCalls
// calls. text is the answer as returned by plainText.
func (e *extractor) callUsed(text string) error {
	if !strings.Contains(text, "use the ") {
		return nil // the usual case, which avoids comparing each tool
	}
	for _, tool := range e.tools {
		phrase := usePhrase(tool.Name)
		if len(e.calls) == llm.MaxCalls || !intendsToUse(text, phrase) {
			continue
		}
		arguments := "{}"
		if needsArguments(tool.Schema) {
			if e.reminders >= maxReminders {
				continue
			}
			arguments = phrase // not JSON, so the call fails (see callMentioned)
		}
		if err := e.addCall(writtenCall{tool.Name, arguments}); err != nil {
			return err
		}
	}
	return nil
}

// addCall begins and completes a call. It emits the call's start and arguments. finishAnswer later emits the complete
// call.
func (e *extractor) addCall(c writtenCall) error {
	if err := e.startCall(c.name); err != nil {
		return err
	}
	if err := e.emitArguments(c.arguments); err != nil {
		return err
	}
	e.finishCall()
	return nil
}

// toolLabel precedes a tool's name in the first line of a call in the form of the prompt.
const toolLabel = "TOOL: "

// lastLine returns the last non-empty line of text, without the marks around it.
func lastLine(text string) string {
	text = strings.Trim(text, whiteSpace+marks)
	return strings.Trim(text[strings.LastIndexByte(text, '\n')+1:], whiteSpace+marks)
}

// nameMarks removes the marks that models put around names.
var nameMarks = strings.NewReplacer("`", "", "*", "", `"`, "")

// plainText returns text in lower case, without the marks around names.
func plainText(text string) string { return strings.ToLower(nameMarks.Replace(text)) }

// usePhrase returns the phrase that expresses the intention to use a tool.
func usePhrase(tool string) string { return "use the " + strings.ToLower(tool) + " tool" }

// intendsToUse reports whether the writer of text states the intention to use a tool. phrase expresses that intention
// (usePhrase), unless its sentence is a question or has a negation before the phrase.
func intendsToUse(text, phrase string) bool {
	const sentenceEnds = ".!?\n"
	for offset := 0; ; {
		i := strings.Index(text[offset:], phrase)
		if i < 0 {
			return false
		}
		before, after := text[:offset+i], text[offset+i+len(phrase):]
		offset = len(before) + len(phrase)
		beginning := before[strings.LastIndexAny(before, sentenceEnds)+1:]
		end := strings.IndexAny(after, sentenceEnds)
		isQuestion := end >= 0 && after[end] == '?'
		if !isQuestion && !isNegated(beginning) {
			return true
		}
	}
}

// isNegated reports whether the beginning of a sentence contains one of negations.
func isNegated(beginning string) bool {
	beginning = " " + beginning // most negations start with a space
	return slices.ContainsFunc(negations, func(negation string) bool { return strings.Contains(beginning, negation) })
}

// needsArguments reports whether a schema requires any member, or cannot be decoded.
func needsArguments(schema json.RawMessage) bool {
	if len(schema) == 0 {
		return false
	}
	var object struct{ Required []string }
	return json.Unmarshal(schema, &object) != nil || len(object.Required) > 0
}
