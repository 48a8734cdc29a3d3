package native

import (
	"encoding/json"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"answerd/internal/event"
)

// Answer is the body of POST /answer once the run has completed.
type Answer struct {
	Answer   string          `json:"answer"`
	Metadata event.Metadata  `json:"metadata"`
	Output   json.RawMessage `json:"output,omitempty"` // the answer as a JSON value, if it must match an output schema
	RunID    string          `json:"run_id"`
	ThreadID string          `json:"thread_id"`
	TraceID  string          `json:"trace_id"`
	// RequestMetadata is the question's metadata.
	RequestMetadata map[string]string `json:"request_metadata,omitempty"`
}

// JSON returns a as one line of JSON. It does not use encoding/json, which would validate every tool result in the
// metadata again, byte by byte, and take 0.5 ms for 100 kB. The results were validated when they were received.
func (a Answer) JSON() []byte {
	// Estimate the size, so that buf rarely has to grow: escapes add about a sixteenth to the answer, the names and ids
	// take some 512 bytes, and what belongs to a call takes some 64 each in addition to its parameters and its result.
	size := len(a.Answer) + len(a.Answer)/16 + len(a.Output) + 512
	for _, values := range [][]json.RawMessage{a.Metadata.ToolParams, a.Metadata.ToolResults} {
		for _, value := range values {
			size += len(value) + 64
		}
	}
	buf := make([]byte, 0, size)
	buf = appendMember(buf, `{"answer":`, a.Answer)
	buf = a.Metadata.AppendJSON(append(buf, `,"metadata":`...))
	if len(a.Output) > 0 {
		buf = append(append(buf, `,"output":`...), a.Output...)
	}
	buf = appendMember(buf, `,"run_id":`, a.RunID)
	buf = appendMember(buf, `,"thread_id":`, a.ThreadID)
	buf = appendMember(buf, `,"trace_id":`, a.TraceID)
	if len(a.RequestMetadata) > 0 {
		metadata, _ := json.Marshal(a.RequestMetadata) // cannot fail for strings
		buf = append(append(buf, `,"request_metadata":`...), metadata...)
	}
	return append(buf, "}\n"...)
}

// appendMember appends a member whose value is the string s to b. prefix is the JSON before the value, such as
// `,"name":`. Invalid UTF-8 in s becomes U+FFFD, as with encoding/json.
func appendMember(b []byte, prefix, s string) []byte {
	b, _ = jsontext.AppendQuote(append(b, prefix...), s)
	return b
}

// NewAnswer returns the body of POST /answer for a run and its final answer.
func NewAnswer(r event.Run, f event.FinalAnswer) Answer {
	return Answer{
		Answer: f.Answer, Metadata: f.Metadata, Output: f.Output,
		RunID: r.ID, ThreadID: r.ThreadID, TraceID: r.TraceID, RequestMetadata: r.Metadata,
	}
}

// Status is the body of GET /runs/{run_id}. Which of the optional members are set depends on the field Status.
type Status struct {
	ListedRun
	ParentRunID string `json:"parent_run_id,omitempty"` // of a child run, the run that started it; else ""

	Interrupts []event.Interrupt `json:"interrupts,omitempty"`
	Answer     *string           `json:"answer,omitempty"`
	Output     json.RawMessage   `json:"output,omitempty"`
	Metadata   *event.Metadata   `json:"metadata,omitempty"`
	Reason     string            `json:"reason,omitempty"`
	Error      any               `json:"error,omitempty"` // a problem

	RequestMetadata map[string]string `json:"request_metadata,omitempty"` // of the question
}

// NewStatus returns the status of r, which depends only on r's newest event. problem is called for a failed run and
// returns its problem document (RFC 9457); it is a parameter because this package does not know HTTP.
func NewStatus(r event.Run, problem func(event.RunError) any) Status {
	status := Status{ListedRun: newListedRun(r), ParentRunID: r.ParentID, RequestMetadata: r.Metadata}
	switch b := r.Last.Body.(type) {
	case event.Suspended:
		status.Interrupts = b.Interrupts
	case event.FinalAnswer:
		status.Answer = &b.Answer
		status.Output = b.Output
		status.Metadata = &b.Metadata
	case event.RunError:
		status.Error = problem(b)
	case event.Cancelled:
		status.Reason = b.Reason
	}
	return status
}

// RunList is the body of GET /runs.
type RunList struct {
	Runs []ListedRun `json:"runs"`
	Next string      `json:"next,omitempty"` // the query parameter "before" for the next page; "" on the last page
}

// ListedRun describes a run in a list, without its answer.
type ListedRun struct {
	RunID     string       `json:"run_id"`
	ThreadID  string       `json:"thread_id"`
	TraceID   string       `json:"trace_id"`
	Status    event.Status `json:"status"`
	CreatedAt time.Time    `json:"created_at"`
	LastSeq   int64        `json:"last_seq"`
	Agent     string       `json:"agent,omitempty"` // the named agent; "" if the service has no named agents
}

// newListedRun returns the description of r.
func newListedRun(r event.Run) ListedRun {
	return ListedRun{
		RunID: r.ID, ThreadID: r.ThreadID, TraceID: r.TraceID, Status: r.Status(),
		CreatedAt: r.Created.UTC(), LastSeq: r.Last.Seq, Agent: r.Agent,
	}
}

// AgentList is the body of GET /agents.
type AgentList struct {
	Agents []Agent `json:"agents"`
}

// Agent describes a named agent to a caller who may ask it.
type Agent struct {
	ID           string          `json:"id"`
	Description  string          `json:"description"`
	Model        string          `json:"model"`
	Default      bool            `json:"default"` // it answers questions that name no agent
	Tools        []string        `json:"tools"`   // the names of the tools that it may call for this caller
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	Examples     []string        `json:"examples"`
}

// NewRunList returns a page of runs as the body of GET /runs.
func NewRunList(p event.RunPage) RunList {
	out := RunList{Runs: make([]ListedRun, len(p.Runs)), Next: p.Next}
	for i, r := range p.Runs {
		out.Runs[i] = newListedRun(r)
	}
	return out
}
