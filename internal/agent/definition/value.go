package definition

import (
	"encoding/json"
	"fmt"
	"math"
	"path"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"answerd/internal/agent/budget"
	"answerd/internal/mcp/schema"
)

// readText reads a text of minBytes to maxBytes bytes. name is the name of node's member, for errors.
func (p *parser) readText(node *yaml.Node, name string, minBytes, maxBytes int) (string, error) {
	switch {
	case node.Kind != yaml.ScalarNode || node.Tag != "!!str":
		return "", p.errorAt(node, "%s must be a text", name)
	case len(node.Value) < minBytes || len(node.Value) > maxBytes:
		return "", p.errorAt(node, "%s must have %d to %d bytes", name, minBytes, maxBytes)
	}
	return node.Value, nil
}

// readPromptFile returns the content of the file that node names. It adds the name to p.file.PromptFiles even if the
// file cannot be read. It returns an error if ReadFile is nil, or if the file cannot be read, is empty, is longer than
// maxPrompt, or is not UTF-8.
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

// readList reads a list of at most maxItems texts, each of 1 to maxBytes bytes. It never returns nil for an empty list,
// because nil would mean that nothing is restricted.
func (p *parser) readList(node *yaml.Node, name string, maxItems, maxBytes int) ([]string, error) {
	if node.Kind != yaml.SequenceNode || len(node.Content) > maxItems {
		return nil, p.errorAt(node, "%s must be a list of at most %d texts", name, maxItems)
	}
	out := make([]string, len(node.Content))
	for i, item := range node.Content {
		text, err := p.readText(item, fmt.Sprintf("each of %s", name), 1, maxBytes)
		if err != nil {
			return nil, err
		}
		out[i] = text
	}
	return out, nil
}

// checkServers returns an error if one of names, which are the items of node, is not in Options.Servers.
func (p *parser) checkServers(node *yaml.Node, names []string) error {
	for i, name := range names {
		if p.Servers != nil && !slices.Contains(p.Servers, name) {
			return p.errorAt(node.Content[i], "servers: no MCP server is named %s", printable(name))
		}
	}
	return nil
}

// checkGlobs returns an error if one of globs, which are the items of node, is not a valid pattern for path.Match. A
// glob need not match a tool: a server may get the tool later.
func (p *parser) checkGlobs(node *yaml.Node, globs []string) error {
	for i, glob := range globs {
		if _, err := path.Match(glob, ""); err != nil {
			return p.errorAt(node.Content[i], "tools: %s is not a valid pattern", printable(glob))
		}
	}
	return nil
}

// readPositiveInteger reads a whole number from 1 to 2^53. JSON can represent these numbers exactly.
func (p *parser) readPositiveInteger(node *yaml.Node, name string) (int64, error) {
	var v int64
	isInteger := node.Kind == yaml.ScalarNode && node.Tag == "!!int" && node.Decode(&v) == nil
	if !isInteger || v < 1 || v > 1<<53 {
		return 0, p.errorAt(node, "%s must be a whole number above 0", name)
	}
	return v, nil
}

// readPositiveNumber reads a number above 0 and up to limit.
func (p *parser) readPositiveNumber(node *yaml.Node, name string, limit float64) (float64, error) {
	v, isNumber := decodeNumber(node)
	isInRange := v > 0 && v <= limit // false for NaN
	if !isNumber || !isInRange {
		return 0, p.errorAt(node, "%s must be a number above 0, at most %g", name, limit)
	}
	return v, nil
}

// decodeNumber returns the number in node. isNumber is false if node is something else.
func decodeNumber(node *yaml.Node) (v float64, isNumber bool) {
	hasType := node.Kind == yaml.ScalarNode && (node.Tag == "!!int" || node.Tag == "!!float")
	isNumber = hasType && node.Decode(&v) == nil
	return v, isNumber
}

// readBudget reads a run's limits. The members have the same names as in questions.
func (p *parser) readBudget(node *yaml.Node) (limits budget.Limits, _ error) {
	return limits, p.readMembers(node, "budget.", func(name string, value *yaml.Node) (err error) {
		memberPath := "budget." + name
		switch name {
		case "tool_calls":
			var calls int64
			calls, err = p.readPositiveInteger(value, memberPath)
			limits.ToolCalls = int(calls)
		case "input_tokens":
			limits.InputTokens, err = p.readPositiveInteger(value, memberPath)
		case "output_tokens":
			limits.OutputTokens, err = p.readPositiveInteger(value, memberPath)
		case "total_tokens":
			limits.TotalTokens, err = p.readPositiveInteger(value, memberPath)
		case "result_bytes":
			limits.ResultBytes, err = p.readPositiveInteger(value, memberPath)
		case "seconds":
			limits.Seconds, err = p.readPositiveNumber(value, memberPath, maxSeconds)
		case "cost":
			limits.Cost, err = p.readPositiveNumber(value, memberPath, maxCost)
		default:
			return errUnknown
		}
		return err
	})
}

// readSampling reads the sampling parameters into agent.Sampling and agent.MaxOutputTokens.
func (p *parser) readSampling(node *yaml.Node, agent *Agent) error {
	return p.readMembers(node, "sampling.", func(name string, value *yaml.Node) (err error) {
		memberPath := "sampling." + name
		switch name {
		case "temperature":
			temperature, isNumber := decodeNumber(value)
			isInRange := temperature >= 0 && temperature <= 2 // false for NaN
			if !isNumber || !isInRange {
				return p.errorAt(value, "%s must be a number from 0 to 2", memberPath)
			}
			agent.Sampling.Temperature = &temperature
		case "max_output_tokens":
			agent.MaxOutputTokens, err = p.readPositiveInteger(value, memberPath)
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

// readSchema reads a JSON Schema and returns it as JSON. It returns an error if answers cannot be checked against it.
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
	if wrong := schema.CheckTypes(raw); wrong != nil { // Compile ignores an unknown type
		return nil, p.errorAt(node, "output_schema cannot be used: %s %s", wrong.Pointer, wrong.Detail)
	}
	return raw, nil
}

// jsonValue converts a node of output_schema to a value for json.Marshal. depth is how deeply node is nested; more than
// maxDepth levels are an error, and so are aliases.
func (p *parser) jsonValue(node *yaml.Node, depth int) (any, error) {
	if depth > maxDepth {
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

// jsonScalar converts a scalar to a value for json.Marshal. A number that is valid JSON keeps its digits; other
// notations, such as 0x10, are converted. Infinities and NaN are errors.
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
		if node.Decode(&v) == nil && !math.IsInf(v, 0) && !math.IsNaN(v) {
			return v, nil
		}
	}
	return nil, p.errorAt(node, "output_schema: JSON has no value %s", printable(node.Value))
}
