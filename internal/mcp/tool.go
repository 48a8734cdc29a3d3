package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/schema"
	"answerd/internal/mcp/wire"
)

// Tool is one tool of a server as the model and the API see it.
type Tool struct {
	Name         string          `json:"name"`   // unique over all servers, ^[A-Za-z0-9_-]{1,64}$
	Server       string          `json:"server"` // the server's name in the configuration
	Original     string          `json:"original_name"`
	Title        string          `json:"title,omitempty"`
	Description  string          `json:"description,omitempty"`
	InputSchema  json.RawMessage `json:"input_schema"`
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	Annotations  *Annotations    `json:"annotations,omitempty"`
	// NeedsApproval says that a person must agree to each call (Call.Approved).
	NeedsApproval bool `json:"needs_approval,omitempty"`
	// Unchecked is why arguments are only checked for being an object: the input schema
	// is none that can be used. "" where they are checked.
	Unchecked string `json:"unchecked,omitempty"`

	reads   bool // it is ours, and reads the server's resources
	signsIn bool // it is ours, and stands for the tools that nobody may list yet
	// The schemas compiled, once for each version of the tool; nil where they can't be.
	input, output *schema.Schema
	cfg           *config.Server
	version       *version
}

// Annotations are a server's own claims about a tool. They are hints from outside
// and never widen what may be done.
type Annotations struct {
	ReadOnly    bool  `json:"read_only,omitempty"`
	Idempotent  bool  `json:"idempotent,omitempty"`
	Destructive *bool `json:"destructive,omitempty"`
	OpenWorld   *bool `json:"open_world,omitempty"`
}

// Bounds of one listed tool (F21).
const (
	maxToolName    = 256      // bytes of a server's own name for a tool
	maxTitle       = 256      // bytes; a longer one is cut
	maxDescription = 16 << 10 // bytes; a longer one is cut
)

// decodeTool reads one element of a tools/list result. The schemas stay the bytes
// that the server sent, without blanks, so their order of keys reaches the model. A
// tool without an input schema takes any object. A $ref in a schema is never followed.
func decodeTool(raw json.RawMessage) (Tool, error) {
	var w struct {
		Name         string          `json:"name"`
		Title        string          `json:"title"`
		Description  string          `json:"description"`
		InputSchema  json.RawMessage `json:"inputSchema"`
		OutputSchema json.RawMessage `json:"outputSchema"`
		Execution    json.RawMessage `json:"execution"`
		Annotations  *struct {
			Title       string `json:"title"`
			ReadOnly    bool   `json:"readOnlyHint"`
			Idempotent  bool   `json:"idempotentHint"`
			Destructive *bool  `json:"destructiveHint"`
			OpenWorld   *bool  `json:"openWorldHint"`
		} `json:"annotations"`
	}
	if !utf8.Valid(raw) {
		return Tool{}, errors.New("it is not UTF-8")
	}
	if err := json.Unmarshal(raw, &w); err != nil {
		return Tool{}, fmt.Errorf("it does not decode: %w", err)
	}
	t := Tool{Original: w.Name, Title: w.Title, Description: wire.Truncate(w.Description, maxDescription)}
	if err := checkToolName(w.Name); err != nil {
		return t, err
	}
	if onlyAsTask(w.Execution) {
		return t, errors.New("it can only be called as a task, which answerd does not do")
	}
	// annotations.title is where titles were before 2025-06-18.
	if a := w.Annotations; a != nil {
		t.Annotations = &Annotations{a.ReadOnly, a.Idempotent, a.Destructive, a.OpenWorld}
		if t.Title == "" {
			t.Title = a.Title
		}
	}
	t.Title = wire.Truncate(t.Title, maxTitle)
	var err error
	if t.InputSchema, err = schema.BoundedObject(w.InputSchema); err != nil {
		return t, fmt.Errorf("its inputSchema %w", err)
	}
	if _, err = headerParams(t.InputSchema); err != nil {
		return t, fmt.Errorf("its inputSchema: %w", err)
	}
	// What a tool says about its results is of no use to a call: a bad output schema
	// is left out and the tool kept.
	if out, err := schema.Bounded(w.OutputSchema); err == nil {
		t.OutputSchema = out
	}
	return t, nil
}

// onlyAsTask reports whether a server refuses every plain call of a tool (2025-11-25
// basic/utilities/tasks): a model that was offered it would try in vain.
func onlyAsTask(execution json.RawMessage) bool {
	var e struct {
		TaskSupport string `json:"taskSupport"`
	}
	return json.Unmarshal(execution, &e) == nil && e.TaskSupport == "required"
}

// checkToolName refuses names that no honest tool has. Others are made safe.
func checkToolName(name string) error {
	switch {
	case name == "":
		return errors.New("it has no name")
	case len(name) > maxToolName:
		return fmt.Errorf("its name is longer than %d bytes", maxToolName)
	case strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("its name has control characters")
	}
	return nil
}
