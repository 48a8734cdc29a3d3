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
	ownOutput                 bool // see HasOwnOutput
}

// HasOwnOutput reports whether the structured content of the tool's results is the agent's output (OutputResult), and
// not the answer document (CompletedResult).
func (t Tool) HasOwnOutput() bool { return t.ownOutput }

// AgentTool returns the tool of a named agent. schema is the output schema of the agent; nil if it has none. If the
// schema is of type object, which MCP requires of an output schema, it becomes that of the tool. A call of the tool
// then cannot ask for another output_schema: clients refuse a result that does not conform to the tool's output schema
// (MCP, server/tools, "Output Schema").
func AgentTool(id, description string, schema json.RawMessage) Tool {
	tool := Tool{Name: id, Title: "Ask " + id, Description: Description, InputSchema: InputSchema, OutputSchema: OutputSchema}
	if description != "" {
		tool.Description = description + " " + Description
	}
	var root struct {
		Type any `json:"type"`
	}
	if json.Unmarshal(schema, &root) == nil && root.Type == "object" {
		tool.InputSchema = withoutOutputSchema(InputSchema)
		tool.OutputSchema = schema
		tool.ownOutput = true
	}
	return tool
}

// withoutOutputSchema returns an input schema without the argument output_schema. It ignores errors, because input is
// InputSchema, which is part of the program.
func withoutOutputSchema(input json.RawMessage) json.RawMessage {
	var schema, properties map[string]json.RawMessage
	_ = json.Unmarshal(input, &schema)
	_ = json.Unmarshal(schema["properties"], &properties)
	delete(properties, "output_schema")
	schema["properties"], _ = json.Marshal(properties)
	without, _ := json.Marshal(schema)
	return without
}

// OutputResult returns the result of a run that has ended with f, for a tool with HasOwnOutput. It is an error if the
// answer has no output, because the result then does not conform to the tool's output schema.
func OutputResult(f event.FinalAnswer) Result {
	return Result{Text: f.Answer, Structured: f.Output, IsError: f.Output == nil}
}

// Decode decodes the arguments of a call. They are the members of POST /answer without background, because the result
// of a call is the run's answer, and without callback, because the model that writes the arguments must not choose a
// URL. The error is a *native.Invalid.
func Decode(arguments []byte) (agent.Request, error) {
	r, err := native.Decode(arguments)
	if err != nil {
		return r, err
	}
	switch {
	case r.Background:
		return r, refusedMember("/background")
	case r.Callback != "":
		return r, refusedMember("/callback")
	}
	return r, nil
}

// CheckOwnOutput returns a *native.Invalid if the request has an output schema. It is for tools with HasOwnOutput,
// whose output schema a call cannot replace.
func CheckOwnOutput(r agent.Request) error {
	if len(r.OutputSchema) == 0 {
		return nil
	}
	return native.NewInvalid("/output_schema", "the tool has an output schema of its own; use the tool "+Name+" with agent")
}

// refusedMember returns the error of a member that requests over HTTP may have, but calls of the tool may not.
func refusedMember(pointer string) error {
	return native.NewInvalid(pointer, "the result of a tool call is its answer; use POST /answer")
}

// Result is the result of a call.
type Result struct {
	Text       string // for the client's model
	Structured any    // the structured content, as the tool's output schema describes it; nil for none
	IsError    bool
}

// CompletedResult returns the result of a run that has ended with the answer f.
func CompletedResult(r event.Run, f event.FinalAnswer) Result {
	return Result{Text: f.Answer, Structured: native.NewAnswer(r, f)}
}

// failure is the structured content of a call that failed. The ids are those of the run, and "" if no run was started.
type failure struct {
	Error    any    `json:"error"` // a problem
	RunID    string `json:"run_id,omitempty"`
	ThreadID string `json:"thread_id,omitempty"`
	TraceID  string `json:"trace_id,omitempty"`
}

// FailedResult returns the result of a call whose run failed, or could not be started; r is then the zero value.
// problem is the problem document (RFC 9457), and text has the same content for the client's model. A failure is a
// result and not a JSON-RPC error, so that the model sees it and can react (MCP, server/tools, "Error Handling").
func FailedResult(r event.Run, problem any, text string) Result {
	return Result{Text: text, Structured: failure{Error: problem, RunID: r.ID, ThreadID: r.ThreadID, TraceID: r.TraceID}, IsError: true}
}
