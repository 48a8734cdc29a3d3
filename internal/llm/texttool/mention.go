package texttool

import (
	"encoding/json"
	"strings"

	"answerd/internal/llm"
)

// maxMentionText is up to which length an answer is searched for mentions of tools, in
// bytes: there may be very many tools, and a model that wrote that much did not stop
// because it lacked one.
const maxMentionText = 64 << 10

// negations are words of a sentence in which "use the X tool" is not an intention.
var negations = []string{" not ", "n't ", "n’t ", " never ", " without ", "cannot ", " avoid ", " no need ", " instead of ", " rather than ", " unable "}

// callMentioned makes calls of "use the X tool" and of near misses in an answer that contains no
// other call. Only a tool that needs no arguments is really called: guessing arguments would
// be worse than no call. Otherwise the call's arguments are what the model wrote, which is not
// JSON, so the call fails and its error shows the model the form of a call.
func (x *extractor) callMentioned() error {
	if len(x.calls) > 0 || x.auto || x.spoken.Len() == 0 || x.spoken.Len() > maxMentionText {
		return nil
	}
	// The whole answer is searched at once: whether a sentence is negated or a question
	// shows only at its end, and its text has been sent by then.
	answer := x.spoken.String()
	if last := lastLine(answer); strings.HasPrefix(last, firstLine("")) {
		for _, t := range x.tools {
			if last == firstLine(t.Name) && !needsArguments(t.Schema) {
				return x.addCall(writtenCall{t.Name, "{}"})
			}
		}
	}
	if miss, found := x.findNearMiss(answer); found {
		if x.reminders >= maxReminders {
			return nil
		}
		return x.addCall(miss)
	}
	return x.callUsed(plainText(answer))
}

// callUsed makes calls of the tools that text, in plain form, says will be used.
func (x *extractor) callUsed(text string) error {
	if !strings.Contains(text, "use the ") {
		return nil // the usual case, without a look at each tool
	}
	for _, t := range x.tools {
		phrase := usePhrase(t.Name)
		if len(x.calls) == llm.MaxCalls || !isIntended(text, phrase) {
			continue
		}
		arguments := "{}"
		if needsArguments(t.Schema) {
			if arguments = phrase; x.reminders >= maxReminders {
				continue
			}
		}
		if err := x.addCall(writtenCall{t.Name, arguments}); err != nil {
			return err
		}
	}
	return nil
}

// addCall emits a complete call.
func (x *extractor) addCall(c writtenCall) error {
	if err := x.startCall(c.name); err != nil {
		return err
	}
	if err := x.emitArguments(c.arguments); err != nil {
		return err
	}
	x.finishCall()
	return nil
}

// firstLine returns the first line of a call, as the prompt shows it.
func firstLine(tool string) string { return "TOOL: " + tool }

// lastLine returns the last line of text that is not empty, without marks around it.
func lastLine(text string) string {
	text = strings.Trim(text, whiteSpace+marks)
	return strings.Trim(text[strings.LastIndexByte(text, '\n')+1:], whiteSpace+marks)
}

// nameMarks removes the marks that models put around names.
var nameMarks = strings.NewReplacer("`", "", "*", "", `"`, "")

// plainText returns text in lower case, without the marks around names.
func plainText(text string) string { return strings.ToLower(nameMarks.Replace(text)) }

// usePhrase returns the phrase that counts as the intention to use a tool.
func usePhrase(tool string) string { return "use the " + strings.ToLower(tool) + " tool" }

// isIntended reports whether text contains phrase in a sentence that neither negates it
// nor is a question.
func isIntended(text, phrase string) bool {
	for offset := 0; ; {
		i := strings.Index(text[offset:], phrase)
		if i < 0 {
			return false
		}
		start := offset + i
		offset = start + len(phrase)
		sentence := strings.LastIndexAny(text[:start], ".!?\n") + 1
		end := strings.IndexAny(text[offset:], ".!?\n")
		question := end >= 0 && text[offset+end] == '?'
		if !question && !isNegated(" "+text[sentence:start]) {
			return true
		}
	}
}

// isNegated reports whether the beginning of a sentence, which starts with a blank, negates
// what follows.
func isNegated(beginning string) bool {
	for _, n := range negations {
		if strings.Contains(beginning, n) {
			return true
		}
	}
	return false
}

// needsArguments reports whether a schema requires any member, or cannot be read.
func needsArguments(schema json.RawMessage) bool {
	if len(schema) == 0 {
		return false
	}
	var s struct {
		Required []string `json:"required"`
	}
	return json.Unmarshal(schema, &s) != nil || len(s.Required) > 0
}
