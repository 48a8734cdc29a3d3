package responses

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"answerd/internal/agent"
	"answerd/internal/agent/output"
	"answerd/internal/api/typeerror"
)

// Decode decodes a request. The error is an *Invalid about a member that cannot be used.
func Decode(data []byte) (Request, error) {
	in, err := decodeBody(data)
	if err != nil {
		return Request{}, err
	}
	request := Request{Model: in.Model, Stream: in.Stream, PreviousID: in.PreviousID, Echo: in.Echo, Options: in.Answerd}
	request.Request.Model = strings.TrimSuffix(in.Model, withoutTools)
	request.Instructions = in.Instructions
	request.Background = in.Background
	request.ToolChoice = agent.ToolAuto
	request.Sampling = agent.Sampling{
		Temperature: in.Temperature, TopP: in.TopP, PresencePenalty: in.PresencePenalty, FrequencyPenalty: in.FrequencyPenalty,
		ParallelToolCalls: in.ParallelToolCalls,
	}
	readers := []func(body) error{
		request.readConversation, request.readLimits, request.readExtras, request.readReasoning,
		request.readText, request.readTools, request.readChoice, request.readInput,
	}
	for _, read := range readers {
		if err := read(in); err != nil {
			return request, err
		}
	}
	if strings.HasSuffix(in.Model, withoutTools) {
		request.ToolChoice = agent.ToolNone
	}
	return request, nil
}

// decodeBody decodes the body of a request. It leaves the library's text out of errors, because that names Go types.
func decodeBody(data []byte) (in body, _ error) {
	if !utf8.Valid(data) {
		return body{}, &Invalid{"", "the body is not valid UTF-8"}
	}
	if err := json.Unmarshal(data, &in); err != nil {
		if field, value, ok := typeerror.Find(data, err); ok {
			return body{}, &Invalid{strings.TrimPrefix(field, "Echo."), "is of the wrong type: " + value}
		}
		return body{}, &Invalid{"", "the body is not a JSON object of this format"}
	}
	if in.Prompt != nil && string(in.Prompt) != "null" {
		return body{}, &Invalid{"prompt", "is not supported"}
	}
	if in.Format != nil && string(in.Format) != "null" {
		return body{}, &Invalid{"response_format", "is not supported: here it is text.format"}
	}
	return in, nil
}

// wrongMember returns an error about the member of the wrong type in raw, the value of field. err is of decoding
// raw. If it is about no member, the error is about field and says detail.
func wrongMember(field string, raw []byte, err error, detail string) error {
	at, value, ok := typeerror.Find(raw, err)
	if !ok {
		return &Invalid{field, detail}
	}
	if at[0] != '[' {
		at = "." + at
	}
	return &Invalid{field + at, "is of the wrong type: " + value}
}

// readConversation reads which thread the request continues. The input comes after its turns.
func (q *Request) readConversation(in body) error {
	if in.Conversation == nil || string(in.Conversation) == "null" {
		q.ContinueThread = in.PreviousID != ""
		return nil
	}
	var named struct{ ID string }
	if json.Unmarshal(in.Conversation, &q.ConversationID) != nil {
		if json.Unmarshal(in.Conversation, &named) != nil {
			return &Invalid{"conversation", "must be the id of a conversation, or an object with its id"}
		}
		q.ConversationID = named.ID
	}
	switch {
	case in.PreviousID != "":
		return &Invalid{"conversation", "cannot be used with previous_response_id"}
	case !isConversationID(q.ConversationID):
		return &Invalid{"conversation", "must be 1 to 128 visible ASCII characters"}
	}
	q.ThreadID, q.ContinueThread = q.ConversationID, true
	return nil
}

// isConversationID reports whether s can be the id of a thread.
func isConversationID(s string) bool {
	return s != "" && len(s) <= maxConversationID && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// readLimits reads the limits of the response and its metadata. A response in
// the background must be stored, because its caller can only get it by retrieving it.
func (q *Request) readLimits(in body) error {
	for name, v := range map[string]*agent.JSONInteger{"max_output_tokens": in.MaxOutputTokens, "max_tool_calls": in.MaxToolCalls} {
		if v != nil && *v < 1 {
			return &Invalid{name, "must be positive"}
		}
	}
	if bad := q.SetMetadata(in.Metadata); bad != nil {
		return &Invalid{"metadata", bad.Detail}
	}
	if q.Background && !q.IsStored() {
		return &Invalid{"background", "needs store"}
	}
	if in.MaxOutputTokens != nil {
		q.MaxTokens = int64(*in.MaxOutputTokens)
	}
	if in.MaxToolCalls != nil {
		q.Budget.ToolCalls = int(*in.MaxToolCalls)
	}
	return nil
}

// readExtras refuses members that ask for something the response would lack. It accepts members
// that do not change the response, such as most values of include.
func (q *Request) readExtras(in body) error {
	if in.TopLogprobs != nil && *in.TopLogprobs != 0 {
		return &Invalid{"top_logprobs", "is not supported"}
	}
	for i, v := range in.Include {
		if v == "message.output_text.logprobs" {
			return &Invalid{fmt.Sprintf("include[%d]", i), "is not supported"}
		}
	}
	if t := in.Truncation; t != nil && *t != "auto" && *t != "disabled" {
		return &Invalid{"truncation", "must be auto or disabled"}
	}
	for name, v := range map[string]*string{"safety_identifier": in.SafetyIdentifier, "prompt_cache_key": in.PromptCacheKey, "user": in.User} {
		if v != nil && len(*v) > maxIdentifier {
			return &Invalid{name, fmt.Sprintf("must not be longer than %d bytes", maxIdentifier)}
		}
	}
	return nil
}

// readReasoning reads reasoning.effort. The other members of reasoning are only repeated.
func (q *Request) readReasoning(in body) error {
	var r struct {
		Effort string `json:"effort"`
	}
	if in.Reasoning != nil {
		if err := json.Unmarshal(in.Reasoning, &r); err != nil {
			return wrongMember("reasoning", in.Reasoning, err, "must be an object with an effort")
		}
	}
	q.Sampling.ReasoningEffort = r.Effort
	return nil
}

// readText reads text.verbosity, and turns text.format into the response_format of Chat Completions, which has the members
// of a schema one level deeper. The agent checks the answer against a schema that is strict.
func (q *Request) readText(in body) error {
	var t struct {
		Verbosity string                     `json:"verbosity"`
		Format    map[string]json.RawMessage `json:"format"`
	}
	if in.Text != nil {
		if err := json.Unmarshal(in.Text, &t); err != nil {
			return wrongMember("text", in.Text, err, "must be an object with a format or a verbosity")
		}
	}
	q.Sampling.Verbosity = t.Verbosity
	if t.Format == nil {
		return nil
	}
	var kind string
	_ = json.Unmarshal(t.Format["type"], &kind) // another type than a string is refused below

	switch kind {
	case "text":
		return nil
	case "json_object":
		q.Sampling.ResponseFormat = json.RawMessage(`{"type":"json_object"}`)
	case "json_schema":
		delete(t.Format, "type")
		q.Sampling.ResponseFormat, _ = json.Marshal(map[string]any{"type": kind, "json_schema": t.Format})
		schema, strict := t.Format["schema"], string(t.Format["strict"])
		if !slices.Contains([]string{"true", "false", "null", ""}, strict) {
			return &Invalid{"text.format.strict", "must be true or false"}
		}
		if len(schema) == 0 || schema[0] != '{' { // also of a format in the form of Chat Completions, with a json_schema
			return &Invalid{"text.format.schema", "must be an object: the members of json_schema are members of text.format here"}
		}
		if strict != "true" {
			return nil
		}
		if _, err := output.Compile(schema); err != nil {
			return &Invalid{"text.format.schema", "cannot be used as a JSON Schema: " + err.Error()}
		}
		q.OutputSchema = schema
	default:
		return &Invalid{"text.format.type", "must be text, json_object or json_schema"}
	}
	return nil
}

// readTools reads the caller's functions, and which of the configured MCP servers the request may
// use. It refuses MCP servers that are named by URL: callers must not make the service connect to
// addresses of their choice.
func (q *Request) readTools(in body) error {
	if len(in.Tools) > agent.MaxClientTools {
		return &Invalid{"tools", fmt.Sprintf("must not be more than %d", agent.MaxClientTools)}
	}
	for i, raw := range in.Tools {
		field := fmt.Sprintf("tools[%d]", i)
		var tool inTool
		if err := json.Unmarshal(raw, &tool); err != nil {
			return wrongMember(field, raw, err, "must be a function or an MCP server")
		}
		switch {
		case tool.Type == "mcp" && tool.ServerURL != "":
			return &Invalid{field + ".server_url", "is not supported: name one of the service's MCP servers in server_label"}
		case tool.Type == "mcp" && tool.requiresApproval():
			return &Invalid{field + ".require_approval", "cannot be always: the service's operator says which calls need approval"}
		case tool.Type == "mcp":
			if err := q.readServer(field, tool); err != nil {
				return err
			}
			q.Echo.Tools[i] = tool.publicTool()
		case tool.Type != "function":
			return &Invalid{field + ".type", "must be function or mcp"}
		default:
			if bad := q.AddClientTool(agent.ClientTool{Name: tool.Name, Description: tool.Description, Schema: tool.Parameters, Strict: tool.Strict}); bad != nil {
				return &Invalid{field + "." + bad.Pointer[1:], bad.Detail}
			}
		}
	}
	if len(q.ServerTools) < len(q.ListedServers) {
		q.Tools = nil // a server without allowed_tools offers all of its tools
	}
	return nil
}

// readServer adds a configured MCP server, and the tools of its allowed_tools. Without allowed_tools the
// request may use all tools of that server.
func (q *Request) readServer(field string, tool inTool) error {
	if tool.ServerLabel == "" {
		return &Invalid{field + ".server_label", "is required"}
	}
	if !slices.Contains(q.Servers, tool.ServerLabel) {
		q.Servers = append(q.Servers, tool.ServerLabel)
		q.ListedServers = append(q.ListedServers, tool.ServerLabel)
	}
	if tool.Allowed == nil || string(tool.Allowed) == "null" {
		return nil
	}
	var names []string

	var filter struct {
		Names    []string `json:"tool_names"`
		ReadOnly bool     `json:"read_only"`
	}

	if json.Unmarshal(tool.Allowed, &names) != nil {
		if json.Unmarshal(tool.Allowed, &filter) != nil {
			return &Invalid{field + ".allowed_tools", "must be a list of names or a filter"}
		}
		if filter.ReadOnly {
			return &Invalid{field + ".allowed_tools.read_only", "is not supported: name the tools in tool_names"}
		}
		names = filter.Names
	}

	for _, glob := range names {
		if _, err := path.Match(glob, ""); err != nil {
			return &Invalid{field + ".allowed_tools", "has a pattern that is not valid: " + glob}
		}
	}

	if names != nil {
		names = slices.Clip(names)
		q.Tools = append(names, q.Tools...) // stays non-nil if empty: nil would allow all tools
		if q.ServerTools == nil {
			q.ServerTools = make(map[string][]string)
		}
		q.ServerTools[tool.ServerLabel] = append(names, q.ServerTools[tool.ServerLabel]...)
	}
	return nil
}

// readChoice reads tool_choice: a mode, or one tool that the model must call.
func (q *Request) readChoice(in body) error {
	raw := in.ToolChoice
	if raw == nil || string(raw) == "null" {
		q.Echo.ToolChoice = nil
		return nil
	}
	switch string(raw) {
	case `"auto"`, `"none"`, `"required"`:
		q.ToolChoice = agent.ToolChoice(strings.Trim(string(raw), `"`))
		return nil
	}
	var named struct {
		Type, Name string
		Server     string `json:"server_label"`
	}
	if json.Unmarshal(raw, &named) == nil && named.Type == "mcp" && named.Name == "" {
		// It means any tool of the server, as required does if no other tools are offered.
		if !slices.Equal(q.ListedServers, []string{named.Server}) || len(q.ClientTools) > 0 {
			return &Invalid{"tool_choice.name", "is required unless the server in server_label is the only one of tools"}
		}
		q.ToolChoice = agent.ToolRequired
		return nil
	}
	if json.Unmarshal(raw, &named) != nil || named.Type != "function" && named.Type != "mcp" || !agent.IsToolName(named.Name) {
		return &Invalid{"tool_choice", "must be none, auto, required, a function or a tool of an MCP server"}
	}
	q.ToolChoice, q.ForcedTool = agent.ToolRequired, named.Name
	return nil
}
