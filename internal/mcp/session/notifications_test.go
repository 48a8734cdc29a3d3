package session

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// newBlockedQueue returns a queue whose reader has the first notification, and waits for
// proceed to be closed before it takes another one. got is what the reader has received, to
// be read after closeQueue: "p" and the progress, or "l" and the messages left out.
func newBlockedQueue() (q *notificationQueue, proceed chan struct{}, got *[]string) {
	first, proceed := make(chan struct{}), make(chan struct{})
	got = new([]string)
	q = newNotificationQueue(func(n notification) {
		if n.progress != nil {
			*got = append(*got, "p"+string(n.progress))
		} else {
			*got = append(*got, fmt.Sprint("l", n.log.Omitted))
		}
		if len(*got) == 1 {
			close(first)
			<-proceed
		}
	})
	q.enqueueProgress([]byte("0"))
	<-first
	return q, proceed, got
}

func enqueueLog(q *notificationQueue) { q.enqueueLog(func() *LogMessage { return &LogMessage{} }) }

func TestNotificationQueueKeepsTheLatestProgress(t *testing.T) {
	q, proceed, got := newBlockedQueue()
	for i := range 640 {
		q.enqueueProgress(fmt.Append(nil, i+1))
	}
	close(proceed)
	q.closeQueue(true)
	q.enqueueProgress([]byte("1000"))
	if want := []string{"p0", "p640"}; !slices.Equal(*got, want) {
		t.Errorf("got %v, want %v", *got, want)
	}
}

// delivery is one progress notification and when it was delivered.
type delivery struct {
	progress string
	after    time.Duration
}

// deliverFlood enqueues a progress notification every interval, n in all, and returns what the
// queue delivered of them.
func deliverFlood(interval time.Duration, n int) (got []delivery) {
	begin := time.Now()
	q := newNotificationQueue(func(n notification) {
		got = append(got, delivery{string(n.progress), time.Since(begin)})
	})
	for i := range n {
		q.enqueueProgress(fmt.Append(nil, i))
		<-time.After(interval)
	}
	q.closeQueue(true)
	return got
}

func TestNotificationQueueDeliversOneProgressPerInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := deliverFlood(time.Millisecond, 1050)
		if len(got) != 12 {
			t.Fatalf("got %d deliveries, want 12: one at once, one every 100 ms of 1,050 ms, and the last", len(got))
		}
		for i, d := range got[1:11] {
			if gap := d.after - got[i].after; gap < progressInterval || gap > progressInterval+2*time.Millisecond {
				t.Errorf("delivery %d came %v after the one before, want %v", i+1, gap, progressInterval)
			}
			if at := d.after.Milliseconds(); d.progress != fmt.Sprint(at) && d.progress != fmt.Sprint(at-1) {
				t.Errorf("delivery %d at %d ms is %s, want the latest", i+1, at, d.progress)
			}
		}
		if last := got[11].progress; last != "1049" {
			t.Errorf("the last delivery is %s, want 1049", last)
		}
	})
}

func TestNotificationQueueDeliversAThousandProgressAndTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := deliverFlood(progressInterval, 3000)
		if len(got) != maxProgress || got[maxProgress-1].progress != "2999" {
			t.Errorf("got %d deliveries, the last %v, want %d and 2999", len(got), got[len(got)-1], maxProgress)
		}
	})
}

func TestNotificationQueueDeliversHeldProgressWithoutAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		q := newNotificationQueue(func(n notification) { got = append(got, string(n.progress)) })
		q.enqueueProgress([]byte("1"))
		q.enqueueProgress([]byte("2"))
		<-time.After(progressInterval)
		synctest.Wait()
		if want := []string{"1", "2"}; !slices.Equal(got, want) {
			t.Errorf("got %v after %v, want %v", got, progressInterval, want)
		}
		q.closeQueue(true)
	})
}

func TestNotificationQueueDoesNotDecodeOmittedLogs(t *testing.T) {
	q, proceed, _ := newBlockedQueue()
	decoded := 0
	for range 10 * maxLogQueue {
		q.enqueueLog(func() *LogMessage { decoded++; return &LogMessage{} })
	}
	close(proceed)
	q.closeQueue(true)
	if decoded != maxLogQueue {
		t.Errorf("decoded %d log messages, want %d", decoded, maxLogQueue)
	}
}

func TestNotificationQueueCountsOmittedLogsAndKeepsTheOrder(t *testing.T) {
	q, proceed, got := newBlockedQueue()
	for range maxLogQueue + 7 {
		enqueueLog(q)
	}
	q.enqueueProgress([]byte("2"))
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
