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

func (q *Request) readTools(in []inTool) error {
	if len(in) > agent.MaxClientTools {
		return &Invalid{"tools", fmt.Sprintf("must not be more than %d", agent.MaxClientTools)}
	}
	for i, t := range in {
		if t.Name == ElicitationTool {
			return &Invalid{fmt.Sprintf("tools[%d].name", i), "is the name by which servers ask the person"}
		}
		if bad := q.AddClientTool(agent.ClientTool{Name: t.Name, Description: t.Description, Schema: t.Parameters}); bad != nil {
			return &Invalid{fmt.Sprintf("tools[%d].%s", i, bad.Pointer[1:]), bad.Detail}
		}
	}
	return nil
}
