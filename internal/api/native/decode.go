package native

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"answerd/internal/agent"
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
	v, err := parse(body)
	if err != nil {
		return agent.Request{}, err
	}
	root, ok := v.(map[string]any)
	if !ok {
		return agent.Request{}, invalid("", "must be an object")
	}
	f := &fields{}
	f.known("", root, "question", "history", "model", "tool_choice", "servers", "tools", "max_turns",
		"budget", "context", "prompt", "thread_id", "metadata", "background")
	r := f.request(root)
	return r, f.err()
}

// DecodeOptions reads the member "answerd" of a request in another format into r: the
// fields of ours that the format lacks. The error is an *Invalid. raw may be nil.
func DecodeOptions(raw json.RawMessage, r *agent.Request) error {
	if raw == nil {
		return nil
	}
	const at = "/answerd"
	v, err := parse(raw)
	if bad, ok := errors.AsType[*Invalid](err); ok {
		for i := range bad.Errors {
			bad.Errors[i].Pointer = at + bad.Errors[i].Pointer
		}
	}
	if err != nil {
		return err
	}
	root, ok := v.(map[string]any)
	if !ok {
		return invalid(at, "must be an object")
	}
	f := &fields{}
	f.known(at, root, "servers", "tools", "max_turns", "budget", "context", "prompt", "thread_id")
	r.Servers = append(r.Servers, f.texts(root, at+"/servers")...)
	r.Tools = append(r.Tools, f.texts(root, at+"/tools")...)
	r.MaxTurns = int(f.positive(root, at+"/max_turns"))
	r.Context = f.pairs(root, at+"/context")
	r.Prompt = f.prompt(root, at+"/prompt")
	if id := f.id(root, at+"/thread_id"); id != "" {
		r.ThreadID = id
	}
	if _, given := root["budget"]; given {
		calls := r.Budget.ToolCalls
		r.Budget = f.budget(root, at+"/budget")
		r.Budget.ToolCalls = cmp.Or(r.Budget.ToolCalls, calls)
		r.AskAtLimit = f.asksAtLimit(root, at+"/budget/on_limit")
	}
	return f.err()
}

// DecodeQuery reads the query of GET /answer/stream, which a plain EventSource can
// send: the fields of the body that are a text, a number or a list of texts. Their
// errors point at the field of that name.
func DecodeQuery(q url.Values) (agent.Request, error) {
	f := &fields{}
	root := make(map[string]any)
	for name, values := range q {
		for _, text := range append(values, name) {
			if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
				return agent.Request{}, invalid("/"+escape(strings.ToValidUTF8(name, "\uFFFD")), "is not UTF-8, or contains U+0000")
			}
		}
		switch name {
		case "servers", "tools":
			list := make([]any, len(values))
			for i, v := range values {
				list[i] = v
			}
			root[name] = list
		case "question", "model", "tool_choice", "thread_id":
			root[name] = f.single(name, values)
		case "max_turns":
			root[name] = json.Number(f.single(name, values))
		default:
			f.add("/"+escape(name), "unknown parameter")
		}
	}
	r := f.request(root)
	return r, f.err()
}

// fields reads the members of an object and collects what is wrong with them. The
// methods return the zero value of a member that is missing or wrong.
type fields struct{ errors []FieldError }

func (f *fields) request(root map[string]any) agent.Request {
	r := agent.Request{
		Question:   f.text(root, "/question", maxUnbounded),
		History:    f.history(root, "/history"),
		Model:      f.text(root, "/model", maxModel),
		ToolChoice: agent.ToolChoice(f.choice(root, "/tool_choice", toolChoices)),
		Servers:    f.texts(root, "/servers"),
		Tools:      f.texts(root, "/tools"),
		MaxTurns:   int(f.positive(root, "/max_turns")),
		Budget:     f.budget(root, "/budget"),
		Context:    f.pairs(root, "/context"),
		Prompt:     f.prompt(root, "/prompt"),
		ThreadID:   f.id(root, "/thread_id"),
		Metadata:   f.pairs(root, "/metadata"),
		Background: f.boolean(root, "/background"),
		AskAtLimit: f.asksAtLimit(root, "/budget/on_limit"),
	}
	f.question(r.Question, root)
	return r
}

func (f *fields) add(pointer, detail string) {
	if len(f.errors) < maxErrors {
		f.errors = append(f.errors, FieldError{pointer, detail})
	}
}

func (f *fields) err() error {
	if len(f.errors) == 0 {
		return nil
	}
	slices.SortFunc(f.errors, func(a, b FieldError) int { return strings.Compare(a.Pointer, b.Pointer) })
	return &Invalid{f.errors}
}

func (f *fields) question(text string, root map[string]any) {
	if _, given := root["question"]; !given {
		f.add("/question", "required")
	} else if _, ok := root["question"].(string); ok && strings.TrimSpace(text) == "" {
		f.add("/question", "must not be blank")
	}
}

func (f *fields) known(pointer string, object map[string]any, names ...string) {
	for key := range object {
		if len(f.errors) == maxErrors {
			return
		}
		if !slices.Contains(names, key) {
			f.add(pointer+"/"+escape(key), "unknown field")
		}
	}
}

func (f *fields) single(name string, values []string) string {
	if len(values) > 1 {
		f.add("/"+name, "given twice")
	}
	return values[0]
}

// member looks up the last step of pointer in object.
func member(object map[string]any, pointer string) (any, bool) {
	v, ok := object[pointer[strings.LastIndexByte(pointer, '/')+1:]]
	return v, ok
}

const maxUnbounded = 0 // only the bound of the body holds

func (f *fields) text(object map[string]any, pointer string, limit int) string {
	v, given := member(object, pointer)
	if !given {
		return ""
	}
	s, ok := v.(string)
	switch {
	case !ok:
		f.add(pointer, "must be a string")
	case limit > 0 && len(s) > limit:
		f.add(pointer, fmt.Sprintf("must not be longer than %d bytes", limit))
	default:
		return s
	}
	return ""
}

// id is a text that ends up in logs, headers and URLs: visible ASCII only.
func (f *fields) id(object map[string]any, pointer string) string {
	s := f.text(object, pointer, maxID)
	if strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' }) {
		f.add(pointer, "must be visible ASCII characters")
		return ""
	}
	if _, given := member(object, pointer); given && s == "" && len(f.errors) == 0 {
		f.add(pointer, "must not be empty")
	}
	return s
}

func (f *fields) choice(object map[string]any, pointer string, allowed []string) string {
	s := f.text(object, pointer, maxName)
	if _, given := member(object, pointer); given && !slices.Contains(allowed, s) {
		f.add(pointer, "must be one of "+strings.Join(allowed, ", "))
	}
	return s
}

func (f *fields) boolean(object map[string]any, pointer string) bool {
	v, given := member(object, pointer)
	b, ok := v.(bool)
	if given && !ok {
		f.add(pointer, "must be true or false")
	}
	return b
}

// positive is a whole number of at least 1.
func (f *fields) positive(object map[string]any, pointer string) int64 {
	v, given := member(object, pointer)
	if !given {
		return 0
	}
	number, _ := v.(json.Number)
	n, ok := agent.ParseWhole(string(number))
	if !ok || n < 1 || n > math.MaxInt32 {
		f.add(pointer, "must be a whole number of at least 1")
		return 0
	}
	return int64(n)
}

func (f *fields) list(object map[string]any, pointer string, limit int) []any {
	v, given := member(object, pointer)
	list, ok := v.([]any)
	if given && !ok {
		f.add(pointer, "must be an array")
	}
	if len(list) > limit {
		f.add(pointer, fmt.Sprintf("must not have more than %d items", limit))
		return nil
	}
	return list
}

func (f *fields) object(object map[string]any, pointer string) map[string]any {
	v, given := member(object, pointer)
	m, ok := v.(map[string]any)
	if given && !ok {
		f.add(pointer, "must be an object")
	}
	return m
}

func (f *fields) texts(object map[string]any, pointer string) []string {
	var out []string
	for i, v := range f.list(object, pointer, maxList) {
		s, ok := v.(string)
		if !ok || s == "" || len(s) > maxName {
			f.add(fmt.Sprintf("%s/%d", pointer, i), fmt.Sprintf("must be a string of 1 to %d bytes", maxName))
			continue
		}
		out = append(out, s)
	}
	return out
}

func (f *fields) pairs(object map[string]any, pointer string) map[string]string {
	m := f.object(object, pointer)
	if len(m) > maxPairs {
		f.add(pointer, fmt.Sprintf("must not have more than %d members", maxPairs))
		return nil
	}
	var out map[string]string
	for k, v := range m {
		s, ok := v.(string)
		if !ok || k == "" || len(k) > maxPairKey || len(s) > maxPairText {
			f.add(pointer+"/"+escape(k), fmt.Sprintf("must be a string of at most %d bytes under a name of 1 to %d bytes", maxPairText, maxPairKey))
			continue
		}
		if out == nil {
			out = make(map[string]string, len(m))
		}
		out[k] = s
	}
	return out
}

func (f *fields) budget(object map[string]any, pointer string) agent.Budget {
	m := f.object(object, pointer)
	f.known(pointer, m, "tool_calls", "input_tokens", "output_tokens", "total_tokens", "seconds", "result_bytes", "cost", "on_limit")
	return agent.Budget{
		ToolCalls:    int(f.positive(m, pointer+"/tool_calls")),
		InputTokens:  f.positive(m, pointer+"/input_tokens"),
		OutputTokens: f.positive(m, pointer+"/output_tokens"),
		TotalTokens:  f.positive(m, pointer+"/total_tokens"),
		Seconds:      f.fraction(m, pointer+"/seconds", maxSeconds),
		ResultBytes:  f.positive(m, pointer+"/result_bytes"),
		Cost:         f.fraction(m, pointer+"/cost", maxCost),
	}
}

// onLimit is what can be done when a limit of the budget is reached.
var onLimit = []string{"sum_up", "ask"}

func (f *fields) asksAtLimit(object map[string]any, pointer string) bool {
	budget, _ := object["budget"].(map[string]any)
	return f.choice(budget, pointer, onLimit) == "ask"
}

// fraction is a number above 0 and at most limit; 0 if it is not given.
func (f *fields) fraction(object map[string]any, pointer string, limit float64) float64 {
	v, given := member(object, pointer)
	if !given {
		return 0
	}
	number, _ := v.(json.Number)
	n, err := number.Float64()
	if err != nil || n <= 0 || n > limit {
		f.add(pointer, fmt.Sprintf("must be a number above 0 and at most %.0f", limit))
		return 0
	}
	return n
}

func (f *fields) prompt(object map[string]any, pointer string) *agent.ServerPrompt {
	m := f.object(object, pointer)
	if m == nil {
		return nil
	}
	f.known(pointer, m, "server", "name", "arguments")
	p := &agent.ServerPrompt{
		Server: f.text(m, pointer+"/server", maxName), Name: f.text(m, pointer+"/name", maxName),
		Arguments: f.pairs(m, pointer+"/arguments"),
	}
	for _, name := range []string{"server", "name"} {
		if v, given := m[name]; !given || v == "" {
			f.add(pointer+"/"+name, "required")
		}
	}
	return p
}

// history takes any role, because the agent skips those that it doesn't know (S2.5).
func (f *fields) history(object map[string]any, pointer string) []agent.Message {
	var out []agent.Message
	for i, v := range f.list(object, pointer, maxHistory) {
		at := fmt.Sprintf("%s/%d", pointer, i)
		m, ok := v.(map[string]any)
		if !ok {
			f.add(at, "must be an object")
			continue
		}
		f.known(at, m, "role", "content")
		for _, name := range []string{"role", "content"} {
			if _, given := m[name]; !given {
				f.add(at+"/"+name, "required")
			}
		}
		out = append(out, agent.Message{Role: f.text(m, at+"/role", maxName), Content: f.text(m, at+"/content", maxUnbounded)})
	}
	return out
}
