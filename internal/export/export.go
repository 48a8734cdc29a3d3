// Package export defines the document that GET /runs/{run_id}/export returns. It has everything that is needed to read
// a run, and to run it again without a model and without tools.
//
//	doc, err := export.Decode(data)
//	fmt.Println(doc.Request.Question, doc.Run.Agent)
//	events, err := doc.DecodeEvents()
//
// api/openapi/export.schema.json is the JSON Schema of the document. A document contains no token and no key. No
// function of the package blocks.
//
// Package agent/record builds documents from the log, package rerun runs them again, and package receipt signs
// statements about them. Hashes are computed from encoded JSON. Do not change how a member is encoded: the new hashes
// would not match those in logs, receipts and older documents.
package export

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"answerd/internal/event"
	"answerd/internal/llm"
)

// Version is the version of the document's schema. Increase it if an older answerd could not read a new document. A new
// member needs no new version.
const Version = 1

// MaxSize bounds the documents that Decode accepts, in bytes.
const MaxSize = 256 << 20

// Document is one run together with its child runs.
type Document struct {
	Version  int      `json:"version"`
	Service  string   `json:"answerd_version,omitempty"` // version of the answerd that wrote the document
	Run      Run      `json:"run"`
	Request  Request  `json:"request"`
	Settings Settings `json:"settings"`
	// SystemPrompt is the system prompt with which the run began.
	SystemPrompt *Prompt `json:"system_prompt,omitempty"`
	// Messages are the messages with which the run began, after the system prompt: the history as the model got it, and
	// the question. History is the number of messages before the question.
	Messages []Message `json:"messages"`
	History  int       `json:"history,omitempty"`
	Tools    []Tool    `json:"tools"`
	// Events are the events of the run as the API sends them, in order.
	Events []json.RawMessage `json:"events"`
	// Results has the complete results of calls whose events have only a part of the result, by call id.
	Results map[string]json.RawMessage `json:"results,omitempty"`
	// Inputs are the answers to interrupts and the requests to cancel the run, in the order in which they were stored.
	Inputs   []Input    `json:"inputs,omitempty"`
	Children []Document `json:"children,omitempty"` // the runs that this run's calls started
	// ModelRequests are the requests to the model in order, if RECORD_MODEL_REQUESTS was set.
	ModelRequests []ModelRequest `json:"model_requests,omitempty"`
	// Missing describes the parts that the log no longer has. The run can be run again only if no part is missing.
	Missing []string `json:"missing,omitempty"`
}

// Run identifies the run.
type Run struct {
	ID       string `json:"run_id"`
	ThreadID string `json:"thread_id"`
	TraceID  string `json:"trace_id,omitempty"`
	ParentID string `json:"parent_run_id,omitempty"`
	Agent    string `json:"agent,omitempty"`
	Subject  string `json:"subject,omitempty"` // subject of the caller who started the run
	Created  int64  `json:"created_at"`        // milliseconds since the Unix epoch
	Status   string `json:"status"`
}

// Request is the request that started the run, after the agent has applied its defaults and limits.
type Request struct {
	Question     string            `json:"question"`
	Instructions string            `json:"instructions,omitempty"`
	Model        string            `json:"model"`
	OutputSchema json.RawMessage   `json:"output_schema,omitempty"`
	Sampling     llm.Sampling      `json:"sampling,omitzero"`
	MaxTokens    int64             `json:"max_tokens,omitempty"`
	ToolChoice   llm.ToolChoice    `json:"tool_choice,omitempty"`
	ForcedTool   string            `json:"forced_tool,omitempty"`
	Servers      []string          `json:"servers,omitzero"` // an empty list allows none
	Tools        []string          `json:"tools,omitzero"`   // an empty list allows none
	ClientTools  []ClientTool      `json:"client_tools,omitempty"`
	MaxTurns     int               `json:"max_turns,omitempty"`
	Budget       Budget            `json:"budget,omitzero"`
	AskAtLimit   bool              `json:"ask_at_limit,omitempty"`
	Context      map[string]string `json:"context,omitempty"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	Prompt       *ServerPrompt     `json:"prompt,omitempty"`
	// These members say who can be asked during the run.
	Interactive       bool `json:"interactive,omitempty"`
	FormsDeclined     bool `json:"forms_declined,omitempty"`
	ApprovalsDeclined bool `json:"approvals_declined,omitempty"`
	Level             int  `json:"level,omitempty"` // number of ancestor runs; 0 unless this is a child run
	Hops              int  `json:"hops,omitempty"`
}

// Budget limits a run; 0 means no limit.
type Budget struct {
	ToolCalls    int     `json:"tool_calls,omitempty"`
	InputTokens  int64   `json:"input_tokens,omitempty"`
	OutputTokens int64   `json:"output_tokens,omitempty"`
	TotalTokens  int64   `json:"total_tokens,omitempty"`
	Seconds      float64 `json:"seconds,omitempty"`
	ResultBytes  int64   `json:"result_bytes,omitempty"`
	Cost         float64 `json:"cost,omitempty"`
}

// ServerPrompt identifies a prompt of an MCP server and its arguments.
type ServerPrompt struct {
	Server    string            `json:"server"`
	Name      string            `json:"name"`
	Arguments map[string]string `json:"arguments,omitempty"`
}

// ClientTool is a tool that the client executes, not answerd.
type ClientTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"input_schema,omitempty"`
	Strict      bool            `json:"strict,omitempty"`
}

// Settings are the service's settings that affected the run.
type Settings struct {
	Agent  json.RawMessage `json:"agent,omitempty"` // the definition of the agent (AGENTS_FILE)
	Prompt Template        `json:"prompt,omitzero"` // the unrendered system prompt
	Budget Budget          `json:"budget,omitzero"` // the limits that a request cannot raise
	Model  Model           `json:"model,omitzero"`  // the profile of the model
	Search Search          `json:"search,omitzero"` // the thresholds for tool search
	Output int64           `json:"max_output_tokens,omitempty"`
}

// Template is a system prompt before it is rendered.
type Template struct {
	Template     string `json:"template"`
	Username     string `json:"username"`
	Timezone     string `json:"timezone"`
	Instructions string `json:"server_instructions,omitempty"` // the MCP servers' instructions, which follow the rendered template
}

// Model is the profile of a model, without its endpoint.
type Model struct {
	ID              string     `json:"id"`
	ContextTokens   int64      `json:"context_tokens,omitempty"`
	MaxOutputTokens int64      `json:"max_output_tokens,omitempty"`
	Images          bool       `json:"images,omitempty"`
	Audio           bool       `json:"audio,omitempty"`
	PDF             bool       `json:"pdf,omitempty"`
	Price           *llm.Price `json:"price,omitempty"`
}

// Search has the thresholds TOOL_SEARCH_MIN_TOOLS and TOOL_SEARCH_MIN_BYTES.
type Search struct {
	MinTools int `json:"min_tools,omitempty"`
	MinBytes int `json:"min_bytes,omitempty"`
}

// Prompt is a rendered system prompt with its SHA-256 in hex.
type Prompt struct {
	Text   string `json:"text"`
	SHA256 string `json:"sha256"`
}

// Message is a message of the conversation.
type Message struct {
	Role   string  `json:"role"`
	Text   string  `json:"text"`
	Calls  []Call  `json:"calls,omitempty"`
	CallID string  `json:"call_id,omitempty"`
	Tool   string  `json:"tool,omitempty"`
	Failed bool    `json:"failed,omitempty"`
	Media  []Media `json:"media,omitempty"`
}

// Call is a tool call in a message of the model.
type Call struct {
	ID        string `json:"call_id"`
	Name      string `json:"tool"`
	Arguments string `json:"arguments"`
}

// Media is an image, audio or a document in a message.
type Media struct {
	Label  string `json:"label,omitempty"`
	Name   string `json:"name,omitempty"`
	MIME   string `json:"media_type,omitempty"`
	Data   string `json:"data,omitempty"` // base64
	URL    string `json:"url,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Tool is the definition of a tool that the run could call.
type Tool struct {
	Name          string          `json:"name"`
	Server        string          `json:"server,omitempty"` // "" for a tool of answerd itself
	Original      string          `json:"original_name,omitempty"`
	Title         string          `json:"title,omitempty"`
	Description   string          `json:"description,omitempty"`
	InputSchema   json.RawMessage `json:"input_schema,omitempty"`
	OutputSchema  json.RawMessage `json:"output_schema,omitempty"`
	Annotations   json.RawMessage `json:"annotations,omitempty"`
	NeedsApproval bool            `json:"needs_approval,omitempty"`
	// Version is the tool_version of approvals; "" for a tool of answerd itself.
	Version string `json:"version,omitempty"`
	// SHA256 is the result of Tool.Hash.
	SHA256 string `json:"sha256,omitempty"`
}

// Hash returns the SHA-256, in hex, of the definition as JSON without the member sha256.
func (t Tool) Hash() string {
	t.SHA256 = ""
	data, _ := json.Marshal(t) // cannot fail, because the raw members are valid JSON
	return Digest(data)
}

// Digest returns the SHA-256 of data, in hex.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Input is an answer to an interrupt, or a request to cancel the run.
type Input struct {
	ID   string          `json:"interrupt_id"`
	Data json.RawMessage `json:"data,omitempty"`
}

// ModelRequest is one request to a model.
type ModelRequest struct {
	Step         int             `json:"step"`
	Model        string          `json:"model"`
	Messages     []Message       `json:"messages"`
	Tools        []string        `json:"tools,omitempty"` // names of the tools that were offered to the model
	ToolChoice   llm.ToolChoice  `json:"tool_choice,omitempty"`
	MaxTokens    int64           `json:"max_tokens,omitempty"`
	Sampling     llm.Sampling    `json:"sampling,omitzero"`
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
}

// ErrVersion is the error for a document whose version is not Version.
var ErrVersion = errors.New("its version is not one that this answerd reads")

// Decode decodes a document. It returns an error if data is larger than MaxSize, has another version (ErrVersion) or
// has no events. It does not check that the run can be run again. It ignores unknown members, which a newer answerd may
// write under the same version. The errors are meant for the user who has the file.
func Decode(data []byte) (*Document, error) {
	if len(data) > MaxSize {
		return nil, fmt.Errorf("an export is at most %d bytes", MaxSize)
	}
	// Remove white space that a formatter may have added: raw members, such as schemas, are compared by their bytes.
	var compact bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		return nil, fmt.Errorf("decode an export: %w", err)
	}
	var doc Document
	if err := json.Unmarshal(compact.Bytes(), &doc); err != nil {
		return nil, fmt.Errorf("decode an export: %w", err)
	}
	switch {
	case doc.Version == 0:
		return nil, errors.New("decode an export: it has no version")
	case doc.Version != Version:
		return nil, fmt.Errorf("decode an export of version %d: %w", doc.Version, ErrVersion)
	case len(doc.Events) == 0:
		return nil, errors.New("decode an export: it has no events")
	}
	return &doc, nil
}

// Encode returns the document as one line of JSON that ends with a line feed.
func (d *Document) Encode() ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(d); err != nil {
		return nil, fmt.Errorf("encode an export: %w", err)
	}
	return buf.Bytes(), nil
}

// DecodeEvents decodes d.Events. The error gives the number of the first event that cannot be decoded, counted from 1.
func (d *Document) DecodeEvents() ([]event.Event, error) {
	events := make([]event.Event, len(d.Events))
	for i, line := range d.Events {
		var err error
		if events[i], err = event.Decode(line); err != nil {
			return nil, fmt.Errorf("event %d: %w", i+1, err)
		}
	}
	return events, nil
}
