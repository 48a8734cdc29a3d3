// Package mcptool is the agent as one MCP tool, in MCP's terms but not its messages: the
// schemas of the tool, an event as what the host's person is told meanwhile, what a run
// waits for as something to elicit, and the end of a run as a result.
//
//	req, err := mcptool.Decode(arguments)
//	told := mcptool.NewProgressReporter()
//	message, tell := told.Message(e)
//	q, ok := mcptool.ElicitationOf(interrupt)
//	result := mcptool.Completed(run, end)
package mcptool

import (
	_ "embed"
	"encoding/json"

	"answerd/internal/agent"
	"answerd/internal/api/native"
	"answerd/internal/event"
)

// What the tool is to the host and its model.
const (
	Name        = "answer"
	Title       = "Ask the agent"
	Description = "Asks an agent that has tools of its own a question, and returns its answer with what it did to find it. " +
		"Give it one whole question: it does not see the conversation, except for what is in history."
)

// InputSchema and OutputSchema are those of the tool. The output has one of three shapes:
// an answer, a run that waits for a person, or an error.
var (
	//go:embed input.schema.json
	InputSchema json.RawMessage
	//go:embed output.schema.json
	OutputSchema json.RawMessage
)

// Decode reads the arguments of a call: a native question. The error is a *native.Invalid.
func Decode(arguments []byte) (agent.Request, error) {
	r, err := native.Decode(arguments)
	if err == nil && r.Background {
		err = &native.Invalid{Errors: []native.FieldError{{Pointer: "/background", Detail: "the result of a tool call is its answer; use POST /answer"}}}
	}
	return r, err
}

// Result is the end of a call.
type Result struct {
	Text       string // for the host's model
	Structured any    // as OutputSchema says
	IsError    bool
}

// Completed returns the result of a run that has its answer.
func Completed(r event.Run, f event.FinalAnswer) Result {
	return Result{Text: f.Answer, Structured: native.NewAnswer(r, f)}
}

// failure is a result that is none. Run names the run, if there is one.
type failure struct {
	Error    any    `json:"error"` // a problem
	RunID    string `json:"run_id,omitempty"`
	ThreadID string `json:"thread_id,omitempty"`
	TraceID  string `json:"trace_id,omitempty"`
}

// Failed returns the result of a run that failed, or did not begin: r is the zero value then.
// problem is the problem document, and text says it in words.
func Failed(r event.Run, problem any, text string) Result {
	return Result{Text: text, Structured: failure{problem, r.ID, r.ThreadID, r.TraceID}, IsError: true}
}
