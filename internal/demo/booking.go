package demo

import (
	"context"
	"encoding/json"
	"fmt"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// bookingForm is what book_table asks the user. It has each kind of field that MCP
// allows in a form (2025-11-25, client/elicitation).
const bookingForm = `{"type":"object","properties":{
	"name":{"type":"string","title":"Name","description":"On whose name","minLength":1,"maxLength":60},
	"people":{"type":"integer","title":"People","minimum":1,"maximum":12,"default":2},
	"day":{"type":"string","title":"Day","format":"date"},
	"area":{"type":"string","title":"Where","enum":["inside","terrace"],"enumNames":["Inside","On the terrace"],"default":"inside"},
	"email":{"type":"string","title":"E-mail","format":"email","description":"For the confirmation"},
	"quiet":{"type":"boolean","title":"A quiet table, please","default":false}
},"required":["name","people"]}`

// booking is the structured result of book_table.
type booking struct {
	Name    string `json:"name"`
	People  int    `json:"people"`
	Day     string `json:"day,omitempty"`
	Area    string `json:"area,omitempty"`
	Quiet   bool   `json:"quiet,omitempty"`
	Summary string `json:"summary" jsonschema:"what was booked, in one sentence"`
}

// addBooking adds book_table, which asks the user for what it needs: form elicitation.
func addBooking(s *sdk.Server) {
	sdk.AddTool(s, &sdk.Tool{
		Name: "book_table", Title: "Book a table", Annotations: readOnly(), // of a restaurant that does not exist
		Description: "Books a table at the demo's restaurant. It asks the user itself for the name, the number of people and the day.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{},"additionalProperties":false}`),
	}, bookTable)
}

func bookTable(_ context.Context, req *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, *booking, error) {
	given, err := answerTo(req, "booking")
	if err != nil {
		return nil, nil, err
	}
	if given == nil {
		return askUser("booking", &sdk.ElicitParams{
			Mode: "form", Message: "The restaurant needs a few details for your table.", RequestedSchema: json.RawMessage(bookingForm),
		}), nil, nil
	}
	if given.Action != "accept" {
		return nil, nil, fmt.Errorf("no table was booked: the user gave no details (%s)", given.Action)
	}
	var b booking
	filled, err := json.Marshal(given.Content)
	if err == nil {
		err = json.Unmarshal(filled, &b)
	}
	if err != nil || b.Name == "" || b.People < 1 {
		return nil, nil, fmt.Errorf("no table was booked: the details cannot be used")
	}
	b.Summary = fmt.Sprintf("A table for %d is booked in the name of %s.", b.People, b.Name)
	return said(b.Summary), &b, nil
}

// askUser is a result that wants something from the user first. To a client of an older
// protocol the SDK sends it as a request while the call is open.
func askUser(id string, what *sdk.ElicitParams) *sdk.CallToolResult {
	return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{id: what}}
}

// answerTo is what the user said to the question of that id, nil before it was asked.
func answerTo(req *sdk.CallToolRequest, id string) (*sdk.ElicitResult, error) {
	switch given := req.Params.InputResponses[id].(type) {
	case nil:
		return nil, nil
	case *sdk.ElicitResult:
		return given, nil
	default:
		return nil, fmt.Errorf("the answer to %q is of another kind", id)
	}
}
