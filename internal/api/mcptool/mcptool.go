// Package mcptool presents the agent as an MCP tool: it has the tool's schemas, and converts a run's events to progress
// messages, its interrupts to elicitations, and its end to the result of the call. Package mcpserver implements the
// messages of the protocol, which this package does not know.
//
//	req, err := mcptool.Decode(arguments)
//	reporter := mcptool.NewProgressReporter()
//	message := reporter.MessageFor(e)           // "" if there is nothing to report
//	q := mcptool.ElicitationOf(interrupt)
//	input := mcptool.InputOf(interrupt, action, content)
//	result := mcptool.CompletedResult(run, end)
//
// The functions have no state. A ProgressReporter belongs to one call and is not safe for concurrent use.
package mcptool

import (
	_ "embed"
	"encoding/json"

	"answerd/internal/agent"
	"answerd/internal/api/native"
	"answerd/internal/event"
)

// Name, Title and Description describe the tool in tools/list. The description is written for the model that decides
// when to call it.
const (
	Name        = "answer"
	Title       = "Ask the agent"
	Description = "Asks an agent that has tools of its own a question, and returns its answer with what it did to find it. " +
		"Give it one whole question: it does not see the conversation, except for what is in history, or in the thread that thread_id names."
)

// InputSchema and OutputSchema describe the tool's arguments and structured content (MCP, server/tools, "Output
// Schema"). The output is an answer, a run that is suspended for a person, or an error.
var (
	//go:embed input.schema.json
	InputSchema json.RawMessage
	//go:embed output.schema.json
	OutputSchema json.RawMessage
)

// Tool describes the tool of a named agent. It has the same fields as mcpserver.Tool, so that the API can convert it.
type Tool struct {
	Name, Title, Description  string
	InputSchema, OutputSchema json.RawMessage
}

// AgentTool returns the tool of a named agent. schema is the agent's output schema; nil if it has none. If the schema's
// type is object, which MCP requires of an output schema, it becomes the tool's output schema, and hasOwnOutput is
// true: the structured content of the tool's results is the agent's output (OutputResult) instead of the answer document
// (CompletedResult). A call then cannot ask for another output_schema, because clients refuse a result that does not
// conform to the tool's (MCP, server/tools, "Output Schema").
func AgentTool(id, description string, schema json.RawMessage) (tool Tool, hasOwnOutput bool) {
	tool = Tool{Name: id, Title: "Ask " + id, Description: Description, InputSchema: InputSchema, OutputSchema: OutputSchema}
	if description != "" {
		tool.Description = description + " " + Description
	}
	var root struct {
		Type any `json:"type"`
	}
	hasOwnOutput = json.Unmarshal(schema, &root) == nil && root.Type == "object"
	if hasOwnOutput {
		tool.InputSchema = withoutOutputSchema(InputSchema)
		tool.OutputSchema = schema
	}
	return tool, hasOwnOutput
}

// withoutOutputSchema returns input without the argument output_schema. Errors are ignored, because input is always
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

// OutputResult returns the result of a run that ended with f, for a tool that hasOwnOutput. IsError is set if the
// answer has no output, because the result then does not conform to the tool's output schema.
func OutputResult(f event.FinalAnswer) Result {
	if f.Output == nil { // it must not be assigned to Structured, which would then be null in JSON
		return Result{Text: f.Answer, IsError: true}
	}
	return Result{Text: f.Answer, Structured: f.Output}
}

// Decode decodes a call's arguments. They are the members of POST /answer except for background, because a call's
// result is the run's answer, and callback, because the model that writes the arguments must not choose a URL. The
// error is a *native.Invalid.
func Decode(arguments []byte) (agent.Request, error) {
	r, err := native.Decode(arguments)
	if err != nil {
		return r, err
	}
	const reason = "the result of a tool call is its answer; use POST /answer"
	switch {
	case r.Background:
		return r, native.NewInvalid("/background", reason)
	case r.Callback != "":
		return r, native.NewInvalid("/callback", reason)
	}
	return r, nil
}

// CheckOwnOutput returns a *native.Invalid if r has an output schema. A call of a tool that hasOwnOutput cannot replace
// the tool's schema.
func CheckOwnOutput(r agent.Request) error {
	if len(r.OutputSchema) == 0 {
		return nil
	}
	return native.NewInvalid("/output_schema", "the tool has an output schema of its own; use the tool "+Name+" with agent")
}

// Result is the result of a call.
type Result struct {
	Text       string // for the client's model
	Structured any    // the structured content, which conforms to the tool's output schema; nil if there is none
	IsError    bool
}

// CompletedResult returns the result of the run r, which has ended with the answer f.
func CompletedResult(r event.Run, f event.FinalAnswer) Result {
	return Result{Text: f.Answer, Structured: native.NewAnswer(r, f)}
}

// failure is the structured content of a call that failed. The ids are those of its run, or "" if no run was started.
type failure struct {
	Error    any    `json:"error"` // a problem
	RunID    string `json:"run_id,omitempty"`
	ThreadID string `json:"thread_id,omitempty"`
	TraceID  string `json:"trace_id,omitempty"`
}

// FailedResult returns the result of a call whose run r failed; r is the zero value if the run could not be started.
// problem is the problem document (RFC 9457), and text says the same for the client's model. A failure is a result and
// not a JSON-RPC error, so that the model sees it and can react (MCP, server/tools, "Error Handling").
func FailedResult(r event.Run, problem any, text string) Result {
	return Result{Text: text, Structured: failure{Error: problem, RunID: r.ID, ThreadID: r.ThreadID, TraceID: r.TraceID}, IsError: true}
}
