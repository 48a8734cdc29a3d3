package texttool_test

import (
	"context"
	"fmt"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/llm/openai"
	"answerd/internal/llm/texttool"
)

// The model knows no tool calling and writes its call as text.
func ExampleModel_Stream() {
	endpoint, stop := llmtest.Start(llmtest.Turns(
		llmtest.Says("Let me look.\n", "TOOL: get_weather\nPARAM", "ETERS: {\"city\": \"Rome\"}"),
	))
	defer stop()
	native := openai.New(openai.Config{BaseURL: endpoint.URL})
	defer native.Close()

	question := llm.Request{Messages: []llm.Message{{Role: llm.User, Text: "Weather in Rome?"}}, Tools: []llm.Tool{{Name: "get_weather"}}}
	for part, err := range texttool.New(native).Stream(context.Background(), question) {
		if err != nil {
			fmt.Println(err)
			return
		}
		switch p := part.(type) {
		case llm.Text:
			fmt.Printf("text %q\n", p.Delta)
		case llm.ToolCall:
			fmt.Printf("call %s with %s\n", p.Name, p.Arguments)
		}
	}
	// Output:
	// text "Let me look.\n"
	// call get_weather with {"city": "Rome"}
}
