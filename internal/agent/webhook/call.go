package webhook

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"answerd/internal/auth"
)

// SignatureHeader contains "sha256=" and the body's HMAC-SHA256 in hexadecimal.
const SignatureHeader = "X-Answerd-Signature"

// Event names a hook, which is a moment in a run at which the operator's service is asked.
type Event string

// The hooks about tool calls.
const (
	PreToolCall Event = "pre_tool_call" // a call is about to be made
	ToolError   Event = "tool_error"    // a call failed
	ToolResult  Event = "tool_result"   // a call succeeded
)

// The hooks about a run, which Options.Events enables.
const (
	PreModelCall Event = "pre_model_call" // the model is about to be asked
	ModelResult  Event = "model_result"   // the model has answered
	Interrupt    Event = "interrupt"      // the run waits for a person
	RunEnd       Event = "run_end"        // the run is about to end
)

// Events returns all hooks, in the order in which the documentation has them.
func Events() []Event {
	return []Event{PreToolCall, ToolError, ToolResult, PreModelCall, ModelResult, Interrupt, RunEnd}
}

// isToolEvent reports whether the hook is about a tool call.
func (e Event) isToolEvent() bool {
	return slices.Contains([]Event{PreToolCall, ToolError, ToolResult}, e)
}

// Call is one question to the operator's service.
type Call struct {
	Hook    Event
	RunID   string // "" for a direct call
	Subject string // the user who started the run; "" without authentication

	// Only for hooks about tool calls.
	Server string // "" for a tool that belongs to no server
	Tool   string
	CallID string
	// Args are the arguments as a JSON object. If the model wrote something else, Args is nil and ArgsText has that.
	Args     json.RawMessage
	ArgsText string
	Result   *Result  // for ToolResult
	Failure  *Failure // for ToolError

	// Only for hooks about runs. If a process dies before it has stored the reply, another process asks the same again.
	ThreadID string
	Step     int             // for PreModelCall and ModelResult
	Request  *ModelRequest   // for PreModelCall
	Answer   *ModelAnswer    // for ModelResult
	Waiting  json.RawMessage // for Interrupt: the question to the person, as in the suspended event
	End      *End            // for RunEnd
}

// Result is a tool's result, with content in the form of MCP.
type Result struct {
	Content    []json.RawMessage `json:"content"`
	Structured json.RawMessage   `json:"structured,omitempty"`
}

// Failure is the error that the model gets unless the hook's reply replaces it.
type Failure struct {
	Kind    string `json:"kind"` // as in the tool_error event
	Message string `json:"message"`
}

// ModelRequest is the request that the model is about to get.
type ModelRequest struct {
	Model     string    `json:"model"`
	Messages  []Message `json:"messages"`
	Tools     []string  `json:"tools"`                // names
	MaxTokens int64     `json:"max_tokens,omitempty"` // for the answer; 0 means no limit
}

// Message is one message of a conversation.
type Message struct {
	Role    string        `json:"role"` // system, user, assistant or tool
	Content string        `json:"content"`
	Calls   []MessageCall `json:"calls,omitempty"`   // if role is assistant
	CallID  string        `json:"call_id,omitempty"` // if role is tool: the id of the call whose result this is
	Tool    string        `json:"tool,omitempty"`    // if role is tool
	Media   []Media       `json:"media,omitempty"`
}

// MessageCall is a tool call as the model wrote it.
type MessageCall struct {
	CallID string `json:"call_id"`
	Tool   string `json:"tool"`
	// Args is a JSON object. If the model wrote something else, Args is null and ArgsText has its text.
	Args     json.RawMessage `json:"args"`
	ArgsText string          `json:"args_text,omitempty"`
}

// Media describes an image, audio or PDF in a message, without its data.
type Media struct {
	MIME  string `json:"media_type"`
	Bytes int    `json:"bytes"`
	URL   string `json:"url,omitempty"` // only for an image given by URL, without data
}

// ModelAnswer is what the model answered in one step.
type ModelAnswer struct {
	Model        string          `json:"model"` // the model that answered
	Text         string          `json:"text"`
	Calls        []MessageCall   `json:"calls"`
	FinishReason string          `json:"finish_reason"`
	Usage        json.RawMessage `json:"usage,omitempty"` // as in the step_end event
}

// End says how a run ends.
type End struct {
	Status string          // completed, failed or cancelled
	Result json.RawMessage // of a completed run: answer, finish_reason and metadata
	Error  json.RawMessage // of a failed or cancelled run: code, message and partial_answer
}

// wireCall is the body of a question about a tool call. Timestamp and DeliveryID let a receiver refuse a request that
// somebody recorded and sent again. They are in the body, because the signature covers only the body.
type wireCall struct {
	Hook       Event           `json:"hook"`
	RunID      string          `json:"run_id"`
	Subject    string          `json:"subject"`
	Server     string          `json:"server"`
	Tool       string          `json:"tool"`
	CallID     string          `json:"call_id"`
	Args       json.RawMessage `json:"args"` // null if the arguments are not an object
	ArgsText   string          `json:"args_text,omitempty"`
	Result     *Result         `json:"result,omitempty"`
	Error      *Failure        `json:"error,omitempty"`
	Timestamp  int64           `json:"timestamp"`   // seconds since the Unix epoch
	DeliveryID string          `json:"delivery_id"` // identifies this POST
}

// wireRunEvent is the body of a question about a run.
type wireRunEvent struct {
	Hook       Event           `json:"hook"`
	RunID      string          `json:"run_id"`
	ThreadID   string          `json:"thread_id"`
	Subject    string          `json:"subject"`
	Step       int             `json:"step,omitempty"`
	Request    *ModelRequest   `json:"request,omitempty"`
	Interrupt  json.RawMessage `json:"interrupt,omitempty"`
	Status     string          `json:"status,omitempty"`
	Result     any             `json:"result,omitempty"`
	Error      json.RawMessage `json:"error,omitempty"`
	Timestamp  int64           `json:"timestamp"`
	DeliveryID string          `json:"delivery_id"`
}

// deliveryID returns the id of the POST. It is random except for run_end. Another process may ask about the same end
// again, so that id is derived from the run's id, and a service that remembers ids acts only once.
func (c Call) deliveryID() string {
	if c.Hook != RunEnd {
		return "dlv_" + strings.ToLower(rand.Text())
	}
	sum := sha256.Sum256([]byte(string(RunEnd) + " " + c.RunID))
	return "dlv_" + hex.EncodeToString(sum[:16])
}

// encodeBody returns the body of the POST, which is signed. now and delivery become its timestamp and delivery_id.
func (c Call) encodeBody(now time.Time, delivery string) ([]byte, error) {
	return Encode(c.wireBody(now.Unix(), delivery))
}

// Encode returns value as JSON without HTML escapes, so that texts stay as their authors wrote them.
func Encode(value any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(value)
	return b.Bytes(), err
}

// wireBody returns the body as a value to encode. The two kinds of hooks have different members.
func (c Call) wireBody(now int64, delivery string) any {
	if c.Hook.isToolEvent() {
		return wireCall{
			Hook: c.Hook, RunID: c.RunID, Subject: c.Subject, Server: c.Server, Tool: c.Tool, CallID: c.CallID,
			Args: c.Args, ArgsText: c.ArgsText, Result: c.Result, Error: c.Failure, Timestamp: now, DeliveryID: delivery,
		}
	}
	body := wireRunEvent{
		Hook: c.Hook, RunID: c.RunID, ThreadID: c.ThreadID, Subject: c.Subject, Step: c.Step,
		Request: c.Request, Interrupt: c.Waiting, Timestamp: now, DeliveryID: delivery,
	}
	if c.Answer != nil {
		body.Result = c.Answer
	}
	if c.End != nil {
		body.Status, body.Error = c.End.Status, c.End.Error
		if c.End.Result != nil { // otherwise a nil RawMessage in the any would be encoded as null
			body.Result = c.End.Result
		}
	}
	return body
}

// Sign returns the value of SignatureHeader for body.
func Sign(secret auth.Secret, body []byte) string {
	mac := hmac.New(sha256.New, []byte(secret.Reveal()))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}
