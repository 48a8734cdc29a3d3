package definition

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds of a file of agents.
const (
	maxFile        = 1 << 20 // bytes
	maxAgents      = 200
	maxPrompt      = 64 << 10 // bytes of a prompt, which every run stores
	maxDescription = 1024     // bytes
	maxModel       = 256      // bytes
	maxList        = 256      // items of servers, tools or agents
	maxItem        = 128      // bytes of a name, a glob or an id
	maxExamples    = 20
	maxExample     = 1024     // bytes
	maxSchema      = 64 << 10 // bytes of an output schema
	maxSeconds     = 86400
	maxCost        = 1e9
)

// Options says what Parse needs to know about the service. With the zero value, agents cannot name a model or a
// prompt_file.
type Options struct {
	// ReadFile reads the file of a prompt_file, whose name is relative to Dir. If it is nil, prompt_file is an error.
	ReadFile func(name string) ([]byte, error)
	Dir      string
	// Models lists the ids of the models. An agent must not have the id of a model. The model of an agent must be in
	// Models, unless AnyModel is set.
	Models   []string
	AnyModel bool
	// HasPrice reports whether the price of a model is known; "" is the default model. nil means that all
	// prices are known. An agent must not limit the cost of a model without a price.
	HasPrice func(model string) bool
	// Servers lists the names of the MCP servers. An agent must not name any other server; nil allows all names.
	Servers []string
}

// Error says what is wrong with a file of agents.
type Error struct {
	Agent  string // the id, or without an id the number in the file, from 1; "" if no agent is meant
	Line   int    // from 1; 0 if unknown
	Detail string
}

// Error returns the agent, the line and the detail.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Agent != "" {
		b.WriteString("agent " + e.Agent + ", ")
	}
	if e.Line > 0 {
		b.WriteString("line " + strconv.Itoa(e.Line) + ", ")
	}
	text := b.String()
	if text == "" {
		return e.Detail
	}
	return strings.TrimSuffix(text, ", ") + ": " + e.Detail
}

// parser reads the nodes of one file.
type parser struct {
	Options
	file       File                  // what has been read so far
	agent      string                // id or number of the agent that is being read, for errors; "" for none
	askedNodes map[string]*yaml.Node // by id of an agent, the value of its member agents
}

// errorAt returns an *Error about a node of the current agent.
func (p *parser) errorAt(node *yaml.Node, format string, args ...any) error {
	return &Error{Agent: p.agent, Line: node.Line, Detail: fmt.Sprintf(format, args...)}
}

// errUnknown is what a callback of readMembers returns for a member that it does not know.
var errUnknown = errors.New("unknown member")

// readMembers calls read for each member of the mapping node, in order, until read fails. It returns an *Error if node
// is not a mapping, if a member is given twice, has an alias as its value or a name that is not a text, and if read
// returns errUnknown. Any other error of read is returned unchanged. parent precedes the names of members in errors,
// for example "budget."; it is "" for an agent and for the file.
func (p *parser) readMembers(node *yaml.Node, parent string, read func(name string, value *yaml.Node) error) error {
	if node.Kind != yaml.MappingNode {
		return p.errorAt(node, "%s must be an object", cmp.Or(strings.TrimRight(parent, ".: "), "an agent"))
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode || key.Tag != "!!str":
			return p.errorAt(key, "the name of a member must be a text")
		case seen[key.Value]:
			return p.errorAt(key, "%s%s is given twice", parent, printable(key.Value))
		case value.Kind == yaml.AliasNode:
			return p.errorAt(value, "%s%s is an alias, which is not supported", parent, printable(key.Value))
		}
		seen[key.Value] = true
		err := read(key.Value, value)
		if errors.Is(err, errUnknown) {
			return p.errorAt(key, "unknown member %s%s", parent, printable(key.Value))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// printable returns the first 64 bytes of a text of the file for an error message, with control characters escaped.
func printable(text string) string {
	return strings.Trim(strconv.QuoteToGraphic(text[:min(len(text), 64)]), `"`)
}

// File is the content of a file of agents.
type File struct {
	Agents      []Agent  // in the order of the file; the first one is the default
	PromptFiles []string // the files that prompts were read from
}
