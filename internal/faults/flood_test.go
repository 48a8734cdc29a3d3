package faults

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// floodReply answers a call with progress notifications of that many bytes, as fast as they are
// read, and never with a result.
func floodReply(size int) replyFunc {
	return func(w http.ResponseWriter, q *http.Request, m message) {
		w.Header().Set("Content-Type", "text/event-stream")
		text := strings.Repeat("x", size)
		out := bufio.NewWriterSize(w, 64<<10)
		for n := 1; q.Context().Err() == nil; n++ {
			fmt.Fprintf(out, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":%q,\"progress\":%d,\"message\":%q}}\n\n",
				fmt.Sprint(m.Params.Meta.Token), n, text)
		}
	}
}

func TestF50FloodOfProgressEndsTheCall(t *testing.T) {
	r := beginFault(t, "a tool sends progress as fast as it is read", "one tool_progress every 100 ms; tool_error too_large after 64 MiB or 100,000 messages; the run goes on")
	tool := newPeer(t, floodReply(10<<10))
	s := startWithTool(t, tool.url, "TIMEOUT=60s")
	var got eventList
	d := duration(func() { got = s.stream(t, nil) })
	errs, progress := got.of("tool_error"), len(got.of("tool_progress"))
	if most := int(d/(100*time.Millisecond)) + 2; len(errs) != 1 || errs[0].Kind != "too_large" || progress < 2 || progress > most || got.last().Answer != "Done." {
		t.Errorf("got %+v and %d progress events after %s, want one too_large and 2 to %d", errs, progress, d, most)
	}
	r.record("%s after %s, %d progress events", errs.last().Kind, d.Round(100*time.Millisecond), progress)
}
