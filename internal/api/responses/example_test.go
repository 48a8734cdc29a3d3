package responses_test

import (
	"fmt"

	"answerd/internal/api/responses"
)

func ExampleFormatID() {
	// The second response of a run: it begins after event 12, where the first one asked for an approval.
	id := responses.FormatID("run_abc", responses.Span{After: 12})
	fmt.Println(id)
	run, span, ok := responses.ParseID(id)
	fmt.Println(run, span.After, ok)
	// Output:
	// resp_abc_12
	// run_abc 12 true
}
