// Command main asks with the Go client of openapi-generator.
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
	config := answerd.NewConfiguration()
	config.Servers = answerd.ServerConfigurations{{URL: os.Getenv("ANSWERD_URL")}}
	client, ctx := answerd.NewAPIClient(config), context.Background()
	answered, _, err := client.AnswersAPI.Answer(ctx).Question(*answerd.NewQuestion("What is 12.5 * 8?")).Execute()
	if err != nil {
		log.Fatal("no answer: ", err)
	}
	run, _, err := client.RunsAPI.GetRun(ctx, answered.RunId).Execute()
	if err != nil || run.Status != "completed" {
		log.Fatal("the run is not completed: ", run, err)
	}
	answer, _, _ := strings.Cut(answered.Answer, "\n")
	fmt.Println(answered.Metadata.ToolNames, answer)
}
