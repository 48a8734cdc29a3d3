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
	maxList        = 256      // items
	maxItem        = 128      // bytes of a name or a glob
	maxExamples    = 20
	maxExample     = 1024     // bytes
	maxSchema      = 64 << 10 // bytes of an output schema
	maxSeconds     = 86400
	maxCost        = 1e9
)

// Options say what Parse needs to know about the service. The zero value checks no names and has no
// files.
type Options struct {
	// ReadFile reads the file of a prompt_file, and Dir is the directory that it is relative to.
	ReadFile func(name string) ([]byte, error)
	Dir      string
	// Models are the ids of the models. No agent may have the id of one. If AnyModel is false, an agent
	// may name no other model.
	Models   []string
	AnyModel bool
	// HasPrice reports whether the price of a model is known; "" is the default model. nil means that all
	// prices are known. An agent may not limit the cost of a model without a price.
	HasPrice func(model string) bool
	// Servers are the names of the MCP servers; nil means that any name is allowed.
	Servers []string
}

// Error says what is wrong with a file of agents.
type Error struct {
	Agent  string // the agent's id, or its number if it has no id; "" if the mistake belongs to none
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
	file  File
	agent string                // the agent that is read, for errors
	lines map[string]*yaml.Node // the member agents of each agent, by its id
}

// errorAt returns an error about a node.
func (p *parser) errorAt(n *yaml.Node, format string, args ...any) error {
	return &Error{Agent: p.agent, Line: n.Line, Detail: fmt.Sprintf(format, args...)}
}

// errUnknown is returned by functions of readMembers for a name that they do not know.
var errUnknown = errors.New("unknown member")

// readMembers calls read for each member of a mapping. parent is the name of the member whose value
// the mapping is, followed by a point; "" for an agent.
func (p *parser) readMembers(n *yaml.Node, parent string, read func(name string, value *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return p.errorAt(n, "%s must be an object", cmp.Or(strings.TrimRight(parent, ".: "), "an agent"))
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
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

// printable returns a text of the file for an error message.
func printable(s string) string {
	return strings.Trim(strconv.QuoteToGraphic(s[:min(len(s), 64)]), `"`)
}

// File is the content of a file of agents.
type File struct {
	Agents      []Agent  // in the order of the file; the first one is the default
	PromptFiles []string // the files that prompts were read from
}
