package native

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"answerd/internal/agent"
	"answerd/internal/agent/attachment"
)

// Bounds of a request, in characters and items, below the bound of the whole body. They count characters, not bytes, as
// maxLength of the OpenAPI document does.
const (
	maxModel    = 256
	maxHistory  = 1024
	maxCallback = 2048
	maxList     = 256
	maxName     = 128
	maxPairs    = 32
	maxPairKey  = 64
	maxPairText = 1024
	maxSeconds  = 86400
	maxCost     = 1e9
	// maxErrors is the largest number of reported errors, because a large body can have a hundred thousand.
	maxErrors = 100
)

// toolChoices lists the values of tool_choice.
var toolChoices = []string{string(agent.ToolAuto), string(agent.ToolNone), string(agent.ToolRequired)}

// Decode decodes the body of POST /answer or /answer/stream. The error is an *Invalid, which lists all errors of the
// body and not only the first. Decode does not check whether the named model, servers and tools exist; the agent does
// that later.
func Decode(body []byte) (agent.Request, error) {
	d := newDecoder("", body)
	r := d.readRequest()
	return r, d.finishBody()
}

// CanonicalBody returns body in the canonical form of RFC 8785. When a client repeats an idempotency key, two spellings
// of the same request are thus equal. body must have been accepted by Decode or DecodeQuery.
func CanonicalBody(body []byte) []byte {
	canonical := jsontext.Value(bytes.Clone(body))
	_ = canonical.Canonicalize() // cannot fail for a body that was accepted
	return canonical
}

// DecodeOptions decodes raw into r. raw is the member "answerd" of a request in another API format, with native fields
// that this format lacks. Its values replace those of r, with two exceptions: raw's servers and tools are added to r's,
// and r.Budget.ToolCalls (max_tool_calls of Responses) stays if raw has no tool_calls. The error is an *Invalid. A nil
// raw changes nothing.
func DecodeOptions(raw json.RawMessage, r *agent.Request) error {
	if raw == nil {
		return nil
	}
	d := newDecoder("/answerd", raw)
	toolCalls := r.Budget.ToolCalls
	for name := range d.readObject() {
		d.readOption(name, r)
	}
	r.Budget.ToolCalls = cmp.Or(r.Budget.ToolCalls, toolCalls)
	return d.finishBody()
}

// DecodeQuery decodes the query of GET /answer/stream, for an EventSource, which cannot send a body. Its parameters are
// the fields of POST /answer whose value is a string, a number or a list of strings. DecodeQuery builds a body from the
// query and decodes it, so that the same rules apply. It returns this body for CanonicalBody. The error is an *Invalid,
// whose pointers name the parameters.
func DecodeQuery(q url.Values) (_ agent.Request, body []byte, _ error) {
	var wrongParameters []FieldError
	members := make(map[string]any)
	for name, values := range q {
		pointer := string(jsontext.Pointer("").AppendToken(name))
		if text := name + strings.Join(values, " "); !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return agent.Request{}, nil, NewInvalid(pointer, "is not UTF-8, or contains U+0000")
		}
		member, isList := bodyMember(name, values)
		if member == nil {
			wrongParameters = append(wrongParameters, FieldError{pointer, "unknown parameter"})
			continue
		}
		if len(values) > 1 && !isList {
			wrongParameters = append(wrongParameters, FieldError{pointer, "given twice"})
		}
		members[name] = member
	}

	body, err := json.Marshal(members)
	if err != nil {
		return agent.Request{}, nil, NewInvalid("", err.Error())
	}
	d := newDecoder("", body)
	d.errors = wrongParameters[:min(len(wrongParameters), maxErrors)]
	r := d.readRequest()
	return r, body, d.finishBody()
}

// bodyMember converts the values of the query parameter name to the body's member with the same name. If the member is
// a list, it has all values; otherwise it is the first value. member is nil if the query may not have this parameter.
func bodyMember(name string, values []string) (member any, isList bool) {
	switch name {
	case "servers", "tools":
		return values, true
	case "question", "model", "tool_choice", "thread_id", "on_busy", "agent":
		return values[0], false
	case "max_turns":
		if n, ok := agent.ParseJSONInteger(values[0]); ok {
			return n, false
		}
		return values[0], false // the decoder of the body then refuses max_turns, because it is a string
	}
	return nil, false
}

// readRequest reads the whole body of a question into an agent.Request. Errors are collected in d.
func (d *decoder) readRequest() (request agent.Request) {
	for name := range d.readObject("question") {
		switch name {
		case "question":
			request.Question = d.readQuestion()
		case "history":
			request.History = []agent.Message{} // an empty history says that nothing came before, and nil does not
			for range d.readList(maxHistory) {
				request.History = append(request.History, d.readMessage())
			}
		case "model":
			request.Model = d.readText(maxModel)
		case "tool_choice":
			request.ToolChoice = agent.ToolChoice(d.readChoice(toolChoices))
		case "metadata":
			request.Metadata = d.readPairs()
		case "background":
			request.Background = d.readBool()
		case "callback":
			request.Callback = d.readText(maxCallback)
		case "attachments":
			for range d.readList(attachment.Max) {
				request.Media = append(request.Media, d.readAttachment())
			}
			request.OnlyAcceptedMedia = true
		case "instructions":
			request.Instructions = d.readText(maxUnbounded)
		default:
			d.readOption(name, &request)
		}
	}
	return request
}

// readQuestion reads the question, which must be a string that is not blank.
func (d *decoder) readQuestion() string {
	question, ok := d.readString(mustBeText)
	if ok && strings.TrimSpace(question) == "" {
		d.addError("must not be blank")
	}
	return question
}

// readOption reads the value of the field name into request. These are the fields that requests of every API format may
// have: in the body of native requests, and in the member "answerd" of others. For any other name it adds an error.
func (d *decoder) readOption(name string, request *agent.Request) {
	switch name {
	case "agent":
		request.Agent = d.readID()
	case "servers":
		request.Servers = d.readNames(request.Servers)
	case "tools":
		request.Tools = d.readNames(request.Tools)
	case "max_turns":
		request.MaxTurns = int(d.readInteger())
	case "budget":
		request.Budget, request.AskAtLimit = d.readBudget()
	case "context":
		request.Context = d.readPairs()
	case "prompt":
		request.Prompt = d.readPrompt()
	case "thread_id":
		request.ThreadID = d.readID()
	case "on_busy":
		request.OnBusy = agent.OnBusy(d.readChoice(onBusy))
	case "output_schema":
		request.OutputSchema = d.readSchema()
		if request.Sampling.ResponseFormat != nil {
			d.addError("the request has a response format of its own")
		}
	default:
		d.rejectUnknown()
	}
}

// onBusy lists the values of on_busy, which says what happens to a question while another run of its thread is active.
var onBusy = []string{string(agent.BusyQueue), string(agent.BusyCancel)}

// onLimit lists the values of on_limit, which says what the agent does when the run reaches a limit of its budget: it
// lets the model write an answer from what it has, or asks a person for a higher limit.
var onLimit = []string{"sum_up", "ask"}

// readBudget reads the run's limits. askAtLimit reports whether on_limit is "ask": the agent asks a person for a higher
// limit when the run has reached one.
func (d *decoder) readBudget() (limits agent.Budget, askAtLimit bool) {
	for name := range d.readObject() {
		switch name {
		case "tool_calls":
			limits.ToolCalls = int(d.readInteger())
		case "input_tokens":
			limits.InputTokens = d.readInteger()
		case "output_tokens":
			limits.OutputTokens = d.readInteger()
		case "total_tokens":
			limits.TotalTokens = d.readInteger()
		case "seconds":
			limits.Seconds = d.readNumber(maxSeconds)
		case "result_bytes":
			limits.ResultBytes = d.readInteger()
		case "cost":
			limits.Cost = d.readNumber(maxCost)
		case "on_limit":
			askAtLimit = d.readChoice(onLimit) == "ask"
		default:
			d.rejectUnknown()
		}
	}
	return limits, askAtLimit
}

// readPrompt reads the reference to a prompt of an MCP server, with which the run starts.
func (d *decoder) readPrompt() *agent.ServerPrompt {
	prompt := &agent.ServerPrompt{}
	for name := range d.readObject("server", "name") {
		switch name {
		case "server":
			prompt.Server = d.readName()
		case "name":
			prompt.Name = d.readName()
		case "arguments":
			prompt.Arguments = d.readPairs()
		default:
			d.rejectUnknown()
		}
	}
	return prompt
}

// readMessage reads a message of the history. It accepts any role, because the agent ignores
// messages with roles that it does not know.
func (d *decoder) readMessage() (message agent.Message) {
	for name := range d.readObject("role", "content") {
		switch name {
		case "role":
			message.Role = d.readText(maxName)
		case "content":
			message.Content = d.readText(maxUnbounded)
		default:
			d.rejectUnknown()
		}
	}
	return message
}

// readAttachment reads a file that belongs to the question: media_type, data in base64 and an optional name.
func (d *decoder) readAttachment() (media agent.Media) {
	var name, mediaType, data string
	errorsBefore := len(d.errors)
	for member := range d.readObject("media_type", "data") {
		switch member {
		case "name":
			name = d.readText(maxName)
		case "media_type":
			mediaType = d.readText(maxName)
		case "data":
			data = d.readText(maxUnbounded)
		default:
			d.rejectUnknown()
		}
	}
	if d.err != nil || len(d.errors) > errorsBefore {
		return media
	}
	media, err := attachment.New(name, mediaType, data)
	if err != nil {
		d.addError(err.Error())
	}
	return media
}

// actions lists the ways to answer an elicitation (MCP, client/elicitation, "Response Actions").
var actions = []string{"accept", "decline", "cancel"}

// maxReason is the largest length, in characters, of a person's reason for a decision.
const maxReason = 1024

// DecodeInput decodes the body of POST /runs/{run_id}/input. It is an answer to an approval if it has the field
// approved, or to an elicitation if it has action. Fields that belong to the other kind are reported as unknown. The
// error is an *Invalid. DecodeInput does not know the run's interrupts, so the agent checks whether the answer fits.
func DecodeInput(body []byte) (agent.Input, error) {
	dec := newDecoder("", body)
	var input agent.Input
	given := make(map[string]bool) // the names of the fields in the body
	for name := range dec.readObject("id") {
		given[name] = true
		switch name {
		case "id":
			input.ID = dec.readID()
		case "approved":
			approved := dec.readBool()
			input.Approved = &approved
		case "reason":
			input.Reason = dec.readText(maxReason)
		case "args":
			input.Args = dec.readRawObject()
		case "action":
			input.Action = dec.readChoice(actions)
		case "content":
			input.Content = dec.readRawObject()
		default:
			dec.rejectUnknown()
		}
	}

	var misplaced []string // the fields that only the other kind of answer may have
	isApproval, isElicitation := given["approved"], given["action"]
	switch {
	case isApproval == isElicitation:
		dec.addErrorAt("/action", "either action or approved is required, and not both")
	case isApproval:
		misplaced = []string{"content"}
	case isElicitation:
		misplaced = []string{"reason", "args"}
	}
	for _, name := range misplaced {
		if given[name] {
			dec.addErrorAt("/"+name, "unknown field")
		}
	}
	return input, dec.finishBody()
}

// DecodeToolCall decodes the body of POST /tools/{name}/call. It does not set Tool, because the tool's name is in the
// path. The error is an *Invalid.
func DecodeToolCall(body []byte) (agent.ToolCall, error) {
	dec := newDecoder("", body)
	var call agent.ToolCall
	for name := range dec.readObject() {
		switch name {
		case "args":
			call.Args = dec.readRawObject() // unchanged: the agent validates it against the tool's schema
		case "context":
			call.Context = dec.readPairs()
		case "approved":
			call.Approved = dec.readBool()
		default:
			dec.rejectUnknown()
		}
	}
	return call, dec.finishBody()
}
