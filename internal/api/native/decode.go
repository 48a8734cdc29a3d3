package native

import (
	"cmp"
	"encoding/json"
	"net/url"
	"strings"
	"unicode/utf8"

	"answerd/internal/agent"

	"github.com/go-json-experiment/json/jsontext"
)

// Bounds of a request, in bytes and items, below the bound of the whole body.
const (
	maxModel    = 256
	maxID       = 128
	maxHistory  = 1024
	maxList     = 256
	maxName     = 128
	maxPairs    = 32
	maxPairKey  = 64
	maxPairText = 1024
	maxSeconds  = 86400
	maxCost     = 1e9
	// maxErrors is how many things that are wrong are listed. A body has room for a
	// hundred thousand.
	maxErrors = 100
)

var toolChoices = []string{string(agent.ToolAuto), string(agent.ToolNone), string(agent.ToolRequired)}

// Decode reads the body of POST /answer or /answer/stream. The error is an *Invalid.
func Decode(body []byte) (agent.Request, error) {
	d := newDecoder("", body)
	r := d.request()
	return r, d.end()
}

// DecodeOptions reads the member "answerd" of a request in another format into r: the
// fields of ours that the format lacks. The error is an *Invalid. raw may be nil.
func DecodeOptions(raw json.RawMessage, r *agent.Request) error {
	if raw == nil {
		return nil
	}
	d := newDecoder("/answerd", raw)
	calls := r.Budget.ToolCalls
	for name := range d.object() {
		d.option(name, r)
	}
	r.Budget.ToolCalls = cmp.Or(r.Budget.ToolCalls, calls)
	return d.end()
}

// DecodeQuery reads the query of GET /answer/stream, which a plain EventSource can
// send: the fields of the body that are a text, a number or a list of texts. Their
// errors point at the field of that name.
func DecodeQuery(q url.Values) (agent.Request, error) {
	var bad []FieldError
	root := make(map[string]any)
	for name, values := range q {
		pointer := string(jsontext.Pointer("").AppendToken(name))
		for _, text := range append(values, name) {
			if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
				return agent.Request{}, invalid(pointer, "is not UTF-8, or contains U+0000")
			}
		}
		switch name {
		case "servers", "tools":
			root[name] = values
			continue
		case "question", "model", "tool_choice", "thread_id":
			root[name] = values[0]
		case "max_turns":
			root[name] = values[0] // which is not the number that it must be
			if n, ok := agent.ParseJSONInteger(values[0]); ok {
				root[name] = n
			}
		default:
			bad = append(bad, FieldError{pointer, "unknown parameter"})
			continue
		}
		if len(values) > 1 {
			bad = append(bad, FieldError{pointer, "given twice"})
		}
	}
	body, err := json.Marshal(root)
	if err != nil {
		return agent.Request{}, invalid("", err.Error())
	}
	d := newDecoder("", body)
	d.errors = bad[:min(len(bad), maxErrors)]
	r := d.request()
	return r, d.end()
}

func (d *decoder) request() (r agent.Request) {
	for name := range d.object("question") {
		switch name {
		case "question":
			if value, ok := d.read('"', mustBeText); ok {
				if r.Question = unquote(value); strings.TrimSpace(r.Question) == "" {
					d.add("must not be blank")
				}
			}
		case "history":
			for range d.list(maxHistory) {
				r.History = append(r.History, d.message())
			}
		case "model":
			r.Model = d.text(maxModel)
		case "tool_choice":
			r.ToolChoice = agent.ToolChoice(d.choice(toolChoices))
		case "metadata":
			r.Metadata = d.pairs()
		case "background":
			r.Background = d.boolean()
		default:
			d.option(name, &r)
		}
	}
	return r
}

// option reads a field that requests in other formats may have, too.
func (d *decoder) option(name string, r *agent.Request) {
	switch name {
	case "servers":
		r.Servers = append(r.Servers, d.names()...)
	case "tools":
		r.Tools = append(r.Tools, d.names()...)
	case "max_turns":
		r.MaxTurns = int(d.positive())
	case "budget":
		r.Budget, r.AskAtLimit = d.budget()
	case "context":
		r.Context = d.pairs()
	case "prompt":
		r.Prompt = d.prompt()
	case "thread_id":
		r.ThreadID = d.id()
	default:
		d.unknown()
	}
}

// onLimit is what can be done when a limit of the budget is reached.
var onLimit = []string{"sum_up", "ask"}

func (d *decoder) budget() (b agent.Budget, ask bool) {
	for name := range d.object() {
		switch name {
		case "tool_calls":
			b.ToolCalls = int(d.positive())
		case "input_tokens":
			b.InputTokens = d.positive()
		case "output_tokens":
			b.OutputTokens = d.positive()
		case "total_tokens":
			b.TotalTokens = d.positive()
		case "seconds":
			b.Seconds = d.fraction(maxSeconds)
		case "result_bytes":
			b.ResultBytes = d.positive()
		case "cost":
			b.Cost = d.fraction(maxCost)
		case "on_limit":
			ask = d.choice(onLimit) == "ask"
		default:
			d.unknown()
		}
	}
	return b, ask
}

func (d *decoder) prompt() *agent.ServerPrompt {
	p := &agent.ServerPrompt{}
	for name := range d.object("server", "name") {
		switch name {
		case "server":
			p.Server = d.name()
		case "name":
			p.Name = d.name()
		case "arguments":
			p.Arguments = d.pairs()
		default:
			d.unknown()
		}
	}
	return p
}

// message takes any role, because the agent skips those that it doesn't know (S2.5).
func (d *decoder) message() (m agent.Message) {
	for name := range d.object("role", "content") {
		switch name {
		case "role":
			m.Role = d.text(maxName)
		case "content":
			m.Content = d.text(maxUnbounded)
		default:
			d.unknown()
		}
	}
	return m
}
