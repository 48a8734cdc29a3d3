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
	"answerd/internal/agent/thread"
	"answerd/internal/api/typeerror"
)

// Decode decodes the body of a request. The error is an *Invalid about one wrong member; the returned Request is then
// incomplete. Call Request.ResolveReferences afterwards to resolve references to items of earlier responses.
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
		request.readConversation, request.readLimits, body.checkSupported, request.readReasoning,
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

// decodeBody decodes the members of a request, and refuses prompt and response_format. The error is an *Invalid. It
// does not contain the text of encoding/json, which names Go types.
func decodeBody(data []byte) (in body, _ error) {
	if !utf8.Valid(data) {
		return body{}, &Invalid{"", "the body is not valid UTF-8"}
	}
	if err := json.Unmarshal(data, &in); err != nil {
		if field, typeName, ok := typeerror.Find(data, err); ok {
			field = strings.TrimPrefix(field, "Echo.") // encoding/json counts the embedded struct as a member
			return body{}, &Invalid{field, "is of the wrong type: " + typeName}
		}
		return body{}, &Invalid{"", "the body is not a JSON object of this format"}
	}
	if isGiven(in.Prompt) {
		return body{}, &Invalid{"prompt", "is not supported"}
	}
	if isGiven(in.Format) {
		return body{}, &Invalid{"response_format", "is not supported: here it is text.format"}
	}
	return in, nil
}

// invalidMember returns the *Invalid for err, the error of json.Unmarshal for raw. raw is the value at the path field of
// the request. The *Invalid names the member of raw that has the wrong type. If err does not say which one, the *Invalid
// is about field as a whole, and its message is detail.
func invalidMember(field string, raw []byte, err error, detail string) error {
	member, typeName, ok := typeerror.Find(raw, err)
	if !ok {
		return &Invalid{field, detail}
	}
	if !strings.HasPrefix(member, "[") {
		member = "." + member
	}
	return &Invalid{field + member, "is of the wrong type: " + typeName}
}

// readConversation reads which thread the request continues, whose turns come before the input. It is the thread that
// conversation names, as an id or as an object with an id. For previous_response_id, readConversation only sets
// ContinueThread: the API looks up that response's thread after Decode.
func (q *Request) readConversation(in body) error {
	if !isGiven(in.Conversation) {
		q.ContinueThread = in.PreviousID != ""
		return nil
	}
	if json.Unmarshal(in.Conversation, &q.ConversationID) != nil {
		var named struct{ ID string }
		if json.Unmarshal(in.Conversation, &named) != nil {
			return &Invalid{"conversation", "must be the id of a conversation, or an object with its id"}
		}
		q.ConversationID = named.ID
	}
	switch {
	case in.PreviousID != "":
		return &Invalid{"conversation", "cannot be used with previous_response_id"}
	case !thread.IsID(q.ConversationID):
		return &Invalid{"conversation", thread.IDRule}
	}
	q.ThreadID, q.ContinueThread = q.ConversationID, true
	return nil
}

// readLimits reads the response's limits and metadata. A background response must be stored, because a client can get
// it only by retrieving it.
func (q *Request) readLimits(in body) error {
	switch {
	case in.MaxOutputTokens != nil && *in.MaxOutputTokens < 1:
		return &Invalid{"max_output_tokens", "must be positive"}
	case in.MaxToolCalls != nil && *in.MaxToolCalls < 1:
		return &Invalid{"max_tool_calls", "must be positive"}
	}
	if invalid := q.SetMetadata(in.Metadata); invalid != nil {
		return &Invalid{"metadata", invalid.Detail}
	}
	if q.Background && !q.Echo.IsStored() {
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

// checkSupported refuses members that ask for something that the response would lack, and identifiers that are too long
// to store. It accepts unsupported members that do not change the response, such as most values of include.
func (in body) checkSupported() error {
	if in.TopLogprobs != nil && *in.TopLogprobs != 0 {
		return &Invalid{"top_logprobs", "is not supported"}
	}
	for i, included := range in.Include {
		if included == "message.output_text.logprobs" {
			return &Invalid{fmt.Sprintf("include[%d]", i), "is not supported"}
		}
	}
	if t := in.Truncation; t != nil && *t != "auto" && *t != "disabled" {
		return &Invalid{"truncation", "must be auto or disabled"}
	}
	identifiers := []struct {
		name  string
		value *string
	}{
		{"model", &in.Model}, {"previous_response_id", &in.PreviousID},
		{"safety_identifier", in.SafetyIdentifier}, {"prompt_cache_key", in.PromptCacheKey}, {"user", in.User},
	}
	for _, id := range identifiers {
		if id.value != nil && len(*id.value) > maxIdentifier {
			return &Invalid{id.name, fmt.Sprintf("must not be longer than %d bytes", maxIdentifier)}
		}
	}
	return nil
}

// readReasoning reads reasoning.effort. The response repeats the other members of reasoning, which have no effect.
func (q *Request) readReasoning(in body) error {
	var reasoning struct {
		Effort string `json:"effort"`
	}
	if in.Reasoning != nil {
		if err := json.Unmarshal(in.Reasoning, &reasoning); err != nil {
			return invalidMember("reasoning", in.Reasoning, err, "must be an object with an effort")
		}
	}
	q.Sampling.ReasoningEffort = reasoning.Effort
	return nil
}

// readText reads text.verbosity and text.format. The agent passes the format on to the model endpoint, so it becomes a
// response_format of Chat Completions. The format text is the default and adds nothing.
func (q *Request) readText(in body) error {
	var text struct {
		Verbosity string                     `json:"verbosity"`
		Format    map[string]json.RawMessage `json:"format"`
	}
	if in.Text != nil {
		if err := json.Unmarshal(in.Text, &text); err != nil {
			return invalidMember("text", in.Text, err, "must be an object with a format or a verbosity")
		}
	}
	q.Sampling.Verbosity = text.Verbosity
	if text.Format == nil {
		return nil
	}
	var kind string
	_ = json.Unmarshal(text.Format["type"], &kind) // another type than a string is refused below

	switch kind {
	case "text":
		return nil
	case "json_object":
		q.Sampling.ResponseFormat = json.RawMessage(`{"type":"json_object"}`)
		return nil
	case "json_schema":
		return q.readSchema(text.Format)
	}
	return &Invalid{"text.format.type", "must be text, json_object or json_schema"}
}

// readSchema converts a text.format of the type json_schema to a response_format of Chat Completions, which has the
// same members except type one level deeper. If strict is true, the schema is also the OutputSchema, so that the agent
// checks the answer against it. readSchema changes format.
func (q *Request) readSchema(format map[string]json.RawMessage) error {
	delete(format, "type")
	responseFormat := map[string]any{"type": "json_schema", "json_schema": format}
	q.Sampling.ResponseFormat, _ = json.Marshal(responseFormat) // cannot fail: format was decoded from JSON

	schema, strict := format["schema"], string(format["strict"])
	if !slices.Contains([]string{"true", "false", "null", ""}, strict) {
		return &Invalid{"text.format.strict", "must be true or false"}
	}
	// Callers who know Chat Completions send a json_schema, and no schema.
	if len(schema) == 0 || schema[0] != '{' {
		return &Invalid{"text.format.schema", "must be an object: the members of json_schema are members of text.format here"}
	}
	if strict != "true" {
		return nil
	}
	if _, err := output.Compile(schema); err != nil {
		return &Invalid{"text.format.schema", "cannot be used as a JSON Schema: " + err.Error()}
	}
	q.OutputSchema = schema
	return nil
}

// readTools reads the client's functions, and which of the configured MCP servers the request may use. It refuses MCP
// servers with a URL, because clients must not make the service connect to addresses of their choice. In q.Echo, it
// replaces tools of type mcp by the parts of them that the response may repeat.
func (q *Request) readTools(in body) error {
	if len(in.Tools) > agent.MaxClientTools {
		return &Invalid{"tools", fmt.Sprintf("must not be more than %d", agent.MaxClientTools)}
	}
	for i, raw := range in.Tools {
		field := fmt.Sprintf("tools[%d]", i)
		var tool inTool
		if err := json.Unmarshal(raw, &tool); err != nil {
			return invalidMember(field, raw, err, "must be a function or an MCP server")
		}
		if err := q.readTool(field, tool); err != nil {
			return err
		}
		if tool.Type == "mcp" {
			q.Echo.Tools[i] = tool.publicTool()
		}
	}
	if len(q.ServerTools) < len(q.ListedServers) {
		// A server without allowed_tools offers all of its tools, which the common list q.Tools would refuse.
		// ServerTools still restricts the servers that have allowed_tools.
		q.Tools = nil
	}
	return nil
}

// readTool adds a tool to the client's functions, or to the MCP servers that the request may use. field is the tool's
// path in the request, for errors.
func (q *Request) readTool(field string, tool inTool) error {
	switch tool.Type {
	case "function":
		function := agent.ClientTool{Name: tool.Name, Description: tool.Description, Schema: tool.Parameters, Strict: tool.Strict}
		if invalid := q.AddClientTool(function); invalid != nil {
			member := strings.TrimPrefix(invalid.Pointer, "/")
			return &Invalid{field + "." + member, invalid.Detail}
		}
		return nil
	case "mcp":
		return q.readServer(field, tool)
	}
	return &Invalid{field + ".type", "must be function or mcp"}
}

// readServer adds the configured MCP server that tool names, and its allowed_tools. Without allowed_tools, the request
// may use all of the server's tools. If a request lists a server several times, the allowed_tools add up.
func (q *Request) readServer(field string, tool inTool) error {
	switch {
	case tool.ServerURL != "":
		return &Invalid{field + ".server_url", "is not supported: name one of the service's MCP servers in server_label"}
	case tool.requiresApproval():
		return &Invalid{field + ".require_approval", "cannot be always: the service's operator says which calls need approval"}
	case tool.ServerLabel == "":
		return &Invalid{field + ".server_label", "is required"}
	}
	if !slices.Contains(q.Servers, tool.ServerLabel) {
		q.Servers = append(q.Servers, tool.ServerLabel)
		q.ListedServers = append(q.ListedServers, tool.ServerLabel)
	}
	names, err := decodeAllowedTools(field+".allowed_tools", tool.Allowed)
	if err != nil || names == nil {
		return err
	}
	names = slices.Clip(names)          // so that an append to one of the two lists does not write into the other
	q.Tools = append(names, q.Tools...) // stays non-nil if it is empty: nil would allow all tools
	if q.ServerTools == nil {
		q.ServerTools = make(map[string][]string)
	}
	q.ServerTools[tool.ServerLabel] = append(names, q.ServerTools[tool.ServerLabel]...)
	return nil
}

// decodeAllowedTools decodes allowed_tools, which is a list of names or an object with the list tool_names. The names
// may be globs (path.Match). A nil result allows all tools, and an empty list allows none. field is the member's path
// in the request, for errors.
func decodeAllowedTools(field string, raw json.RawMessage) (names []string, err error) {
	if !isGiven(raw) {
		return nil, nil
	}
	if json.Unmarshal(raw, &names) != nil {
		var filter struct {
			Names    []string `json:"tool_names"`
			ReadOnly bool     `json:"read_only"`
		}
		if json.Unmarshal(raw, &filter) != nil {
			return nil, &Invalid{field, "must be a list of names or a filter"}
		}
		if filter.ReadOnly {
			return nil, &Invalid{field + ".read_only", "is not supported: name the tools in tool_names"}
		}
		names = filter.Names
	}
	for _, glob := range names {
		if _, err := path.Match(glob, ""); err != nil {
			return nil, &Invalid{field, "has a pattern that is not valid: " + glob}
		}
	}
	return names, nil
}

// readChoice reads tool_choice: a mode, or one tool that the model must call. It must run after readTools, because a
// request may choose an MCP server without naming a tool only if it offers nothing else.
func (q *Request) readChoice(in body) error {
	if !isGiven(in.ToolChoice) {
		q.Echo.ToolChoice = nil // the response then has the default, because null is not a tool_choice
		return nil
	}
	switch mode := string(in.ToolChoice); mode {
	case `"auto"`, `"none"`, `"required"`:
		q.ToolChoice = agent.ToolChoice(strings.Trim(mode, `"`))
		return nil
	}
	var choice struct {
		namedTool
		Mode  string
		Tools []namedTool
	}
	err := json.Unmarshal(in.ToolChoice, &choice)
	switch {
	case err != nil:
		// It is refused below.
	case choice.Type == "allowed_tools":
		return q.readAllowedTools(choice.Mode, choice.Tools)
	case choice.Type == "mcp" && choice.Name == "":
		return q.requireServer(choice.Server)
	case choice.namesTool():
		q.ToolChoice, q.ForcedTool = agent.ToolRequired, choice.Name
		return nil
	}
	return &Invalid{"tool_choice", "must be none, auto, required, a function, a tool of an MCP server or allowed_tools"}
}

// requireServer makes the model call any tool of the MCP server. The agent can only require a call of some tool, so the
// server must be the only one of the request, without functions.
func (q *Request) requireServer(server string) error {
	if !slices.Equal(q.ListedServers, []string{server}) || len(q.ClientTools) > 0 {
		return &Invalid{"tool_choice.name", "is required unless the server in server_label is the only one of tools"}
	}
	q.ToolChoice = agent.ToolRequired
	return nil
}
