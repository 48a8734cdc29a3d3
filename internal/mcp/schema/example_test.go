package schema_test

import (
	"encoding/json"
	"fmt"

	"answerd/internal/mcp/schema"
)

func ExampleSchema_Check() {
	s, err := schema.Compile(json.RawMessage(`{
		"type": "object",
		"properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
		"required": ["city"]
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	args, problems := s.Check(json.RawMessage(`{"city": "Bonn", "days": "3"}`))
	fmt.Printf("%s %v\n", args, problems)

	_, problems = s.Check(json.RawMessage(`{"days": 0}`))
	for _, p := range problems {
		fmt.Println(p.Pointer, p.Detail)
	}
	// Output:
	// {"city": "Bonn", "days": 3} []
	// /city missing required field: city
	// /days expected at least 1, got 0
}
