package catalog

import (
	"cmp"
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

// Tool is an MCP server's tool, as models and the API see it.
type Tool struct {
	Name         string          `json:"name"`   // unique over all servers, ^[A-Za-z0-9_-]{1,64}$
	Server       string          `json:"server"` // the server's name in the configuration
	Original     string          `json:"original_name"`
	Title        string          `json:"title,omitempty"`
	Description  string          `json:"description,omitempty"`
	InputSchema  json.RawMessage `json:"input_schema"`
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	Annotations  *Annotations    `json:"annotations,omitempty"`
	// NeedsApproval means that a person must approve each call.
	NeedsApproval bool `json:"needs_approval,omitempty"`
	// Unchecked is why the input schema cannot be used to check arguments; "" if it can.
	Unchecked string `json:"unchecked,omitempty"`

	// ReadsResources marks the tool that answerd adds for reading the server's resources. SignsIn marks the tool that
	// answerd offers in place of a server's own tools until a user has signed in.
	ReadsResources bool `json:"-"`
	SignsIn        bool `json:"-"`

	inputSchema  *schema.Schema // compiled; nil if it cannot be used
	outputSchema *schema.Schema // compiled; nil if there is none or it cannot be used
	cfg          *config.Server // the server's configuration
	lazyVersion  *lazyDigest    // shared by all copies of the Tool; nil until a Catalog names it
}

// Annotations are what a server says about its own tool. They are untrusted (MCP, server/tools), so they never allow
// anything that the configuration does not allow.
type Annotations struct {
	ReadOnly    bool  `json:"read_only,omitempty"`
	Idempotent  bool  `json:"idempotent,omitempty"`
	Destructive *bool `json:"destructive,omitempty"`
	OpenWorld   *bool `json:"open_world,omitempty"`
}

// Limits for one listed tool.
const (
	maxNameBytes   = 256      // length of a tool's name on its server
	MaxTitle       = 256      // bytes; a longer one is truncated
	MaxDescription = 16 << 10 // bytes; a longer one is truncated
)

// Decode decodes one element of a tools/list result. It truncates texts that are too long, and drops an output schema
// that is not valid. The schemas keep the server's bytes except for white space, so the model sees the properties in
// the server's order. A tool without an input schema accepts any object. External references in a schema are never
// fetched.
//
// It returns an error if the tool cannot be used. The error text is for the log. The returned Tool may then have its
// Original name, also for the log.
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
		return Tool{Original: decoded.Name}, describeTypeError(err) // the name is for the log
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
		tool.Title = cmp.Or(tool.Title, a.Title) // the annotations had the title before 2025-06-18
	}
	tool.Title = wire.Truncate(tool.Title, MaxTitle)

	var err error
	if tool.InputSchema, err = schema.BoundedObject(decoded.InputSchema); err != nil {
		return tool, fmt.Errorf("its inputSchema %w", err)
	}
	if _, err := HeaderParams(tool.InputSchema); err != nil {
		return tool, fmt.Errorf("its inputSchema: %w", err)
	}
	// A call works without an output schema, so a bad one does not remove the tool.
	if outputSchema, err := schema.Bounded(decoded.OutputSchema); err == nil {
		tool.OutputSchema = outputSchema
	}
	return tool, nil
}

// describeTypeError converts err, with which a tool failed to decode. If a member has the wrong type, the result says
// which: the text of err would show Go's types.
func describeTypeError(err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case !ok:
		return fmt.Errorf("it does not decode: %w", err)
	case wrong.Field == "":
		return errors.New("it is a JSON " + wrong.Value + ", not an object")
	}
	return fmt.Errorf("its member %s cannot be a JSON %s", wrong.Field, wrong.Value)
}

// requiresTask reports whether a tool can only be called as a task, which answerd does not support (2025-11-25
// basic/utilities/tasks). execution is the tool's member of that name.
func requiresTask(execution json.RawMessage) bool {
	var decoded struct {
		TaskSupport string `json:"taskSupport"`
	}
	return json.Unmarshal(execution, &decoded) == nil && decoded.TaskSupport == "required"
}

// CheckName returns an error if a server's name for a tool or a prompt is empty, longer than maxNameBytes, or has
// control characters. It accepts other characters that a model provider would reject, because a Catalog replaces them.
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

// maxChecked is the maximum size in bytes of structured content that is checked, because checking takes a multiple of
// that memory. Larger content counts as valid.
const maxChecked = 1 << 20

// CheckArgs checks args against the input schema and returns the arguments to send. If args do not match but would
// match once some strings are replaced by the JSON in them, it returns the repaired arguments. Otherwise it returns
// args unchanged, with the problems if they do not match. Without a usable schema, it returns args and no problems.
func (t *Tool) CheckArgs(args json.RawMessage) (json.RawMessage, []schema.Problem) {
	if t.inputSchema == nil {
		return args, nil
	}
	return t.inputSchema.Check(args)
}

// ValidateArgs returns the problems of args according to the input schema. Unlike CheckArgs, it repairs nothing. It
// returns nil if args match or if there is no usable schema.
func (t *Tool) ValidateArgs(args json.RawMessage) []schema.Problem {
	if t.inputSchema == nil {
		return nil
	}
	return t.inputSchema.Validate(args)
}

// ResultViolations returns the problems of a result's structured content according to the output schema. structured is
// nil if the result has no structured content. ResultViolations returns nil if the content matches or is larger than
// maxChecked, if there is no usable schema, or if isError is set, because an error result need not match.
func (t *Tool) ResultViolations(structured json.RawMessage, isError bool) []schema.Problem {
	switch {
	case t.outputSchema == nil || isError || len(structured) > maxChecked:
		return nil
	case structured == nil: // 2025-06-18 server/tools requires it
		return []schema.Problem{{Detail: "expected structured content, got none"}}
	}
	return t.outputSchema.Validate(structured)
}

// SchemaExcerpt returns the input schema for a model that must correct its arguments. wrong are the problems of these
// arguments. If the schema is larger than maxBytes, SchemaExcerpt returns schema.Excerpt of it instead.
func (t Tool) SchemaExcerpt(wrong []schema.Problem, maxBytes int) string {
	if len(t.InputSchema) <= maxBytes {
		return string(t.InputSchema)
	}
	return schema.Excerpt(t.InputSchema, wrong, maxBytes)
}

// needsApproval reports whether a server's configuration requires a person's approval for each call of tool. It does if
// a pattern in ApproveTools matches one of the tool's names, or if Approval selects the tool and no pattern in
// AutoApprove matches. tool.Name must be set.
func needsApproval(cfg *config.Server, tool Tool) bool {
	if tool.SignsIn {
		return false // signing in already is the user's consent
	}
	names := []string{tool.Original, prefixedName(cfg, tool.Original), nameWithServer(cfg, tool.Original), tool.Name}
	if MatchAny(cfg.ApproveTools, names...) {
		return true
	}
	return tool.IsSelectedBy(cfg.Approval) && !MatchAny(cfg.AutoApprove, names...)
}

// IsSelectedBy reports whether the setting approval alone, without the configuration's lists of tools, requires
// approval for calls of the tool. For ApproveDestructive, the server's own annotations decide.
func (t Tool) IsSelectedBy(approval config.Approval) bool {
	switch {
	case t.SignsIn:
		return false
	case approval == config.ApproveDestructive:
		return t.isDestructive()
	}
	return approval == config.ApproveAlways
}

// isDestructive reports whether calls of the tool may be destructive (2025-11-25 schema, ToolAnnotations). A tool that
// is not read-only is destructive unless its annotations say otherwise.
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

// lazyDigest computes the digest of a tool's definition when it is first needed, because a server's list can have tens
// of megabytes and few of its tools are ever called.
type lazyDigest struct {
	once   sync.Once
	digest string
}

// Restore returns a usable copy of a tool that was stored as JSON. version is the tool's Version, which was stored with
// it. Restore compiles the schemas, so that the copy can check arguments and results. As with a listed tool, a schema
// that does not compile checks nothing.
func Restore(tool Tool, version string) Tool {
	// After an error, Compile returns nil.
	tool.inputSchema, _ = schema.Compile(tool.InputSchema)
	tool.outputSchema = nil
	if tool.OutputSchema != nil {
		tool.outputSchema, _ = schema.Compile(tool.OutputSchema)
	}
	tool.lazyVersion = &lazyDigest{digest: version}
	tool.lazyVersion.once.Do(func() {}) // the version is known, so it is never computed
	return tool
}

// Version returns the SHA-256 of the tool's definition in hex, as in the file of pins. The first call computes it, in
// time proportional to the size of the schemas. Version returns "" for a Tool that comes neither from a Catalog nor
// from Restore.
func (t Tool) Version() string {
	if t.lazyVersion == nil {
		return ""
	}
	t.lazyVersion.once.Do(func() { t.lazyVersion.digest = newDefinition(t.cfg, t).digest() })
	return t.lazyVersion.digest
}
