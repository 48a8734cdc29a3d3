package native_test

import (
	"fmt"

	"answerd/internal/api/native"
	"answerd/internal/event"
)

func ExampleDecode() {
	req, err := native.Decode([]byte(`{"question": "What is 1 + 2?", "max_turns": 3}`))
	fmt.Println(req.Question, req.MaxTurns, err)
	_, err = native.Decode([]byte(`{"question": "", "max_turn": 3}`))
	fmt.Println(err)
	// Output:
	// What is 1 + 2? 3 <nil>
	// /max_turn: unknown field; /question: must not be blank
}

func ExampleAppendFrame() {
	e, err := event.Encode("run_1", 4, 1_795_000_000_000, event.TextDelta{PartID: "text-1", Delta: "3"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s", native.AppendFrame(nil, e))
	run, position, ok := native.ParsePosition(native.EventID(e))
	fmt.Println(run, position, ok)
	// Output:
	// id: run_1:4
	// event: text_delta
	// data: {"type":"text_delta","run_id":"run_1","seq":4,"ts":1795000000000,"part_id":"text-1","delta":"3"}
	//
	// run_1 4 true
}
