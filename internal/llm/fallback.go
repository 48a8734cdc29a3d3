package llm

import (
	"encoding/json"
	"strings"
)

// maxSpoken is how long an answer may be that is searched for such words, in bytes: there
// may be very many tools, and who says that much has not stopped for want of one.
const maxSpoken = 64 << 10

// negations are words of a sentence in which "use the X tool" is no intention.
var negations = []string{" not ", "n't ", "n’t ", " never ", " without ", "cannot ", " avoid ", " no need ", " instead of ", " rather than ", " unable "}

// fallback makes calls of "use the X tool" in an answer in which nothing else was a
// call (S1.4). Only a tool that needs no arguments is called by it; a guess at arguments
// would be worse than no call. A tool that needs some gets the phrase itself for its
// arguments, which are no JSON: so the model is told what a call looks like. The same
// goes for an answer that ends with the first line of a call.
func (x *extractor) fallback() error {
	if len(x.calls) > 0 || x.said.Len() == 0 || x.said.Len() > maxSpoken {
		return nil
	}
	// All of the answer is searched at once: a sentence that is negated or a question shows
	// only at its end, and text has long gone out by then.
	said := plainSpeech(x.said.String())
	last := lastLine(x.said.String())
	if !strings.Contains(said, "use the ") && !strings.HasPrefix(last, firstLine("")) {
		return nil // as nearly always
	}
	for _, t := range x.tools {
		args := ""
		switch {
		case last == firstLine(t.Name):
			args = last
		case !strings.Contains(said, usePhrase(t.Name)) || !means(said, usePhrase(t.Name)):
		case needsArguments(t.Schema):
			args = usePhrase(t.Name)
		default:
			args = "{}"
		}
		if args == "" || args != "{}" && x.told || len(x.calls) == maxCalls {
			continue
		}
		if err := x.start(t.Name); err != nil {
			return err
		}
		if err := x.argument(args); err != nil {
			return err
		}
		x.finish()
	}
	return nil
}

// firstLine is a call's first line, as the prompt shows it.
func firstLine(tool string) string { return "TOOL: " + tool }

// lastLine is the last line of text that says anything, without marks.
func lastLine(text string) string {
	text = strings.Trim(text, whiteSpace+marks)
	return strings.Trim(text[strings.LastIndexByte(text, '\n')+1:], whiteSpace+marks)
}

// unfinished reports whether c is a call that only fallback saw, in words that are in
// the message's text already.
func unfinished(c ToolCall) bool {
	return c.Arguments == usePhrase(c.Name) || c.Arguments == firstLine(c.Name)
}

// nameMarks are what models put on names.
var nameMarks = strings.NewReplacer("`", "", "*", "", `"`, "")

// plainSpeech returns text in lower case, without the marks on names.
func plainSpeech(text string) string { return strings.ToLower(nameMarks.Replace(text)) }

// usePhrase is what counts as the intention to use a tool, as seed 001 has it.
func usePhrase(tool string) string { return "use the " + strings.ToLower(tool) + " tool" }

// means reports whether phrase stands in said in a sentence that neither negates it nor
// asks whether to.
func means(said, phrase string) bool {
	for rest := 0; ; {
		i := strings.Index(said[rest:], phrase)
		if i < 0 {
			return false
		}
		i += rest
		rest = i + len(phrase)
		begin := strings.LastIndexAny(said[:i], ".!?\n") + 1
		end := strings.IndexAny(said[rest:], ".!?\n")
		question := end >= 0 && said[rest+end] == '?'
		if !question && !negated(" "+said[begin:i]) {
			return true
		}
	}
}

// negated reports whether a sentence, up to the phrase and behind a blank, says no.
func negated(before string) bool {
	for _, n := range negations {
		if strings.Contains(before, n) {
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
