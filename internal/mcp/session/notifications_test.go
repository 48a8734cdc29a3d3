package session

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// newBlockedQueue returns a queue whose reader has the first notification, and waits for
// proceed to be closed before it takes another one. got is what the reader has received, to
// be read after closeQueue: "p" and the progress, or "l" and the messages left out.
func newBlockedQueue() (q *notificationQueue, proceed chan struct{}, got *[]string) {
	first, proceed := make(chan struct{}), make(chan struct{})
	got = new([]string)
	q = newNotificationQueue(func(n notification) {
		if n.progress != nil {
			*got = append(*got, fmt.Sprint("p", n.progress.Progress))
		} else {
			*got = append(*got, fmt.Sprint("l", n.log.Omitted))
		}
		if len(*got) == 1 {
			close(first)
			<-proceed
		}
	})
	q.enqueue(notification{progress: &Progress{Progress: 0}})
	<-first
	return q, proceed, got
}

func TestNotificationQueueKeepsTheLatestProgress(t *testing.T) {
	q, proceed, got := newBlockedQueue()
	for i := range 10 * maxProgressQueue {
		q.enqueue(notification{progress: &Progress{Progress: float64(i + 1)}})
	}
	close(proceed)
	q.closeQueue(true)
	q.enqueue(notification{progress: &Progress{Progress: 1e6}})
	var want []string
	for i := range maxProgressQueue {
		want = append(want, fmt.Sprint("p", i))
	}
	want = append(want, fmt.Sprint("p", 10*maxProgressQueue))
	if !slices.Equal(*got, want) {
		t.Errorf("got %v, want %v", *got, want)
	}
}

func TestNotificationQueueCountsOmittedLogsAndKeepsTheOrder(t *testing.T) {
	q, proceed, got := newBlockedQueue()
	for range maxLogQueue + 7 {
		q.enqueue(notification{log: &LogMessage{}})
	}
	q.enqueue(notification{progress: &Progress{Progress: 2}})
	close(proceed)
	q.closeQueue(true)
	want := append([]string{"p0"}, slices.Repeat([]string{"l0"}, maxLogQueue)...)
	want = append(want, "p2", "l7")
	if !slices.Equal(*got, want) {
		t.Errorf("got %v, want %v", *got, want)
	}
}
func TestBoundLogDataKeepsJSONWithinItsBounds(t *testing.T) {
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	for in, want := range map[string]string{
		`{"a":[1,null]}`: `{"a":[1,null]}`, `false`: `false`, `12345678901234567890`: `12345678901234567890`,
		``: `null`, "\"\xff\"": "\"\uFFFD\"", deep: `"` + deep + ` […]"`,
	} {
		if got := string(boundLogData(json.RawMessage(in))); got != want {
			t.Errorf("boundLogData(%q) = %q, want %q", in, got, want)
		}
	}
	got := boundLogData(json.RawMessage(`"` + strings.Repeat("ä", maxLogData) + `"`))
	if len(got) > maxLogData+20 || !json.Valid(got) || !strings.HasSuffix(string(got), `ä […]"`) {
		t.Errorf("got %d bytes that end in %q, want at most %d that end in %q", len(got), got[len(got)-20:], maxLogData+20, `ä […]"`)
	}
}
