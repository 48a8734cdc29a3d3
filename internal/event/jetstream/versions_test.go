package jetstream_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
	"answerd/internal/event/jetstream"
)

// recordedMessage is a message of a log, as another version of answerd wrote it.
type recordedMessage struct {
	Subject string      `json:"subject"`
	Header  nats.Header `json:"header"`
	Data    string      `json:"data"`
}

// publish stores the message in the log.
func (m recordedMessage) publish(t *testing.T, c *nats.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ack, err := c.RequestMsgWithContext(ctx, &nats.Msg{Subject: m.Subject, Header: m.Header, Data: []byte(m.Data)})
	if err != nil || strings.Contains(string(ack.Data), `"error"`) {
		t.Fatalf("publish to %s: %s, %v, want an acknowledgement", m.Subject, ack.Data, err)
	}
}

func connect(t *testing.T, url string) *nats.Conn {
	t.Helper()
	c, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// eventSubject returns the subject of a run's events, which has a message already.
func eventSubject(t *testing.T, c *nats.Conn, id string) string {
	t.Helper()
	j, err := js.New(c)
	if err != nil {
		t.Fatal(err)
	}
	s, err := j.Stream(t.Context(), "ANSWERD_RUNS")
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(t.Context(), js.WithSubjectFilter("answerd.run.*."+id+".ev"))
	if err != nil || len(info.State.Subjects) != 1 {
		t.Fatalf("run %s has subjects %v, %v, want one", id, info, err)
	}
	for subject := range info.State.Subjects {
		return subject
	}
	return ""
}

// publishEvents appends events to a run as another version would, which took the run over.
func publishEvents(t *testing.T, c *nats.Conn, id string, after int, lines ...string) {
	t.Helper()
	subject := eventSubject(t, c, id)
	for i, line := range lines {
		m := recordedMessage{Subject: subject, Header: nats.Header{"Answerd-Writer": {fmt.Sprintf("newer 2 %d", after+i+1)}}, Data: line}
		m.publish(t, c)
	}
}

// During an upgrade, and after a rollback, two versions share a log (F46). Each version keeps events
// of unknown types and unknown members of events, gives them to readers unchanged, and can continue
// such a run.
func TestEventsOfANewerVersionAreKept(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	creator, reader, c := openLog(t, jetstream.Options{URL: url, Lease: lease}), openLog(t, jetstream.Options{URL: url, Lease: lease}), connect(t, url)
	const id = "run_newer"
	startRun(t, creator, id)
	line := func(seq int, typ, members string) string {
		return fmt.Sprintf(`{"type":%q,"run_id":%q,"seq":%d,"ts":%d,%s}`, typ, id, seq, reader.Now().UnixMilli(), members)
	}
	live := make(chan []event.Event, 1)
	go func() {
		all, err := readUntil(t.Context(), reader, id, func(e event.Event) bool { return e.Seq == 3 })
		if err != nil {
			t.Error(err)
		}
		live <- all
	}()
	newer := []string{line(2, "run_moved", `"to":{"zone":"b"}`), line(3, "step_start", `"step":1,"model_region":"eu"`)}
	publishEvents(t, c, id, 1, newer...)
	check := func(who string, all []event.Event) {
		t.Helper()
		for i, want := range newer {
			if len(all) < i+2 || string(all[i+1].JSON) != want {
				t.Fatalf("%s got %d events, want %s among them as they were written", who, len(all), newer)
			}
		}
	}
	check("a reader of live events", <-live)
	again := openLog(t, jetstream.Options{URL: url, Lease: lease})
	all, err := readUntil(t.Context(), again, id, func(e event.Event) bool { return e.Seq == 3 })
	if err != nil {
		t.Fatal(err)
	}
	check("a later reader", all)

	// The newer version is killed. This version takes the run over, and does not know its last event.
	publishEvents(t, c, id, 3, line(4, "step_watched", `"step":1`))
	var job event.Job
	for jobs := keepClaiming(t, again); job == nil; {
		job = <-jobs
	}
	if run, err := again.Run(t.Context(), id); err != nil || run.Status() != event.StatusRunning {
		t.Errorf("Run = %s, %v, want %s", run.Status(), err, event.StatusRunning)
	}
	w, err := event.ResumeWriter(t.Context(), again, id)
	if err == nil {
		err = w.Append(t.Context(), event.FinalAnswer{Answer: "a"})
	}
	if err != nil {
		t.Fatalf("continue the run: %v", err)
	}
	if err := job.Done(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all, err = readUntil(t.Context(), reader, id, nil); err != nil || len(all) != 6 || !all[5].Terminal() {
		t.Errorf("the run has %d events, %v, want 6, of which the last one ends it", len(all), err)
	}
}
