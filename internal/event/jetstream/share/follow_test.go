package share

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"
)

// openStream returns a stream of a server in this process, and a Table of it. The run of a subject
// run.ID.KIND is ID, and its owner the first letter of that.
func openStream(t testing.TB) (js.JetStream, js.Stream, *Table) {
	t.Helper()
	s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	conn, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	stream, err := js.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	runs, err := stream.CreateStream(t.Context(), js.StreamConfig{Name: "RUNS", Subjects: []string{"run.>"}, Storage: js.FileStorage})
	if err != nil {
		t.Fatal(err)
	}

	entry := uint64(0)
	return stream, runs, New(Source{
		Conn: conn, JetStream: stream, Stream: "RUNS",
		Run: func(subject string) (string, bool) {
			tokens := strings.Split(subject, ".")
			return tokens[1], tokens[2] == "ev"
		},
		Entries: func(_ context.Context, from uint64) (entries []Entry, more bool, err error) {
			for entry = from; entry <= 26; entry++ { // the runs a1, b2 … z26
				letter := string(rune('a' + entry - 1))
				entries = append(entries, Entry{Pos: entry, ID: letter + fmt.Sprint(entry), Owner: letter})
			}
			return entries, false, nil
		},
	})
}

func publishMessage(t testing.TB, stream js.JetStream, subject string, size int) {
	t.Helper()
	m := nats.NewMsg(subject)
	m.Header.Set("Answerd-Writer", "somebody 1 2")
	m.Data = make([]byte, size)
	if _, err := stream.PublishMsg(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}

// wantSizes reports an error unless the Table counts as many bytes as the stream.
func wantSizes(t *testing.T, when string, runs js.Stream, table *Table) {
	t.Helper()
	info, err := runs.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The server may tell the consumer of a message some time after it acknowledged the message.
	want, sum := int64(info.State.Bytes), int64(0)
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); {
		if err := table.Follow(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		sum = 0
		for _, o := range table.owners {
			sum += o.bytes
		}
		if table.total >= want {
			break
		}
	}
	if table.total != want || sum != want {
		t.Errorf("%s, the table counts %d bytes, %d of owners, want %d", when, table.total, sum, want)
	}
}

func TestTableCountsTheBytesOfTheStream(t *testing.T) {
	t.Parallel()
	stream, runs, table := openStream(t)
	wantSizes(t, "without messages", runs, table)
	for i := range 3 * batch {
		publishMessage(t, stream, "run.a1.ev", i)
	}
	publishMessage(t, stream, "run.b2.res.call", 100_000)
	wantSizes(t, "at first", runs, table)
	if a, b := table.runs["a1"], table.runs["b2"]; a.last != 3*batch || b.last != 0 || b.owner.bytes < 100_000 {
		t.Errorf("the last events are %d and %d, want %d and none", a.last, b.last, 3*batch)
	}
	publishMessage(t, stream, "run.b2.ev", 10)
	wantSizes(t, "after one more message", runs, table)
}

// A message that arrives while a pull request ends must not be delivered to nobody.
func TestTableMissesNoMessageBetweenPulls(t *testing.T) {
	t.Parallel()
	stream, runs, table := openStream(t)
	published, followed := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		for running := true; running && err == nil; {
			err = table.Follow(t.Context(), 0)
			select {
			case <-published:
				running = false
			default:
			}
		}
		followed <- err
	}()

	for i := range 2000 {
		publishMessage(t, stream, "run.a1.ev", i)
	}

	close(published)
	if err := <-followed; err != nil {
		t.Fatalf("Follow = %v, want no error", err)
	}
	wantSizes(t, "after 2,000 messages", runs, table)
}

// Without authentication, all callers are one.
func TestTableReadsNoSizesOfASingleOwner(t *testing.T) {
	t.Parallel()
	stream, _, table := openStream(t)
	read := table.source.Entries
	table.source.Entries = func(ctx context.Context, from uint64) ([]Entry, bool, error) {
		return []Entry{{Pos: 1, ID: "a1", Owner: "a"}}, false, nil
	}
	publishMessage(t, stream, "run.a1.ev", 10)

	for range 2 {
		if err := table.Follow(t.Context(), 0); err != nil || table.consumer != "" || table.total != 0 {
			t.Errorf("Follow = %v, with consumer %q and %d bytes, want none", err, table.consumer, table.total)
		}
	}

	table.source.Entries = read
	if err := table.Follow(t.Context(), 0); err != nil || table.owners["a"].bytes == 0 {
		t.Errorf("Follow = %v, %d bytes of the first owner, want some", err, table.owners["a"].bytes)
	}
}

// The server removes a consumer that was not used for a while, or with its store.
func TestTableContinuesWithANewConsumer(t *testing.T) {
	t.Parallel()
	stream, runs, table := openStream(t)
	publishMessage(t, stream, "run.a1.ev", 10)
	wantSizes(t, "at first", runs, table)
	if err := stream.DeleteConsumer(t.Context(), "RUNS", table.consumer); err != nil {
		t.Fatal(err)
	}
	publishMessage(t, stream, "run.b2.ev", 10)
	if err := table.Follow(t.Context(), 0); err == nil {
		t.Error("Follow without its consumer = nil, want an error")
	}
	wantSizes(t, "with another consumer", runs, table)
	table.Reset(t.Context())
	if len(table.runs) > 0 || runs.ListConsumers(t.Context()).Err() != nil {
		t.Errorf("the table has %d runs after Reset, want none", len(table.runs))
	}

	for c := range runs.ListConsumers(t.Context()).Info() {
		t.Errorf("the stream has the consumer %s after Reset, want none", c.Name)
	}
	wantSizes(t, "after Reset", runs, table)
}

// Other processes delete runs, and a full stream its oldest messages.
func TestTableIsBuiltAgainWhenOthersDeletedRuns(t *testing.T) {
	t.Parallel()
	stream, runs, table := openStream(t)
	for _, subject := range []string{"run.a1.ev", "run.b2.ev", "run.b2.ev", "run.c3.ev"} {
		publishMessage(t, stream, subject, 1000)
	}
	wantSizes(t, "at first", runs, table)
	if err := runs.Purge(t.Context(), js.WithPurgeSubject("run.b2.>")); err != nil {
		t.Fatal(err)
	}
	table.built = table.built.Add(-2 * rebuildInterval)
	wantSizes(t, "after a deletion", runs, table)
	if r := table.runs["b2"]; r.bytes != 0 {
		t.Errorf("the deleted run has %d bytes, want 0", r.bytes)
	}
}

// BenchmarkFollow reports what the size of a message costs, of the server and the client together.
func BenchmarkFollow(b *testing.B) {
	stream, _, table := openStream(b)
	for range 5000 {
		publishMessage(b, stream, "run.a1.ev", 200)
	}
	began := time.Now()
	for b.Loop() {
		table.Reset(b.Context())
		if err := table.Follow(b.Context(), 1<<30); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(time.Since(began).Nanoseconds())/float64(b.N)/5000, "ns/message")
}

// The index names more runs than a Table may have the sizes of: it has those of the oldest ones.
func TestTableReadsSizesOfALogWithVeryManyRuns(t *testing.T) {
	t.Parallel()
	stream, runs, table := openStream(t)
	table.source.Entries = func(_ context.Context, from uint64) (entries []Entry, more bool, err error) {
		for pos := from; pos < from+1000; pos++ {
			letter := string(rune('a' + pos%2))
			entries = append(entries, Entry{Pos: pos, ID: letter + fmt.Sprint(pos), Owner: letter})
		}
		return entries, true, nil
	}
	publishMessage(t, stream, "run.b1.ev", 10)
	publishMessage(t, stream, "run.a2.ev", 1000)
	wantSizes(t, "with endless entries", runs, table)
	if n := len(table.runs); n < maxRuns || n > 2*maxRuns {
		t.Errorf("the table has %d runs, want about %d", n, maxRuns)
	}
}
