// Package mcptool describes the agent as one MCP tool: the schemas of the tool, the events of a run as
// progress messages, its interrupts as elicitations, and its end as the result of the call. It does
// not know the messages of the protocol; mcpserver does.
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

// The tool as the client and its model see it.
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

// Result is the result of a call.
type Result struct {
	Text       string // for the client's model
	Structured any    // as OutputSchema says
	IsError    bool
}

// Completed returns the result of a run that has its answer.
func Completed(r event.Run, f event.FinalAnswer) Result {
	return Result{Text: f.Answer, Structured: native.NewAnswer(r, f)}
}

// failure is the structured content of a call without an answer. The ids are those of the run, if
// there is one.
type failure struct {
	Error    any    `json:"error"` // a problem
	RunID    string `json:"run_id,omitempty"`
	ThreadID string `json:"thread_id,omitempty"`
	TraceID  string `json:"trace_id,omitempty"`
}

// Failed returns the result of a run that failed or did not start (r is then the zero value). problem
// is the problem document, and text the same in words.
func Failed(r event.Run, problem any, text string) Result {
	return Result{Text: text, Structured: failure{problem, r.ID, r.ThreadID, r.TraceID}, IsError: true}
}
