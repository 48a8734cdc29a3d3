package openai_test

import (
	"context"
	"fmt"

	"answerd/internal/llm"
	"answerd/internal/llm/llmtest"
	"answerd/internal/llm/openai"
)

// The endpoint answers with a tool call, as a model does that needs a tool.
func ExampleModel_Stream() {
	endpoint, stop := llmtest.Start(llmtest.Turns(
		llmtest.SaysAndCalls("Let me add them.", llmtest.Call{Name: "add", Args: `{"a":1,"b":2}`}),
	))
	defer stop()
	model := openai.New(openai.Config{BaseURL: endpoint.URL})
	defer model.Close()

	question := llm.Request{Model: "scripted", Messages: []llm.Message{{Role: llm.User, Text: "1 + 2?"}}, Tools: []llm.Tool{{Name: "add"}}}
	for part, err := range model.Stream(context.Background(), question) {
		if err != nil {
			fmt.Println(err)
			return
		}
		switch p := part.(type) {
		case llm.Text:
			fmt.Println(p.Delta)
		case llm.ToolCall:
			fmt.Println(p.Name, p.Arguments)
		case llm.Finish:
			fmt.Println("finish:", p.Reason)
		}
	}
	// Output:
	// Let me add them.
	// add {"a":1,"b":2}
	// finish: tool_calls
}
