package rerun

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"answerd/internal/agent/record"
	"answerd/internal/export"
	"answerd/internal/mcp/catalog"
)

// Present is what a service would begin a run with now. What is nil is not compared.
type Present struct {
	Prompt *export.Template // of the run's agent
	Agent  json.RawMessage  // its definition
	Tools  []export.Tool
}

// Compare returns the differences between what a run began with and what the same run would begin with now,
// one line each. It also names the definitions and the prompt that were changed in the document itself.
func Compare(doc *export.Document, now Present) (lines []string) {
	for _, t := range doc.Tools {
		if t.SHA256 != "" && t.Hash() != t.SHA256 {
			line := fmt.Sprintf("the definition of the tool %s is not the recorded one: its hash is %s, and the recorded one %s", t.Name, t.Hash(), t.SHA256)
			lines = append(lines, line)
		}
	}
	if p := doc.SystemPrompt; p != nil && export.Digest([]byte(p.Text)) != p.SHA256 {
		lines = append(lines, "the system prompt in the file is not the recorded one")
	}
	if now.Prompt != nil && doc.SystemPrompt != nil {
		lines = append(lines, comparePrompt(doc, *now.Prompt)...)
	}
	if now.Agent != nil {
		lines = append(lines, compareMembers("the agent's definition", doc.Settings.Agent, now.Agent)...)
	}
	if now.Tools != nil {
		lines = append(lines, compareTools(doc, now.Tools)...)
	}
	for i := range doc.Children {
		lines = append(lines, Compare(&doc.Children[i], Present{Tools: now.Tools})...)
	}
	return lines
}

// comparePrompt compares the lines of the system prompts.
func comparePrompt(doc *export.Document, now export.Template) []string {
	var tools []catalog.Tool
	for _, t := range doc.Tools {
		if t.Server != "" {
			tools = append(tools, catalog.Tool{Name: t.Name, Server: t.Server, Description: t.Description})
		}
	}
	now.Instructions = doc.Settings.Prompt.Instructions
	text, err := record.Render(now, doc.Request.Instructions, tools, time.UnixMilli(doc.Run.Created))
	if err != nil {
		return []string{"the system prompt cannot be rendered: " + err.Error()}
	}
	var out []string
	for _, line := range diffLines(strings.Split(doc.SystemPrompt.Text, "\n"), strings.Split(text, "\n")) {
		out = append(out, "system prompt "+line)
	}
	return out
}

// maxTable bounds the table of diffLines, in elements: a file may have any number of lines.
const maxTable = 1 << 22

// diffLines returns the lines that only one of two texts has, in order: those of a with "-", those of b with "+". It
// finds a longest common subsequence of lines, after it has removed the lines that both texts begin or end with. If
// that would need a larger table than maxTable, it returns all remaining lines of both.
func diffLines(a, b []string) (out []string) {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}

	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}

	if (len(a)+1)*(len(b)+1) > maxTable {
		for _, line := range a {
			out = append(out, "- "+line)
		}
		for _, line := range b {
			out = append(out, "+ "+line)
		}
		return out
	}

	common := commonLengths(a, b)
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			i, j = i+1, j+1
		case i == len(a), j < len(b) && common[i+1][j] < common[i][j+1]:
			out = append(out, "+ "+b[j])
			j++
		default:
			out = append(out, "- "+a[i])
			i++
		}
	}
	return out
}

// commonLengths returns a table whose element [i][j] is the length of a longest common subsequence of a[i:] and b[j:].
func commonLengths(a, b []string) [][]int {
	table := make([][]int, len(a)+1)
	for i := range table {
		table[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			table[i][j] = max(table[i+1][j], table[i][j+1])
			if a[i] == b[j] {
				table[i][j] = table[i+1][j+1] + 1
			}
		}
	}
	return table
}

// compareMembers compares two JSON objects member by member. what names them in the lines that it returns.
func compareMembers(what string, was, is json.RawMessage) (out []string) {
	wasValue, _ := decodeExact(was)
	isValue, _ := decodeExact(is)
	wasMembers, wasObject := wasValue.(map[string]any)
	isMembers, isObject := isValue.(map[string]any)
	if !wasObject || !isObject {
		return []string{what + " cannot be read"}
	}
	var c comparison
	c.compareValues(startEvent, "", wasMembers, isMembers)
	for _, d := range c.differences {
		out = append(out, fmt.Sprintf("%s %s: was %s, is %s", what, d.Path, d.Was, d.Is))
	}
	return out
}

// compareTools compares the recorded definitions of the tools of servers with the present ones. Approvals and versions
// are not compared, and tools that only the service has now are not reported.
func compareTools(doc *export.Document, now []export.Tool) (out []string) {
	present := make(map[string]export.Tool)
	for _, t := range now {
		present[t.Name] = t
	}
	for _, was := range doc.Tools {
		if was.Server == "" {
			continue
		}
		is, ok := present[was.Name]
		if !ok {
			out = append(out, "the tool "+was.Name+" of "+was.Server+" is gone")
			continue
		}
		was.NeedsApproval, is.NeedsApproval = false, false // the agent's own approvals are part of the recorded one
		was.Version, is.Version = "", ""
		if was.Hash() == is.Hash() {
			continue
		}
		was.SHA256, is.SHA256 = "", ""
		before, _ := json.Marshal(was) // raw members were valid JSON when they were read
		after, _ := json.Marshal(is)
		out = append(out, compareMembers("the tool "+was.Name, before, after)...)
	}
	return out
}
