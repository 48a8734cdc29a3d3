package catalog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
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

	// ReadsResources marks our own tool that reads the server's resources, SignsIn our own
	// tool that stands for the tools of a server that nobody has authorized yet.
	ReadsResources bool `json:"-"`
	SignsIn        bool `json:"-"`
	// The schemas compiled, once for each version of the tool; nil where they can't be.
	inputSchema, outputSchema *schema.Schema
	cfg                       *config.Server
	lazyVersion               *lazyDigest
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
	maxNameBytes   = 256      // bytes of a server's own name for a tool
	MaxTitle       = 256      // bytes; a longer one is cut
	MaxDescription = 16 << 10 // bytes; a longer one is cut
)

// Decode reads one element of a tools/list result. The schemas stay the bytes
// that the server sent, without blanks, so their order of keys reaches the model. A
// tool without an input schema takes any object. A $ref in a schema is never followed.
func Decode(raw json.RawMessage) (Tool, error) {
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
	t := Tool{Original: w.Name, Title: w.Title, Description: wire.Truncate(w.Description, MaxDescription)}
	if err := CheckName(w.Name); err != nil {
		return t, err
	}
	if requiresTask(w.Execution) {
		return t, errors.New("it can only be called as a task, which answerd does not do")
	}
	// annotations.title is where titles were before 2025-06-18.
	if a := w.Annotations; a != nil {
		t.Annotations = &Annotations{a.ReadOnly, a.Idempotent, a.Destructive, a.OpenWorld}
		if t.Title == "" {
			t.Title = a.Title
		}
	}
	t.Title = wire.Truncate(t.Title, MaxTitle)
	var err error
	if t.InputSchema, err = schema.BoundedObject(w.InputSchema); err != nil {
		return t, fmt.Errorf("its inputSchema %w", err)
	}
	if _, err = HeaderParams(t.InputSchema); err != nil {
		return t, fmt.Errorf("its inputSchema: %w", err)
	}
	// What a tool says about its results is of no use to a call: a bad output schema
	// is left out and the tool kept.
	if out, err := schema.Bounded(w.OutputSchema); err == nil {
		t.OutputSchema = out
	}
	return t, nil
}

// requiresTask reports whether a server refuses every plain call of a tool (2025-11-25
// basic/utilities/tasks): a model that was offered it would try in vain.
func requiresTask(execution json.RawMessage) bool {
	var e struct {
		TaskSupport string `json:"taskSupport"`
	}
	return json.Unmarshal(execution, &e) == nil && e.TaskSupport == "required"
}

// CheckName refuses names that no honest tool has. Others are made safe.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("it has no name")
	case len(name) > maxNameBytes:
		return fmt.Errorf("its name is longer than %d bytes", maxNameBytes)
	case strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("its name has control characters")
	}
	return nil
}

// compileSchemas compiles the schemas of the tools of the server with that id. Those that are
// as they were listed before are not compiled again: some servers are listed every
// minute. It is done before the catalogue is locked, since calls wait for the lock: a
// schema takes some 50 µs, and a bad one of 64 KiB a hundred times that.
func (c *Catalog) compileSchemas(id int, tools []Tool) {
	c.mu.Lock()
	before := c.entries[id].listed // never written
	c.mu.Unlock()
	known := make(map[string]*Tool, len(before))
	for i := range before {
		known[before[i].Original] = &before[i]
	}
	for i := range tools {
		t := &tools[i]
		old := known[t.Original]
		if old != nil && bytes.Equal(old.InputSchema, t.InputSchema) {
			t.inputSchema, t.Unchecked = old.inputSchema, old.Unchecked
		} else {
			t.inputSchema, t.Unchecked = c.compileSchema(t, "input", t.InputSchema)
		}
		switch {
		case t.OutputSchema == nil:
		case old != nil && bytes.Equal(old.OutputSchema, t.OutputSchema):
			t.outputSchema = old.outputSchema
		default:
			t.outputSchema, _ = c.compileSchema(t, "output", t.OutputSchema)
		}
	}
}

// compileSchema is a schema, or nil and the reason why there is none. The reason goes to the
// log once for each version of the tool. The tool stays usable: the server checks too.
func (c *Catalog) compileSchema(t *Tool, which string, raw json.RawMessage) (*schema.Schema, string) {
	s, err := schema.Compile(raw)
	if err == nil {
		return s, ""
	}
	reason := "the " + which + " schema cannot be used: " + err.Error()
	c.log.Warn("MCP tool not checked", "mcp_server", t.Server, "tool", wire.Printable(t.Original, 80), "reason", reason)
	return nil, reason
}

// maxChecked bounds the structured content that is checked, in bytes: a larger one would
// cost more memory than it is worth.
const maxChecked = 1 << 20

// CheckArgs returns the arguments as they are to be sent: unchanged if they fit the input schema,
// else with strings replaced by the JSON in them where that makes them fit. Otherwise it returns the
// problems. Without a usable schema nothing is checked.
func (t *Tool) CheckArgs(args json.RawMessage) (json.RawMessage, []schema.Problem) {
	if t.inputSchema == nil {
		return args, nil
	}
	return t.inputSchema.Check(args)
}

// ValidateArgs returns how arguments differ from the input schema. Without a usable schema nothing
// is checked.
func (t *Tool) ValidateArgs(args json.RawMessage) []schema.Problem {
	if t.inputSchema == nil {
		return nil
	}
	return t.inputSchema.Validate(args)
}

// Violations is how a result differs from what the tool says about its results.
func (t *Tool) Violations(structured json.RawMessage, isError bool) []schema.Problem {
	switch {
	case t.outputSchema == nil || isError || len(structured) > maxChecked:
		return nil
	case structured == nil: // 2025-06-18 server/tools: it must be there
		return []schema.Problem{{Detail: "expected structured content, got none"}}
	}
	return t.outputSchema.Validate(structured)
}

// SchemaExcerpt is the tool's input schema for somebody who is to write the arguments
// again: whole if it has at most n bytes, else of its fields only those that wrong is
// about, and if that is still too long, cut. What is missing is said.
func (t Tool) SchemaExcerpt(wrong []schema.Problem, n int) string {
	if len(t.InputSchema) <= n {
		return string(t.InputSchema)
	}
	return schema.Excerpt(t.InputSchema, wrong, n)
}

// needsApproval reports whether a person must agree to calls of t. What the server says of
// its tool counts only where the operator goes by it, and takes nothing away from what
// the operator names.
func needsApproval(s *config.Server, t Tool) bool {
	switch {
	case t.SignsIn: // ours, and the person's own doing
		return false
	case s.Approval == config.ApproveAlways:
		return true
	case s.Approval == config.ApproveDestructive && t.isDestructive():
		return true
	}
	return MatchAny(s.ApproveTools, t.Original, prefixedName(s, t.Original), nameWithServer(s, t.Original), t.Name)
}

// isDestructive is MCP's reading of the hints (2025-11-25 schema, ToolAnnotations): a tool
// that does not say that it only reads is taken to destroy, unless it says otherwise.
func (t Tool) isDestructive() bool {
	a := t.Annotations
	switch {
	case a == nil:
		return true
	case a.ReadOnly:
		return false
	}
	return a.Destructive == nil || *a.Destructive
}

// lazyDigest is the digest of a tool's definition, made when somebody first asks: a
// server's whole list can be tens of megabytes, of which few are ever called.
type lazyDigest struct {
	once   sync.Once
	digest string
}

// Version is the SHA-256 in hex of the tool's definition: all of it that reaches a model
// or a decision, and where its server is. It is what mcp.pins.json has. "" for a Tool that no
// Client gave out.
func (t Tool) Version() string {
	if t.lazyVersion == nil {
		return ""
	}
	t.lazyVersion.once.Do(func() { t.lazyVersion.digest = newDefinition(t.cfg, t).digest() })
	return t.lazyVersion.digest
}
