package sse_test

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"answerd/internal/sse"
)

func ExampleFrame_AppendTo() {
	b := sse.Frame{ID: "run_1:1", Event: "text_delta", Data: []byte("two\nlines")}.AppendTo(nil)
	b = sse.AppendComment(b, "ping")
	fmt.Print(string(b))
	// Output:
	// id: run_1:1
	// event: text_delta
	// data: two
	// data: lines
	//
	// : ping
}

func ExampleReader() {
	stream := strings.NewReader("id: 7\nevent: greeting\ndata: hello\n\n: a heartbeat\n\ndata: bye\n\n")
	r := sse.NewReader(stream, 1<<20)
	for {
		f, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%q %s\n", f.Event, f.Data)
	}
	fmt.Println("resume after", r.LastEventID())
	// Output:
	// "greeting" hello
	// "" bye
	// resume after 7
}
