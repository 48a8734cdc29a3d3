package aisdk

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"answerd/internal/agent"
)

// inTool is a client tool, which pages send in the body of their own accord.
type inTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
}

// toolList is a list of tools, or an object of them by name, as assistant-ui sends it.
type toolList []inTool

func (l *toolList) UnmarshalJSON(data []byte) error {
	if len(data) == 0 || data[0] != '{' {
		return json.Unmarshal(data, (*[]inTool)(l))
	}
	var byName map[string]inTool
	if err := json.Unmarshal(data, &byName); err != nil {
		return err
	}
	for name, t := range byName {
		t.Name = name
		*l = append(*l, t)
	}
	slices.SortFunc(*l, func(a, b inTool) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

func (q *Request) takeTools(in []inTool) error {
	if len(in) > maxTools {
		return &Invalid{"tools", fmt.Sprintf("must not be more than %d", maxTools)}
	}
	for i, t := range in {
		at := fmt.Sprintf("tools[%d]", i)
		switch {
		case !isToolName(t.Name):
			return &Invalid{at + ".name", "must be 1 to 64 letters, digits, _ or -"}
		case t.Name == Elicitation:
			return &Invalid{at + ".name", "is the name by which servers ask the person"}
		case slices.ContainsFunc(q.ClientTools, func(c agent.ClientTool) bool { return c.Name == t.Name }):
			return &Invalid{at + ".name", "given twice"}
		case len(t.Parameters) == 0 || string(t.Parameters) == "null":
			t.Parameters = json.RawMessage(`{"type":"object","properties":{}}`)
		case t.Parameters[0] != '{':
			return &Invalid{at + ".parameters", "must be a JSON Schema object"}
		}
		q.ClientTools = append(q.ClientTools, agent.ClientTool{Name: t.Name, Description: t.Description, Schema: t.Parameters})
	}
	return nil
}

// isToolName reports whether models' endpoints take s as the name of a function.
func isToolName(s string) bool {
	return s != "" && len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	})
}
