package session

import (
	"fmt"
	"slices"
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
