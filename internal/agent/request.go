package agent

import (
	"crypto/rand"
	"fmt"
	"path"
	"strings"

	"answerd/internal/auth"
	"answerd/internal/llm"
	"answerd/internal/mcp"
)

// Request is one question to the agent, whichever face it came by.
type Request struct {
	// Question may be empty where the history ends with results of the client's tools:
	// the question is then the one before.
	Question string
	Media    []Media // belongs to the question
	History  []Message
	// Instructions of the caller come after the system prompt, which stays.
	Instructions string
	Model        string
	Sampling     Sampling
	MaxTokens    int64 // of each model answer; 0 leaves it to the model's profile
	// ToolNone answers with text only; ToolRequired makes the model call a tool
	// in the first turn.
	ToolChoice ToolChoice
	// Servers and Tools narrow what may be used: names of servers, and globs
	// (path.Match) on the names of tools. Empty means all. They never widen.
	Servers []string
	Tools   []string
	// ClientTools are the caller's own. A turn that calls one ends the run; the results
	// come with the history of the next question. One with the name of a server's tool
	// is not offered. ForcedTool, if set, is the tool that the first turn must call.
	ClientTools []ClientTool
	ForcedTool  string
	// MaxTurns lowers the agent's own limit; 0 leaves it.
	MaxTurns int
	Budget   Budget
	// AskAtLimit says that those who answer can raise the request's own budget, and are to be
	// asked when the run reaches one of its limits. Without it the run sums up.
	AskAtLimit bool
	// Context goes to the MCP servers with every call (seed 000).
	Context map[string]string
	// Prompt is a prompt of an MCP server whose messages come right before the question.
	Prompt     *ServerPrompt
	ThreadID   string
	Metadata   map[string]string
	Background bool
	// Interactive says that somebody can answer while the run goes on: calls that need
	// approval, and what MCP servers ask. Without it the answer is no, at once.
	Interactive bool
	// Awaited says that its caller waits for the whole answer, and is told to come back for
	// it if a person has to be asked: from then on the run needs no reader.
	Awaited bool
	// FormsDeclined says that those who answer can approve calls, and fill in no forms.
	FormsDeclined bool
	// ApprovalsDeclined says that they can fill in forms, and approve nothing.
	ApprovalsDeclined bool
	// Hops is how many agents the question came through on its way here.
	Hops int
	// Record is what the face that starts the run needs again; it is kept with the run.
	Record []byte

	// IdempotencyKey, if set, makes a second request with the same key and
	// Fingerprint attach to the first one's run.
	IdempotencyKey string
	Fingerprint    [32]byte
}

// ToolChoice says whether the model may, must not or must call tools.
type ToolChoice = llm.ToolChoice

// The choices of a request; "" is ToolAuto.
const (
	ToolAuto     = llm.Auto
	ToolNone     = llm.None
	ToolRequired = llm.Required
)

// ServerPrompt names a prompt of an MCP server, and what to fill it in with.
type ServerPrompt struct {
	Server, Name string
	Arguments    map[string]string
}

// What a request says of the model, in llm's terms.
type (
	Media      = llm.Media
	Sampling   = llm.Sampling
	ClientTool = llm.Tool
	ClientCall = llm.ToolCall
)

// Message is one turn of the history.
type Message struct {
	Role    string
	Content string
	Media   []Media      // of the user
	Calls   []ClientCall // of the assistant: calls of the client's tools
	CallID  string       // of a tool: the call whose result it is
}

// check fills in the defaults of r and refuses what could never run.
func (a *Agent) check(owner auth.Identity, r *Request) error {
	if r.Hops > MaxHops {
		return ErrTooManyHops
	}
	if r.Model == "" {
		r.Model = a.DefaultModel
	}
	if _, served := a.Profiles[r.Model]; !served && len(a.Profiles) > 0 {
		return &InvalidError{"/model", "not one of the models that are served"}
	}
	if access := a.Rules.Of(owner); access.Nothing() || !access.Model(r.Model) {
		return ErrForbidden
	}
	if err := r.checkQuestion(); err != nil {
		return err
	}
	if r.ThreadID == "" {
		r.ThreadID = newID("thr")
	}
	if r.MaxTurns <= 0 || r.MaxTurns > a.MaxTurns {
		r.MaxTurns = a.MaxTurns
	}
	if err := a.checkCost(*r); err != nil {
		return err
	}
	r.Budget = r.Budget.within(a.Budget)
	known := make(map[string]bool)
	for _, s := range a.ServersFor(owner) {
		known[s.Name] = true
	}
	for i, name := range r.Servers {
		if !known[name] {
			return &InvalidError{fmt.Sprintf("/servers/%d", i), "no MCP server has this name"}
		}
	}
	if r.Prompt != nil && !known[r.Prompt.Server] {
		return &InvalidError{"/prompt/server", "no MCP server has this name"}
	}
	for i, glob := range r.Tools {
		if _, err := path.Match(glob, ""); err != nil {
			return &InvalidError{fmt.Sprintf("/tools/%d", i), "not a valid pattern"}
		}
	}
	return nil
}

// narrows reports whether the request may not use every tool.
func (r Request) narrows() bool {
	return r.ToolChoice == ToolNone || len(r.Servers) > 0 || len(r.Tools) > 0
}

// narrow returns the tools of all that the request may use.
func (r Request) narrow(all []mcp.Tool) []mcp.Tool {
	if r.ToolChoice == ToolNone {
		return nil
	}
	var out []mcp.Tool
	for _, t := range all {
		if matches(r.Servers, t.Server) && matches(r.Tools, t.Name) {
			out = append(out, t)
		}
	}
	return out
}

func matches(globs []string, name string) bool {
	for _, g := range globs {
		if ok, err := path.Match(g, name); ok && err == nil {
			return true
		}
	}
	return len(globs) == 0
}

// newID returns an id of 130 random bits, so that knowing one run tells nothing of
// another. Its letters are safe in URLs, event streams and NATS subjects.
func newID(prefix string) string {
	return prefix + "_" + strings.ToLower(rand.Text())
}
