package jetstream

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

// journal is where a log says what went wrong.
type journal struct {
	mu   sync.Mutex // protects text
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// F32: what keeps the log is on nobody's goroutine. A bug over one run, or one message,
// costs that, again and again if it must, and what is after it has its turn.
func TestWhatKeepsTheLogSurvivesABug(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said journal
		l := newLog(Options{Retention: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(&said, nil))})
		well := &run{log: l, id: "run_well", used: time.Now()}
		well.more = make(chan struct{})
		woken := well.more
		l.runs["run_bad"], l.runs["run_well"] = nil, well // and there are no streams to look at
		l.held["run_bad"] = nil
		for _, f := range []func(){l.dispatch, l.sweep, l.keepHouse, l.heartbeat} {
			l.wg.Go(f)
		}
		for range 2 {
			l.live <- nil
		}
		l.live <- &nats.Msg{Subject: "answerd.live.0.run_well.in.x"}
		<-time.After(20 * time.Second)
		select {
		case <-woken:
		default:
			t.Error("the run that is well was not looked after")
		}
		l.stop()
		l.wg.Wait()
		for _, doing := range []string{"take in a message", "look after a run", "remove runs whose time is over", "keep a lease"} {
			if n := strings.Count(said.text.String(), fmt.Sprintf("doing=%q", doing)); n < 2 {
				t.Errorf("%s: %d panics survived", doing, n)
			}
		}
	})
}
