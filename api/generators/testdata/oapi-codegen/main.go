// Command main asks with the client that oapi-codegen generates.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	"ask/answerd"
)

func main() {
	client, err := answerd.NewClientWithResponses(os.Getenv("ANSWERD_URL"))
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	resp, err := client.AnswerWithResponse(ctx, nil, answerd.Question{Question: "What is 12.5 * 8?"})
	if err != nil || resp.JSON200 == nil {
		log.Fatal("no answer: ", resp, err)
	}
	run, err := client.GetRunWithResponse(ctx, resp.JSON200.RunId)
	if err != nil || run.JSON200 == nil || run.JSON200.Status != answerd.StatusStatusCompleted {
		log.Fatal("the run is not completed: ", run, err)
	}
	answer, _, _ := strings.Cut(resp.JSON200.Answer, "\n")
	fmt.Println(resp.JSON200.Metadata.ToolNames, answer)
}
