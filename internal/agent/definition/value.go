package definition

import (
	"encoding/json"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"answerd/internal/agent/budget"
	"answerd/internal/mcp/schema"
)

// readText reads a text of least to most bytes.
func (p *parser) readText(n *yaml.Node, name string, least, most int) (string, error) {
	switch {
	case n.Kind != yaml.ScalarNode || n.Tag != "!!str":
		return "", p.errorAt(n, "%s must be a text", name)
	case len(n.Value) < least || len(n.Value) > most:
		return "", p.errorAt(n, "%s must have %d to %d bytes", name, least, most)
	}
	return n.Value, nil
}

// readPromptFile reads the prompt from the file that node names.
func (p *parser) readPromptFile(node *yaml.Node) (string, error) {
	name, err := p.readText(node, "prompt_file", 1, 1024)
	if err != nil {
		return "", err
	}
	if p.ReadFile == nil {
		return "", p.errorAt(node, "prompt_file cannot be read here")
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(p.Dir, name)
	}
	p.file.PromptFiles = append(p.file.PromptFiles, name)
	data, err := p.ReadFile(name)
	switch {
	case err != nil:
		return "", p.errorAt(node, "prompt_file cannot be read: %v", err)
	case len(data) == 0 || len(data) > maxPrompt:
		return "", p.errorAt(node, "prompt_file must have 1 to %d bytes", maxPrompt)
	case !utf8.Valid(data):
		return "", p.errorAt(node, "prompt_file is not UTF-8")
	}
	return string(data), nil
}

// readList reads a list of texts. An empty list is not nil.
func (p *parser) readList(n *yaml.Node, name string, most, mostBytes int) ([]string, error) {
	if n.Kind != yaml.SequenceNode || len(n.Content) > most {
		return nil, p.errorAt(n, "%s must be a list of at most %d texts", name, most)
	}
	out := make([]string, len(n.Content))
	for i, item := range n.Content {
		text, err := p.readText(item, fmt.Sprintf("each of %s", name), 1, mostBytes)
		if err != nil {
			return nil, err
		}
		out[i] = text
	}
	return out, nil
}

// checkServers refuses the name of a server that is not configured.
func (p *parser) checkServers(n *yaml.Node, names []string) error {
	for i, name := range names {
		if p.Servers != nil && !slices.Contains(p.Servers, name) {
			return p.errorAt(n.Content[i], "servers: no MCP server is named %s", printable(name))
		}
	}
	return nil
}

// checkGlobs refuses a pattern that path.Match cannot use. Whether a tool matches is not checked: a server may get
// the tool later.
func (p *parser) checkGlobs(n *yaml.Node, globs []string) error {
	for i, glob := range globs {
		if _, err := path.Match(glob, ""); err != nil {
			return p.errorAt(n.Content[i], "tools: %s is not a valid pattern", printable(glob))
		}
	}
	return nil
}

// readWhole reads a whole number above 0.
func (p *parser) readWhole(n *yaml.Node, name string) (int64, error) {
	var v int64
	isInteger := n.Kind == yaml.ScalarNode && n.Tag == "!!int" && n.Decode(&v) == nil
	if !isInteger || v < 1 || v > 1<<53 {
		return 0, p.errorAt(n, "%s must be a whole number above 0", name)
	}
	return v, nil
}

// readNumber reads a number from low to high; low itself is excluded if above is set.
func (p *parser) readNumber(n *yaml.Node, name string, low, high float64, above bool) (float64, error) {
	var v float64
	hasType := n.Kind == yaml.ScalarNode && (n.Tag == "!!int" || n.Tag == "!!float")
	isNumber := hasType && n.Decode(&v) == nil
	isInRange := v >= low && v <= high // false for NaN
	switch {
	case above && (!isNumber || !isInRange || v == low):
		return 0, p.errorAt(n, "%s must be a number above %g, at most %g", name, low, high)
	case !isNumber || !isInRange:
		return 0, p.errorAt(n, "%s must be a number from %g to %g", name, low, high)
	}
	return v, nil
}

// readBudget reads the limits of a run, by the names that questions use.
func (p *parser) readBudget(n *yaml.Node) (limits budget.Limits, _ error) {
	return limits, p.readMembers(n, "budget.", func(name string, value *yaml.Node) (err error) {
		memberPath := "budget." + name
		switch name {
		case "tool_calls":
			var calls int64
			calls, err = p.readWhole(value, memberPath)
			limits.ToolCalls = int(calls)
		case "input_tokens":
			limits.InputTokens, err = p.readWhole(value, memberPath)
		case "output_tokens":
			limits.OutputTokens, err = p.readWhole(value, memberPath)
		case "total_tokens":
			limits.TotalTokens, err = p.readWhole(value, memberPath)
		case "result_bytes":
			limits.ResultBytes, err = p.readWhole(value, memberPath)
		case "seconds":
			limits.Seconds, err = p.readNumber(value, memberPath, 0, maxSeconds, true)
		case "cost":
			limits.Cost, err = p.readNumber(value, memberPath, 0, maxCost, true)
		default:
			return errUnknown
		}
		return err
	})
}

// readSampling reads how the model samples.
func (p *parser) readSampling(n *yaml.Node, agent *Agent) error {
	return p.readMembers(n, "sampling.", func(name string, value *yaml.Node) (err error) {
		memberPath := "sampling." + name
		switch name {
		case "temperature":
			var t float64
			t, err = p.readNumber(value, memberPath, 0, 2, false)
			agent.Sampling.Temperature = &t
		case "max_output_tokens":
			agent.MaxOutputTokens, err = p.readWhole(value, memberPath)
		case "reasoning_effort":
			agent.Sampling.ReasoningEffort, err = p.readText(value, memberPath, 1, 32)
		case "seed":
			var seed int64
			if value.Kind != yaml.ScalarNode || value.Tag != "!!int" || value.Decode(&seed) != nil {
				return p.errorAt(value, "%s must be a whole number", memberPath)
			}
			agent.Sampling.Seed = &seed
		default:
			return errUnknown
		}
		return err
	})
}

// readSchema reads a JSON Schema, which must be one that answers can be checked against.
func (p *parser) readSchema(node *yaml.Node) (json.RawMessage, error) {
	if node.Kind != yaml.MappingNode {
		return nil, p.errorAt(node, "output_schema must be a JSON Schema object")
	}
	value, err := p.jsonValue(node, 0)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(value)
	switch {
	case err != nil:
		return nil, p.errorAt(node, "output_schema is not JSON")
	case len(raw) > maxSchema:
		return nil, p.errorAt(node, "output_schema is larger than %d bytes", maxSchema)
	}
	if _, err := schema.Compile(raw); err != nil {
		return nil, p.errorAt(node, "output_schema cannot be used: %v", err)
	}
	if wrong := schema.CheckTypes(raw); wrong != nil { // it would restrict nothing
		return nil, p.errorAt(node, "output_schema cannot be used: %s %s", wrong.Pointer, wrong.Detail)
	}
	return raw, nil
}

// jsonValue returns a node as a value of JSON.
func (p *parser) jsonValue(node *yaml.Node, depth int) (any, error) {
	if depth > 100 {
		return nil, p.errorAt(node, "output_schema is nested too deep")
	}
	switch node.Kind {
	case yaml.MappingNode:
		out := make(map[string]any, len(node.Content)/2)
		return out, p.readMembers(node, "output_schema: ", func(name string, value *yaml.Node) (err error) {
			out[name], err = p.jsonValue(value, depth+1)
			return err
		})
	case yaml.SequenceNode:
		out := make([]any, len(node.Content))
		for i, item := range node.Content {
			v, err := p.jsonValue(item, depth+1)
			if err != nil {
				return nil, err
			}
			out[i] = v
		}
		return out, nil
	case yaml.ScalarNode:
		return p.jsonScalar(node)
	}
	return nil, p.errorAt(node, "output_schema has an alias, which is not supported")
}

// jsonScalar returns a scalar as a value of JSON. A number stays as it is written if JSON can write it
// like that.
func (p *parser) jsonScalar(node *yaml.Node) (any, error) {
	switch node.Tag {
	case "!!str", "!!timestamp":
		return node.Value, nil
	case "!!null":
		return nil, nil
	case "!!bool":
		var v bool
		err := node.Decode(&v)
		return v, err
	case "!!int", "!!float":
		if json.Valid([]byte(node.Value)) {
			return json.Number(node.Value), nil
		}
		var v float64
		if node.Decode(&v) == nil && v-v == 0 { // not an infinity and not NaN, which JSON has not
			return v, nil
		}
	}
	return nil, p.errorAt(node, "output_schema: JSON has no value %s", printable(node.Value))
}
