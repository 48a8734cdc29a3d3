package demo

import (
	"reflect"
	"strings"
	"testing"
)

// foreignTools are what other people's MCP servers offer; nothing here was made with
// them in mind but the rules about names and schemas.
var foreignTools = []chatTool{
	newTool("crm_get_customer", "Get a customer record by id.", `{"type":"object","properties":{"customer_id":{"type":"string"}},"required":["customer_id"]}`),
	newTool("get_weather", "Get the weather forecast for a city.", `{"type":"object","properties":{"city":{"type":"string"},"units":{"type":"string","enum":["metric","imperial"]},"days":{"type":"integer","minimum":1}},"required":["city"]}`),
	newTool("add", "Add two numbers.", `{"type":"object","properties":{"a":{"type":"number"},"b":{"type":"number"}},"required":["a","b"]}`),
	newTool("divide", "Divides numbers.", `{"type":"object","properties":{"numerator":{"type":"number"},"denominator":{"type":"number"}},"required":["numerator","denominator"]}`),
	newTool("create_ticket", "Creates a support ticket.", `{"type":"object","properties":{"title":{"type":"string"},"priority":{"enum":["low","high"]},"labels":{"type":"array","items":{"type":"string"}}},"required":["title","priority"]}`),
	newTool("translate_text", "Translate text into a language.", `{"type":"object","properties":{"text":{"type":"string"},"language":{"type":"string","enum":["German","Italian"]}},"required":["text","language"]}`),
	newTool("send_email", "Send an email.", `{"type":"object","properties":{"to":{"type":"string","format":"email"},"subject":{"type":"string"},"urgent":{"type":"boolean"}},"required":["to","subject"]}`),
	newTool("echo", "Echoes back the input.", `{"type":"object","properties":{"message":{"type":"string","description":"Message to echo"}},"required":["message"]}`),
	newTool("book_room", "Books a meeting room.", `{"type":"object","properties":{"date":{"type":"string","format":"date"},"people":{"type":["integer","null"]},"room":{"type":"object","properties":{"floor":{"type":"integer"}},"required":["floor"]}},"required":["date","room"]}`),
	newTool("web_fetch", "Fetches a web page.", `{"type":"object","properties":{"url":{"anyOf":[{"type":"string","format":"uri"},{"type":"null"}]}},"required":["url"]}`),
	newTool("ping", "Pings the server.", `{"type":"object"}`),
	newTool("odd", "", `[]`),
	newTool("recursive", "A tree.", `{"type":"object","properties":{"a":{"type":"object","properties":{"b":{"$ref":"#"}}}}}`),
}

func TestToolsNeverSeenBefore(t *testing.T) {
	for question, want := range map[string][]string{
		"Show me customer 1234":                                {`crm_get_customer {"customer_id":"1234"}`},
		"Who is customer ACME-77?":                             {`crm_get_customer {"customer_id":"ACME-77"}`},
		"crm_get_customer customer_id: c_9":                    {`crm_get_customer {"customer_id":"c_9"}`},
		"What's the weather in paris?":                         {`get_weather {"city":"Paris"}`},
		"Weather in Bad Ischl for 3 days, imperial":            {`get_weather {"city":"Bad Ischl","days":3,"units":"imperial"}`},
		"weather in Rome and Milan":                            {`get_weather {"city":"Rome"}`, `get_weather {"city":"Milan"}`},
		"add 2 and 3.5":                                        {`add {"a":2,"b":3.5}`},
		"what is 2 plus 3?":                                    {`add {"a":2,"b":3}`},
		"Divide 10 by 4":                                       {`divide {"denominator":4,"numerator":10}`},
		`Create a high priority ticket "Printer is on fire"`:   {`create_ticket {"priority":"high","title":"Printer is on fire"}`},
		`translate "good morning and good night" into Italian`: {`translate_text {"language":"Italian","text":"good morning and good night"}`},
		`Send an urgent email to ann@example.com "Lunch?"`:     {`send_email {"subject":"Lunch?","to":"ann@example.com","urgent":true}`},
		"echo hello world":                                     {`echo {"message":"echo hello world"}`},
		"Book a meeting room on 2026-12-01 on floor 3":         {`book_room {"date":"2026-12-01","room":{"floor":3}}`},
		"fetch the web page https://example.com/a?b=c":         {`web_fetch {"url":"https://example.com/a?b=c"}`},
		"ping the server":                                      {`ping {}`},
		"the customer is always right":                         {},
		"did the ticket arrive?":                               {},
		"what a lovely day":                                    {},
	} {
		if got := planned(ask(conversation(question), foreignTools)); !reflect.DeepEqual(got, want) {
			t.Errorf("%q calls %q, want %q", question, got, want)
		}
	}
}

// Whatever tool must be called, its required arguments are there and of their type.
func TestRequiredCallsAreComplete(t *testing.T) {
	for _, tool := range foreignTools {
		r := &chatRequest{Messages: conversation("hello"), Tools: []chatTool{tool}, choice: "required", onlyTool: tool.Function.Name}
		out := respond(r)
		if len(out.calls) != 1 {
			t.Fatalf("%s: %q", tool.Function.Name, out.text)
		}
		for _, p := range readTool("", "", tool.Function.Parameters).params {
			if p.required && !strings.Contains(out.calls[0].args, `"`+p.name+`":`) {
				t.Errorf("%s: %s lacks %s", tool.Function.Name, out.calls[0].args, p.name)
			}
		}
	}
}
