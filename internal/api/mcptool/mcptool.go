// Package mcptool describes the agent as one MCP tool: the schemas of the tool, the events of a
// run as progress messages, its interrupts as elicitations, and its end as the result of the call.
// It does not know the messages of the protocol; mcpserver does.
//
//	req, err := mcptool.Decode(arguments)
//	reporter := mcptool.NewProgressReporter()
//	message := reporter.MessageFor(e)           // "" if there is nothing to report
//	q := mcptool.ElicitationOf(interrupt)
//	input := mcptool.InputOf(interrupt, action, content)
//	result := mcptool.CompletedResult(run, end)
//
// The functions have no state. A ProgressReporter belongs to one call and is not safe for
// concurrent use.
package mcptool

import (
	_ "embed"
	"encoding/json"

	"answerd/internal/agent"
	"answerd/internal/api/native"
	"answerd/internal/event"
)

// Name, Title and Description are what tools/list says about the tool. The description is written
// for the model that decides when to call it.
const (
	Name        = "answer"
	Title       = "Ask the agent"
	Description = "Asks an agent that has tools of its own a question, and returns its answer with what it did to find it. " +
		"Give it one whole question: it does not see the conversation, except for what is in history, or in the thread that thread_id names."
)

// InputSchema and OutputSchema describe the arguments and the structured content of the tool
// (MCP, server/tools, "Output Schema"). The output has one of three forms: an answer, a run that is
// suspended for a person, or an error.
var (
	//go:embed input.schema.json
	InputSchema json.RawMessage
	//go:embed output.schema.json
	OutputSchema json.RawMessage
)

// Tool describes the tool of a named agent.
type Tool struct {
	Name, Title, Description  string
	InputSchema, OutputSchema json.RawMessage
	ownOutput                 bool
}

// HasOwnOutput reports whether the structured content is the agent's output, and not the answer document.
func (t Tool) HasOwnOutput() bool { return t.ownOutput }

// AgentTool returns the tool of a named agent. If the agent's answers are objects of a schema, that is the
// output schema: MCP wants one of type object. A call cannot ask for another schema then, because clients
// must refuse a result that does not conform to the output schema (MCP, server/tools, "Output Schema").
func AgentTool(id, description string, schema json.RawMessage) Tool {
	tool := Tool{Name: id, Title: "Ask " + id, Description: Description, InputSchema: InputSchema, OutputSchema: OutputSchema}
	if description != "" {
		tool.Description = description + " " + Description
	}
	var root struct {
		Type any `json:"type"`
	}
	if json.Unmarshal(schema, &root) == nil && root.Type == "object" {
		tool.InputSchema, tool.OutputSchema, tool.ownOutput = withoutOutputSchema(InputSchema), schema, true
	}
	return tool
}

// withoutOutputSchema returns an input schema without the argument output_schema.
func withoutOutputSchema(input json.RawMessage) json.RawMessage {
	var schema, properties map[string]json.RawMessage
	_ = json.Unmarshal(input, &schema) // cannot fail, as what follows: InputSchema is part of the program
	_ = json.Unmarshal(schema["properties"], &properties)
	delete(properties, "output_schema")
	schema["properties"], _ = json.Marshal(properties)
	without, _ := json.Marshal(schema)
	return without
}

// OutputResult returns the result of a run of an agent with an output schema.
func OutputResult(f event.FinalAnswer) Result {
	return Result{Text: f.Answer, Structured: f.Output, IsError: f.Output == nil}
}

// Decode decodes the arguments of a call, which are those of POST /answer. A run in the background and
// a callback are refused, because the result of a call is the run's answer, and because a model writes
// the arguments. The error is a *native.Invalid.
func Decode(arguments []byte) (agent.Request, error) {
	r, err := native.Decode(arguments)
	switch {
	case err != nil:
	case r.Background:
		err = refused("/background")
	case r.Callback != "":
		err = refused("/callback")
	}
	return r, err
}

// CheckOwnOutput returns an error if the request of a tool with an output schema of its own asks for another
// one. The error is a *native.Invalid.
func CheckOwnOutput(r agent.Request) error {
	if len(r.OutputSchema) == 0 {
		return nil
	}
	return &native.Invalid{Errors: []native.FieldError{{Pointer: "/output_schema", Detail: "the tool has an output schema of its own; use the tool " + Name + " with agent"}}}
}

// refused returns the error of a member that only HTTP requests may have.
func refused(pointer string) error {
	return &native.Invalid{Errors: []native.FieldError{{Pointer: pointer, Detail: "the result of a tool call is its answer; use POST /answer"}}}
}

// Result is the result of a call.
type Result struct {
	Text       string // for the client's model
	Structured any    // the structured content, as OutputSchema describes it
	IsError    bool
}

// CompletedResult returns the result of a run with an answer.
func CompletedResult(r event.Run, f event.FinalAnswer) Result {
	return Result{Text: f.Answer, Structured: native.NewAnswer(r, f)}
}

// failure is the structured content of a call without an answer. It has the ids of the run, if one
// was started.
type failure struct {
	Error    any    `json:"error"` // a problem
	RunID    string `json:"run_id,omitempty"`
	ThreadID string `json:"thread_id,omitempty"`
	TraceID  string `json:"trace_id,omitempty"`
}

// FailedResult returns the result of a run that failed, or that could not be started (then r is
// the zero value). problem is the problem document (RFC 9457), and text the same for the client's
// model. It is a result and not a JSON-RPC error, so that the model sees it and can react (MCP,
// server/tools, "Error Handling").
func FailedResult(r event.Run, problem any, text string) Result {
	return Result{Text: text, Structured: failure{problem, r.ID, r.ThreadID, r.TraceID}, IsError: true}
}
