package catalog

import (
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

// Tool is a tool of a server as models and the API see it.
type Tool struct {
	Name         string          `json:"name"`   // unique over all servers, ^[A-Za-z0-9_-]{1,64}$
	Server       string          `json:"server"` // the server's name in the configuration
	Original     string          `json:"original_name"`
	Title        string          `json:"title,omitempty"`
	Description  string          `json:"description,omitempty"`
	InputSchema  json.RawMessage `json:"input_schema"`
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	Annotations  *Annotations    `json:"annotations,omitempty"`
	// NeedsApproval says that a person must approve each call.
	NeedsApproval bool `json:"needs_approval,omitempty"`
	// Unchecked is the reason why the input schema cannot be used to check arguments; "" if it can be used.
	Unchecked string `json:"unchecked,omitempty"`

	// ReadsResources marks the tool that answerd adds for reading the server's resources. SignsIn marks the tool that
	// answerd adds in place of the tools of a server that no user has authorized yet.
	ReadsResources bool `json:"-"`
	SignsIn        bool `json:"-"`

	inputSchema  *schema.Schema // compiled; nil if it cannot be used
	outputSchema *schema.Schema // compiled; nil if there is none or it cannot be used
	cfg          *config.Server // of the tool's server
	lazyVersion  *lazyDigest    // shared by all copies of the Tool; nil before the Catalog has named it
}

// Annotations are a server's own statements about a tool. They are not trusted, and never allow anything that the
// configuration does not allow (MCP, server/tools: clients must treat them as untrusted).
type Annotations struct {
	ReadOnly    bool  `json:"read_only,omitempty"`
	Idempotent  bool  `json:"idempotent,omitempty"`
	Destructive *bool `json:"destructive,omitempty"`
	OpenWorld   *bool `json:"open_world,omitempty"`
}

// Bounds of one listed tool.
const (
	maxNameBytes   = 256      // bytes of a tool's name on its server
	MaxTitle       = 256      // bytes; a longer one is truncated
	MaxDescription = 16 << 10 // bytes; a longer one is truncated
)

// Decode decodes one element of a tools/list result. It truncates texts that are too long and leaves out an output
// schema that is not valid. The schemas keep the server's bytes without white space, so the model sees the properties
// in the server's order. A tool without an input schema accepts any object. External references in a schema are never
// fetched.
//
// An error means that the tool cannot be used. It is a text for the log; the tool may then have its Original name.
func Decode(raw json.RawMessage) (Tool, error) {
	var decoded struct {
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
	if err := json.Unmarshal(raw, &decoded); err != nil {
		return Tool{Original: decoded.Name}, fmt.Errorf("it does not decode: %w", err) // the name is for the log
	}
	tool := Tool{Original: decoded.Name, Title: decoded.Title, Description: wire.Truncate(decoded.Description, MaxDescription)}
	if err := CheckName(decoded.Name); err != nil {
		return tool, err
	}
	if requiresTask(decoded.Execution) {
		return tool, errors.New("it can only be called as a task, which answerd does not do")
	}
	if a := decoded.Annotations; a != nil {
		tool.Annotations = &Annotations{
			ReadOnly: a.ReadOnly, Idempotent: a.Idempotent, Destructive: a.Destructive, OpenWorld: a.OpenWorld,
		}
		if tool.Title == "" {
			tool.Title = a.Title // the place of the title before 2025-06-18
		}
	}

	tool.Title = wire.Truncate(tool.Title, MaxTitle)
	var err error
	if tool.InputSchema, err = schema.BoundedObject(decoded.InputSchema); err != nil {
		return tool, fmt.Errorf("its inputSchema %w", err)
	}
	if _, err = HeaderParams(tool.InputSchema); err != nil {
		return tool, fmt.Errorf("its inputSchema: %w", err)
	}
	// A call works without an output schema, so a bad one does not remove the tool.
	if out, err := schema.Bounded(decoded.OutputSchema); err == nil {
		tool.OutputSchema = out
	}
	return tool, nil
}

// requiresTask reports whether a server accepts calls of a tool only as tasks, which answerd does
// not support (2025-11-25 basic/utilities/tasks).
func requiresTask(execution json.RawMessage) bool {
	var e struct {
		TaskSupport string `json:"taskSupport"`
	}
	return json.Unmarshal(execution, &e) == nil && e.TaskSupport == "required"
}

// CheckName returns an error if the name that a server gives to a tool or a prompt is empty, longer than maxNameBytes
// or has control characters. Other characters that a model provider would refuse are no error: a Catalog replaces
// them.
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

// maxChecked bounds the structured content that is checked, in bytes, because checking takes a multiple of its
// memory. Larger content counts as valid.
const maxChecked = 1 << 20

// CheckArgs returns the arguments to send, or the problems of args with the input schema. The arguments are args
// unchanged if they match the schema, or with strings replaced by the JSON in them if that makes them match. Without
// a usable schema, CheckArgs returns args unchanged.
func (t *Tool) CheckArgs(args json.RawMessage) (json.RawMessage, []schema.Problem) {
	if t.inputSchema == nil {
		return args, nil
	}
	return t.inputSchema.Check(args)
}

// ValidateArgs returns the problems of args with the input schema, without repairing args as CheckArgs does. It
// returns nil if args match, or without a usable schema.
func (t *Tool) ValidateArgs(args json.RawMessage) []schema.Problem {
	if t.inputSchema == nil {
		return nil
	}
	return t.inputSchema.Validate(args)
}

// ResultViolations returns the problems of a result's structured content with the output schema. It returns nil if
// the content matches, if it has more than maxChecked bytes, without a usable schema, and for a result with isError,
// which need not match. structured is nil for a result without structured content.
func (t *Tool) ResultViolations(structured json.RawMessage, isError bool) []schema.Problem {
	switch {
	case t.outputSchema == nil || isError || len(structured) > maxChecked:
		return nil
	case structured == nil: // 2025-06-18 server/tools requires it
		return []schema.Problem{{Detail: "expected structured content, got none"}}
	}
	return t.outputSchema.Validate(structured)
}

// SchemaExcerpt returns the input schema for a model that must correct the problems wrong in its arguments. If the
// schema has more than maxBytes, it returns only the fields with problems, truncated if necessary. The text says what
// is missing.
func (t Tool) SchemaExcerpt(wrong []schema.Problem, maxBytes int) string {
	if len(t.InputSchema) <= maxBytes {
		return string(t.InputSchema)
	}
	return schema.Excerpt(t.InputSchema, wrong, maxBytes)
}

// needsApproval reports whether the configuration of the server says that a person must approve calls of tool, which
// must have its Name. A pattern in ApproveTools decides first, then one in AutoApprove, and then Approval. The
// server's own annotations count only for ApproveDestructive.
func needsApproval(server *config.Server, tool Tool) bool {
	matches := func(patterns []string) bool {
		return MatchAny(patterns, tool.Original, prefixedName(server, tool.Original), nameWithServer(server, tool.Original), tool.Name)
	}
	switch {
	case tool.SignsIn: // signing in is itself a consent of the person
		return false
	case matches(server.ApproveTools):
		return true
	}
	return tool.IsSelectedBy(server.Approval) && !matches(server.AutoApprove)
}

// IsSelectedBy reports whether calls of the tool need approval if only the setting approval decides, and not the
// lists of tools in the configuration.
func (t Tool) IsSelectedBy(approval config.Approval) bool {
	switch {
	case t.SignsIn:
		return false
	case approval == config.ApproveDestructive:
		return t.isDestructive()
	}
	return approval == config.ApproveAlways
}

// isDestructive reports whether calls of the tool may be destructive (2025-11-25 schema,
// ToolAnnotations): a tool that is not read-only is destructive unless its annotations deny it.
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

// lazyDigest computes the digest of a tool's definition at its first use. A server's list can have
// tens of megabytes, and few of its tools are ever called.
type lazyDigest struct {
	once   sync.Once
	digest string
}

// Restore returns a copy of a tool that was stored as JSON and has its version stored with it. It compiles the
// schemas, so that the copy can check arguments and results. As for a listed tool, a schema that does not compile
// checks nothing.
func Restore(tool Tool, version string) Tool {
	tool.inputSchema, tool.outputSchema = nil, nil
	if compiled, err := schema.Compile(tool.InputSchema); err == nil {
		tool.inputSchema = compiled
	}
	if tool.OutputSchema != nil {
		if compiled, err := schema.Compile(tool.OutputSchema); err == nil {
			tool.outputSchema = compiled
		}
	}
	tool.lazyVersion = &lazyDigest{digest: version}
	tool.lazyVersion.once.Do(func() {}) // the version is known, so it is never computed
	return tool
}

// Version returns the SHA-256 of the tool's definition, in hex, as in the file of pins. The first call computes it,
// which takes time in proportion to the schemas. It returns "" for a Tool that comes neither from a Catalog nor from
// Restore.
func (t Tool) Version() string {
	if t.lazyVersion == nil {
		return ""
	}
	t.lazyVersion.once.Do(func() { t.lazyVersion.digest = newDefinition(t.cfg, t).digest() })
	return t.lazyVersion.digest
}
