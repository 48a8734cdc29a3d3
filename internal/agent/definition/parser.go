package definition

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Limits on a file of agents.
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
	maxDepth       = 100      // levels of an output schema
	maxToolName    = 64       // bytes of the name of the tool that asks an agent
	maxSeconds     = 86400
	maxCost        = 1e9
)

// Options tells Parse about the service. With the zero value, agents cannot name a model or a prompt_file.
type Options struct {
	// ReadFile reads a prompt_file, whose name is relative to Dir. If ReadFile is nil, prompt_file is an error.
	ReadFile func(name string) ([]byte, error)
	Dir      string
	// Models lists the ids of the models. No agent may have such an id. An agent's model must be one of them unless
	// AnyModel is set.
	Models   []string
	AnyModel bool
	// HasPrice reports whether a model's price is known; "" means the default model. A nil HasPrice means that all
	// prices are known. An agent must not limit the cost if its model has no price.
	HasPrice func(model string) bool
	// Servers lists the names of the MCP servers. An agent may name only these, or any server if the list is nil.
	Servers []string
}

// Error says what is wrong with a file of agents.
type Error struct {
	Agent  string // its id or, if it has none, its number in the file, from 1; "" if the error is about no agent
	Line   int    // from 1; 0 if unknown
	Detail string
}

// Error returns the agent, if any, the line, if known, and the detail.
func (e *Error) Error() string {
	var place []string
	if e.Agent != "" {
		place = append(place, "agent "+e.Agent)
	}
	if e.Line > 0 {
		place = append(place, "line "+strconv.Itoa(e.Line))
	}
	if place == nil {
		return e.Detail
	}
	return strings.Join(place, ", ") + ": " + e.Detail
}

// parser reads the nodes of one file. Its methods return an *Error for a mistake in the file.
type parser struct {
	Options
	file       File                  // what has been read so far
	agent      string                // the id or number of the agent being read, for errors; "" if none is
	askedNodes map[string]*yaml.Node // the value of each agent's member agents, by the agent's id
}

// errorAt returns an *Error about node and the current agent.
func (p *parser) errorAt(node *yaml.Node, format string, args ...any) error {
	return &Error{Agent: p.agent, Line: node.Line, Detail: fmt.Sprintf(format, args...)}
}

// errUnknown is what readMembers' callback returns for a member that it does not know.
var errUnknown = errors.New("unknown member")

// readMembers calls read for each member of node, in order, until read returns an error. readMembers returns an *Error
// if node is not a mapping, if a member occurs twice, if its name is not a text, if its value is an alias, or if read
// returns errUnknown. It returns other errors from read unchanged. parent precedes the members' names in errors, such
// as "budget."; it is "" for an agent and for the file.
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

// printable returns the first 64 bytes of a text in the file, for an error message, with control characters escaped.
func printable(text string) string {
	return strings.Trim(strconv.QuoteToGraphic(text[:min(len(text), 64)]), `"`)
}

// File is the content of an agents file.
type File struct {
	Agents      []Agent  // in the order of the file; the first one is the default
	PromptFiles []string // the files that prompts were read from
}
