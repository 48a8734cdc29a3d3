package webhook

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"answerd/internal/auth"
)

// SignatureHeader carries "sha256=" and the HMAC-SHA256 of the body in hex.
const SignatureHeader = "X-Answerd-Signature"

// Event is what a service is asked about.
type Event string

// The hooks.
const (
	PreToolCall Event = "pre_tool_call" // a call is about to be made
	ToolError   Event = "tool_error"    // a call failed
	ToolResult  Event = "tool_result"   // a call gave a result
)

// Call is one question: the call that it is about and how far it has come.
type Call struct {
	Hook    Event
	RunID   string // "" outside of runs
	Subject string // on whose behalf; "" where nobody authenticates
	Server  string // "" for a tool that no server has
	Tool    string
	CallID  string
	// Args is the arguments, a JSON object; nil where a model wrote something else,
	// which is ArgsText then.
	Args     json.RawMessage
	ArgsText string
	Result   *Result  // of ToolResult
	Failure  *Failure // of ToolError
}

// Result is what the tool gave, as MCP has it.
type Result struct {
	Content    []json.RawMessage `json:"content"`
	Structured json.RawMessage   `json:"structured,omitempty"`
}

// Failure is what the model would be told.
type Failure struct {
	Kind    string `json:"kind"` // as in the event tool_error
	Message string `json:"message"`
}

// wireCall is the body of a question. Timestamp and DeliveryID are what a receiver
// needs to refuse a copy: they stand in the body because the body is what is signed.
type wireCall struct {
	Hook       Event           `json:"hook"`
	RunID      string          `json:"run_id"`
	Subject    string          `json:"subject"`
	Server     string          `json:"server"`
	Tool       string          `json:"tool"`
	CallID     string          `json:"call_id"`
	Args       json.RawMessage `json:"args"` // null where there is no object
	ArgsText   string          `json:"args_text,omitempty"`
	Result     *Result         `json:"result,omitempty"`
	Error      *Failure        `json:"error,omitempty"`
	Timestamp  int64           `json:"timestamp"`   // seconds since the Unix epoch
	DeliveryID string          `json:"delivery_id"` // of this POST alone
}

func (c Call) encodeBody(now time.Time, delivery string) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(wireCall{
		Hook: c.Hook, RunID: c.RunID, Subject: c.Subject, Server: c.Server, Tool: c.Tool, CallID: c.CallID,
		Args: c.Args, ArgsText: c.ArgsText, Result: c.Result, Error: c.Failure,
		Timestamp: now.Unix(), DeliveryID: delivery,
	})
	if err != nil {
		return nil, fmt.Errorf("encode the question: %w", err)
	}
	return b.Bytes(), nil
}

func signBody(secret auth.Secret, body []byte) string {
	mac := hmac.New(sha256.New, []byte(secret.Reveal()))
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}
