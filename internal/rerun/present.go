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

// Present is what the service would use if it started a run now. Fields that are nil are not compared.
type Present struct {
	Prompt *export.Template // the prompt of the run's agent
	Agent  json.RawMessage  // the definition of the run's agent
	Tools  []export.Tool
}

// Compare returns the differences between what a run was started with and what the service would use now, one line
// each. For child runs, it compares only the tools with those of now. It also reports changes of the document itself.
func Compare(doc *export.Document, now Present) (lines []string) {
	for _, t := range doc.Tools {
		if t.SHA256 != "" && t.Hash() != t.SHA256 {
			lines = append(lines, fmt.Sprintf(
				"the definition of the tool %s is not the recorded one: its hash is %s, and the recorded one %s", t.Name, t.Hash(), t.SHA256))
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

// comparePrompt returns the differences between the recorded system prompt and the one that now would give, line by
// line. Both are for the time when the run was created.
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
	differences := diffLines(strings.Split(doc.SystemPrompt.Text, "\n"), strings.Split(text, "\n"))
	for i, line := range differences {
		differences[i] = "system prompt " + line
	}
	return differences
}

// diffLines returns the lines that only one of two texts has, in order. Lines of a begin with "-" and lines of b with
// "+". It first removes the lines that both texts have at their beginning and end, and then finds a longest common
// subsequence of the remaining lines. If those are too many for that, it returns all of them.
func diffLines(a, b []string) (out []string) {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}

	i, j := 0, 0 // the indexes in a and b of the next line
	common := catalog.CommonLengths(a, b)
	for common != nil && i < len(a) && j < len(b) {
		switch {
		case a[i] == b[j]:
			i, j = i+1, j+1
		case common[i+1][j] < common[i][j+1]:
			out = append(out, "+ "+b[j])
			j++
		default:
			out = append(out, "- "+a[i])
			i++
		}
	}
	for _, line := range a[i:] {
		out = append(out, "- "+line)
	}
	for _, line := range b[j:] {
		out = append(out, "+ "+line)
	}
	return out
}

// compareMembers returns the differences between two JSON objects, one line each, which begins with title.
func compareMembers(title string, was, is json.RawMessage) (out []string) {
	wasValue, _ := decodeExact(was)
	isValue, _ := decodeExact(is)
	wasMembers, wasObject := wasValue.(map[string]any)
	isMembers, isObject := isValue.(map[string]any)
	if !wasObject || !isObject {
		return []string{title + " cannot be read"}
	}
	var c comparison
	c.compareValues(startEvent, "", wasMembers, isMembers)
	for _, d := range c.differences {
		out = append(out, fmt.Sprintf("%s %s: was %s, is %s", title, d.Path, d.Was, d.Is))
	}
	return out
}

// compareTools returns the differences between the recorded definitions of servers' tools and the current ones. It does
// not compare approvals and versions, and ignores tools that only the service has now.
func compareTools(doc *export.Document, now []export.Tool) (out []string) {
	current := make(map[string]export.Tool) // by name
	for _, t := range now {
		current[t.Name] = t
	}
	for _, was := range doc.Tools {
		if was.Server == "" {
			continue
		}
		is, exists := current[was.Name]
		if !exists {
			out = append(out, "the tool "+was.Name+" of "+was.Server+" is gone")
			continue
		}
		was.NeedsApproval, is.NeedsApproval = false, false // the recorded value includes the agent's own approvals
		was.Version, is.Version = "", ""
		if was.Hash() == is.Hash() {
			continue
		}
		was.SHA256, is.SHA256 = "", ""
		wasJSON, _ := json.Marshal(was) // cannot fail: raw members were valid JSON when they were read
		isJSON, _ := json.Marshal(is)
		out = append(out, compareMembers("the tool "+was.Name, wasJSON, isJSON)...)
	}
	return out
}
