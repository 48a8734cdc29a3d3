package definition

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"answerd/internal/agent/prompt"
	"answerd/internal/mcp/config"
)

// reservedID must not be the id of an agent, because it is the name of the default agent's MCP tool.
const reservedID = "answer"

// Parse parses a file of agents, and reads the prompt files that it names. An error is an *Error about the first
// mistake. Parse first checks each agent by itself, and then which agents ask which, since an agent may ask one that is
// defined later in the file.
func Parse(data []byte, opts Options) (File, error) {
	p := parser{Options: opts, askedNodes: make(map[string]*yaml.Node)}
	root, err := parseYAML(data)
	if err != nil {
		return File{}, err
	}
	if err := p.readFile(root); err != nil {
		return File{}, err
	}
	if err := p.checkDelegation(); err != nil {
		return File{}, err
	}
	return p.file, nil
}

// parseYAML returns the root of the file's only document. It returns an error if the file is larger than maxFile, is
// not UTF-8 or YAML, is empty, or has a second document.
func parseYAML(data []byte) (*yaml.Node, error) {
	switch {
	case len(data) > maxFile:
		return nil, &Error{Detail: fmt.Sprintf("is larger than %d bytes", maxFile)}
	case !utf8.Valid(data):
		return nil, &Error{Detail: "is not UTF-8"}
	}
	if json.Valid(data) {
		data = jsonAsYAML(data)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	if err := dec.Decode(&document); err != nil {
		return nil, syntaxError(err)
	}
	err := dec.Decode(&second)
	if err == nil {
		return nil, &Error{Line: second.Line, Detail: "a second document, but the file has one"}
	}
	if !errors.Is(err, io.EOF) {
		return nil, syntaxError(err)
	}
	if document.Kind != yaml.DocumentNode || len(document.Content) != 1 {
		return nil, &Error{Detail: "has no agents"}
	}
	return document.Content[0], nil
}

// jsonEscapes matches an escaped backslash, an escaped slash, or a surrogate pair, which encodes one character. It
// matches escaped backslashes so that the character after them is not taken for an escaped one.
var jsonEscapes = regexp.MustCompile(`\\\\|\\/|\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})`)

// jsonAsYAML rewrites JSON so that the YAML library can read it, without changing its values. It replaces what the
// library does not support: tabs between tokens, escaped slashes, and surrogate pairs. It does not change lines, so
// that errors name the right line of the file.
func jsonAsYAML(data []byte) []byte {
	data = bytes.ReplaceAll(data, []byte("\t"), []byte(" ")) // JSON strings cannot contain a tab
	return jsonEscapes.ReplaceAllFunc(data, func(match []byte) []byte {
		switch string(match) {
		case `\\`:
			return match
		case `\/`:
			return []byte("/")
		}
		// match is a surrogate pair, such as \ud83d\ude00.
		high, _ := strconv.ParseUint(string(match[2:6]), 16, 16)
		low, _ := strconv.ParseUint(string(match[8:12]), 16, 16)
		return []byte(string(utf16.DecodeRune(rune(high), rune(low))))
	})
}

// lineInError matches errors of the YAML library that name a line.
var lineInError = regexp.MustCompile(`^yaml: line (\d+): (.*)`)

// syntaxError converts an error of the YAML library to an *Error, with the line if the library names one. If the file
// ends before a document begins, it has no agents.
func syntaxError(err error) error {
	if errors.Is(err, io.EOF) {
		return &Error{Detail: "has no agents"}
	}
	match := lineInError.FindStringSubmatch(strings.ReplaceAll(err.Error(), "\n", " "))
	if match == nil {
		return &Error{Detail: "is not YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")}
	}
	line, _ := strconv.Atoi(match[1])
	return &Error{Line: line, Detail: "is not YAML: " + match[2]}
}

// readFile reads the file's root into p.file. The root must be an object whose only member is agents.
func (p *parser) readFile(root *yaml.Node) error {
	if root.Kind != yaml.MappingNode {
		return p.errorAt(root, "the file must be an object with the member agents")
	}
	return p.readMembers(root, "", func(name string, value *yaml.Node) error {
		if name != "agents" {
			return errUnknown
		}
		if value.Kind != yaml.SequenceNode || len(value.Content) == 0 || len(value.Content) > maxAgents {
			return p.errorAt(value, "agents must be a list of 1 to %d agents", maxAgents)
		}
		for i, item := range value.Content {
			p.agent = strconv.Itoa(i + 1) // until readAgent has read the id
			agent, err := p.readAgent(item)
			if err != nil {
				return err
			}
			p.file.Agents = append(p.file.Agents, agent)
			p.agent = ""
		}
		return nil
	})
}

// validID matches the ids that an agent may have.
var validID = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// readAgent reads and checks one agent, except for the agents that it asks (checkDelegation). It reads the id first, so
// that errors about other members can name the agent.
func (p *parser) readAgent(node *yaml.Node) (agent Agent, err error) {
	if err := p.findID(node, &agent); err != nil {
		return agent, err
	}
	var promptNode, budgetNode *yaml.Node
	err = p.readMembers(node, "", func(name string, value *yaml.Node) error {
		switch name {
		case "prompt", "prompt_file":
			if promptNode != nil {
				return p.errorAt(value, "prompt and prompt_file are both given")
			}
			promptNode = value
		case "budget":
			budgetNode = value
		}
		return p.readMember(&agent, name, value)
	})
	switch {
	case err != nil:
		return agent, err
	case agent.ID == "":
		return agent, p.errorAt(node, "id is missing")
	case agent.Budget.Cost > 0 && p.HasPrice != nil && !p.HasPrice(agent.Model):
		return agent, p.errorAt(budgetNode, "budget.cost needs a price of the agent's model, in MODELS_FILE")
	case promptNode == nil:
		return agent, nil
	}
	if _, err := prompt.New(prompt.Options{Template: agent.Prompt}); err != nil {
		return agent, p.errorAt(promptNode, "prompt: %v", err)
	}
	return agent, nil
}

// findID finds the member id of an agent's node and reads it (readID). It does nothing if node has no such member.
func (p *parser) findID(node *yaml.Node, agent *Agent) error {
	if node.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, value := node.Content[i], node.Content[i+1]
		if name.Value != "id" {
			continue
		}
		if err := p.readID(value, agent); err != nil {
			return err
		}
	}
	return nil
}

// readID reads an agent's id into agent.ID, and sets p.agent for later errors. The id must not be reserved, and must
// not be the id of a model or of an earlier agent.
func (p *parser) readID(node *yaml.Node, agent *Agent) error {
	id, err := p.readText(node, "id", 1, 64)
	if err != nil {
		return err
	}
	switch {
	case !validID.MatchString(id):
		return p.errorAt(node, "id must be 1 to 64 of a-z, 0-9, _ and -, and begin with a letter or digit")
	case id == reservedID:
		return p.errorAt(node, "id answer is the name of the MCP tool of the default agent")
	case id == CapabilitiesID:
		return p.errorAt(node, "id capabilities is a path of AG-UI, /agui/capabilities")
	case slices.Contains(p.Models, id):
		return p.errorAt(node, "id %s is also the id of a model", id)
	}
	p.agent = id
	if Find(p.file.Agents, id) != nil {
		return p.errorAt(node, "id is given to two agents")
	}
	agent.ID = id
	return nil
}

// readMember reads the agent's member called name from node, and checks it. It ignores id, which readAgent has already
// read. For agents, it stores the node in p.askedNodes, so that checkDelegation can check it later. If agents have no
// such member, it returns errUnknown.
func (p *parser) readMember(agent *Agent, name string, node *yaml.Node) (err error) {
	switch name {
	case "id":
	case "description":
		agent.Description, err = p.readText(node, name, 0, maxDescription)
	case "model":
		agent.Model, err = p.readText(node, name, 1, maxModel)
		isServed := p.AnyModel || slices.Contains(p.Models, agent.Model)
		if err == nil && !isServed {
			err = p.errorAt(node, "model %s is not one of the models", printable(agent.Model))
		}
	case "prompt":
		agent.Prompt, err = p.readText(node, name, 1, maxPrompt)
	case "prompt_file":
		agent.Prompt, err = p.readPromptFile(node)
	case "servers":
		if agent.Servers, err = p.readList(node, name, maxList, maxItem); err == nil {
			err = p.checkServers(node, agent.Servers)
		}
	case "tools":
		if agent.Tools, err = p.readList(node, name, maxList, maxItem); err == nil {
			err = p.checkGlobs(node, agent.Tools)
		}
	case "agents":
		agent.Agents, err = p.readList(node, name, maxList, maxItem)
		p.askedNodes[agent.ID] = node
	case "approval":
		agent.Approval, err = p.readApproval(node)
	case "max_turns":
		var turns int64
		turns, err = p.readPositiveInteger(node, name)
		agent.MaxTurns = int(turns)
	case "budget":
		agent.Budget, err = p.readBudget(node)
	case "sampling":
		err = p.readSampling(node, agent)
	case "output_schema":
		agent.OutputSchema, err = p.readSchema(node)
	case "examples":
		agent.Examples, err = p.readList(node, name, maxExamples, maxExample)
	default:
		return errUnknown
	}
	return err
}

// readApproval reads the member approval, which says which tools need a person's approval of each call.
func (p *parser) readApproval(node *yaml.Node) (config.Approval, error) {
	text, err := p.readText(node, "approval", 1, maxItem)
	if err != nil {
		return "", err
	}
	switch approval := config.Approval(text); approval {
	case config.ApproveNever, config.ApproveDestructive, config.ApproveAlways:
		return approval, nil
	}
	return "", p.errorAt(node, "approval must be never, destructive or always")
}

// checkDelegation returns an error if an agent lists an agent that it cannot ask, or could ask itself through other
// agents. All agents must have been read.
func (p *parser) checkDelegation() error {
	for i := range p.file.Agents {
		if err := p.checkAskedAgents(&p.file.Agents[i]); err != nil {
			return err
		}
	}
	visited := make(map[string]bool) // agents that do not lead to a cycle
	for i := range p.file.Agents {
		cycle := p.findCycle(&p.file.Agents[i], nil, visited)
		if cycle == nil {
			continue
		}
		p.agent = cycle[0]
		return p.errorAt(p.askedNodes[cycle[0]], "agents: the agents ask each other in a cycle, %s", strings.Join(cycle, " → "))
	}
	return nil
}

// checkAskedAgents returns an error if agent lists an agent that is not defined, that is listed twice, or whose id is
// too long for a tool's name.
func (p *parser) checkAskedAgents(agent *Agent) error {
	p.agent = agent.ID
	seen := make(map[string]bool)
	for i, id := range agent.Agents {
		node := p.askedNodes[agent.ID].Content[i]
		switch {
		case Find(p.file.Agents, id) == nil:
			return p.errorAt(node, "agents: no agent has the id %s", printable(id))
		case len(AskPrefix+id) > maxToolName:
			return p.errorAt(node, "agents: the id %s is too long for the name of a tool, %s and the id, of at most %d characters",
				id, AskPrefix, maxToolName)
		case seen[id]:
			return p.errorAt(node, "agents: %s is given twice", id)
		}
		seen[id] = true
	}
	return nil
}

// findCycle returns the ids of a cycle that can be reached from agent, with the first id repeated at the end, or nil.
// asking lists the agents on the way to agent. findCycle adds agents that do not lead to a cycle to visited.
func (p *parser) findCycle(agent *Agent, asking []string, visited map[string]bool) []string {
	if first := slices.Index(asking, agent.ID); first >= 0 {
		return append(slices.Clone(asking[first:]), agent.ID)
	}
	if visited[agent.ID] {
		return nil
	}
	asking = append(slices.Clone(asking), agent.ID)
	for _, id := range agent.Agents {
		if cycle := p.findCycle(Find(p.file.Agents, id), asking, visited); cycle != nil {
			return cycle
		}
	}
	visited[agent.ID] = true
	return nil
}
