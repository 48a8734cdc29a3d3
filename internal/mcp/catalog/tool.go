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
	// NeedsApproval is set if a person must approve each call.
	NeedsApproval bool `json:"needs_approval,omitempty"`
	// Unchecked is the reason why the input schema cannot be used to check arguments; "" if it is
	// used.
	Unchecked string `json:"unchecked,omitempty"`

	// ReadsResources marks the tool that answerd adds for reading the server's resources. SignsIn
	// marks the tool that it adds in place of the tools of a server that the user has not authorized
	// yet.
	ReadsResources bool `json:"-"`
	SignsIn        bool `json:"-"`
	// The compiled schemas, nil if they cannot be used.
	inputSchema, outputSchema *schema.Schema
	cfg                       *config.Server
	lazyVersion               *lazyDigest
}

// Annotations are a server's own statements about a tool. They are not trusted, and never allow
// anything that the configuration does not allow (MCP, server/tools: clients must treat them as
// untrusted).
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

// Decode decodes one element of a tools/list result. The schemas keep the server's bytes without
// white space, so the model sees the properties in the server's order. A tool without an input
// schema accepts any object. External references in a schema are never fetched.
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
	// annotations.title is where titles were before 2025-06-18.
	if a := decoded.Annotations; a != nil {
		tool.Annotations = &Annotations{a.ReadOnly, a.Idempotent, a.Destructive, a.OpenWorld}
		if tool.Title == "" {
			tool.Title = a.Title
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

// CheckName refuses names that are empty, too long or have control characters. Other unsafe
// characters are replaced later.
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

// maxChecked bounds the structured content that is checked, in bytes, because checking takes a
// multiple of its memory.
const maxChecked = 1 << 20

// CheckArgs returns the arguments to send: unchanged if they match the input schema, or with
// strings replaced by the JSON in them if that makes them match. Otherwise it returns the
// problems. Without a usable schema it checks nothing.
func (t *Tool) CheckArgs(args json.RawMessage) (json.RawMessage, []schema.Problem) {
	if t.inputSchema == nil {
		return args, nil
	}
	return t.inputSchema.Check(args)
}

// ValidateArgs returns the problems of arguments, without repairing them. Without a usable schema
// it returns none.
func (t *Tool) ValidateArgs(args json.RawMessage) []schema.Problem {
	if t.inputSchema == nil {
		return nil
	}
	return t.inputSchema.Validate(args)
}

// ResultViolations returns the problems of structured content according to the output schema. The
// result of a failed tool need not match it.
func (t *Tool) ResultViolations(structured json.RawMessage, isError bool) []schema.Problem {
	switch {
	case t.outputSchema == nil || isError || len(structured) > maxChecked:
		return nil
	case structured == nil: // 2025-06-18 server/tools requires it
		return []schema.Problem{{Detail: "expected structured content, got none"}}
	}
	return t.outputSchema.Validate(structured)
}

// SchemaExcerpt returns the input schema for a model that must correct its arguments: all of it if
// it has at most n bytes, or else only the fields with problems, truncated if need be. The text
// says what is missing.
func (t Tool) SchemaExcerpt(wrong []schema.Problem, n int) string {
	if len(t.InputSchema) <= n {
		return string(t.InputSchema)
	}
	return schema.Excerpt(t.InputSchema, wrong, n)
}

// needsApproval reports whether a person must approve calls of tool. The server's annotations count
// only for ApproveDestructive. AutoApprove overrides Approval, but neither overrides ApproveTools.
func needsApproval(server *config.Server, tool Tool) bool {
	matches := func(globs []string) bool {
		return MatchAny(globs, tool.Original, prefixedName(server, tool.Original), nameWithServer(server, tool.Original), tool.Name)
	}
	switch {
	case tool.SignsIn: // signing in is itself a consent of the person
		return false
	case matches(server.ApproveTools):
		return true
	}
	return tool.IsSelectedBy(server.Approval) && !matches(server.AutoApprove)
}

// IsSelectedBy reports whether approval alone makes a person approve the calls of the tool.
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

// Restore returns a tool that was stored with its version, ready to check arguments and results. As for a listed tool,
// a schema that does not compile checks nothing.
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

// Version returns the SHA-256 of the tool's definition, in hex, as in the file of pins. It returns
// "" for a Tool that does not come from a Catalog.
func (t Tool) Version() string {
	if t.lazyVersion == nil {
		return ""
	}
	t.lazyVersion.once.Do(func() { t.lazyVersion.digest = newDefinition(t.cfg, t).digest() })
	return t.lazyVersion.digest
}
