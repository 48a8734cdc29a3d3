package jetstream_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

var ada = event.Owner{Issuer: "i", Subject: "ada"}

func TestThreadsOnDisk(t *testing.T) {
	t.Parallel()
	eventtest.Threads(t, func(t *testing.T) event.Log {
		return openLog(t, jetstream.Options{URL: "file:" + t.TempDir(), Lease: lease})
	})
}

func TestThreadsOnServer(t *testing.T) {
	t.Parallel()
	eventtest.Threads(t, func(t *testing.T) event.Log { return openLog(t, jetstream.Options{URL: startCluster(t), Lease: lease}) })
}

func beginTurn(t testing.TB, log event.Log, owner event.Owner, thread, run string) {
	t.Helper()
	if _, err := log.BeginTurn(t.Context(), owner, thread, run, "", thread); err != nil {
		t.Fatal(err)
	}
}

// addTurn begins and ends a turn, and repeats both while the log of a busy machine does not answer.
func addTurn(t testing.TB, log event.Log, owner event.Owner, thread, run string, data []byte) {
	t.Helper()
	eventtest.Await(t, "a turn to be stored", func() bool {
		_, err := log.BeginTurn(t.Context(), owner, thread, run, "", thread)
		if err == nil {
			err = log.EndTurn(t.Context(), owner, thread, run, data)
		}
		if err != nil && !errors.Is(err, event.ErrUnavailable) {
			t.Fatalf("a turn of %s got %v, want no error", thread, err)
		}
		return err == nil
	})
}

// threadsOf returns the ids of an owner's newest threads, the newest one first.
func threadsOf(t testing.TB, log event.Log, owner event.Owner) (ids []string) {
	t.Helper()
	page, err := log.ListThreads(t.Context(), event.ThreadFilter{Owner: owner, Limit: event.MaxThreadsPage})
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range page.Threads {
		ids = append(ids, thread.ID)
	}
	return ids
}

func TestThreadsOfTwoInstancesAreOne(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	a, b := openLog(t, jetstream.Options{URL: url, Lease: lease}), openLog(t, jetstream.Options{URL: url, Lease: lease})
	eventtest.RaceBeginTurn(t, a, b)

	awaitList := func(log event.Log, want ...string) {
		t.Helper()
		began := time.Now()
		eventtest.Await(t, fmt.Sprint("the other instance to list ", want), func() bool { return slices.Equal(threadsOf(t, log, ada), want) })
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the other instance listed the threads after %s, want at most 2s", took)
		}
	}

	addTurn(t, a, ada, "thr_a", "run_1", []byte("x"))
	awaitList(b, "thr_a", "thr_race")
	addTurn(t, b, ada, "thr_race", "run_2", []byte("x"))
	awaitList(a, "thr_race", "thr_a")
	beginTurn(t, b, ada, "thr_a", "run_3")
	if err := a.DeleteThread(t.Context(), ada, "thr_a"); err != nil {
		t.Fatal(err)
	}
	awaitList(b, "thr_race")
	beginTurn(t, a, ada, "thr_a", "run_4")
	if err := b.EndTurn(t.Context(), ada, "thr_a", "run_3", []byte("late")); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("EndTurn on another instance after the deletion = %v, want %v", err, event.ErrNotFound)
	}
	if page, err := b.Turns(t.Context(), ada, "thr_a", 0, 10, 1<<20); err != nil || len(page.Turns) > 0 {
		t.Errorf("Turns of the new thread = %+v, %v, want none", page, err)
	}
	if _, turns := openStreams(t, url); len(subjectsOf(t, turns)) != 6 {
		t.Errorf("the stream of turns has %v, want the six of thr_race alone", subjectsOf(t, turns))
	}
	var busy *event.BusyError
	if _, err := b.BeginTurn(t.Context(), ada, "thr_a", "run_5", "", ""); !errors.As(err, &busy) || busy.Run != "run_4" {
		t.Errorf("BeginTurn on another instance = %v, %+v, want a BusyError with run_4", err, busy)
	}
}

// A process that does not know of a deletion stores a turn, and removes it when it learns of it.
func TestTurnOfADeletedThreadIsRemoved(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	a, b := openLog(t, jetstream.Options{URL: url, Lease: lease}), openLog(t, jetstream.Options{URL: url, Lease: lease})
	_, turns := openStreams(t, url)
	addTurn(t, b, ada, "thr_a", "run_1", []byte("x"))
	beginTurn(t, b, ada, "thr_a", "run_2")
	if err := a.DeleteThread(t.Context(), ada, "thr_a"); err != nil {
		t.Fatal(err)
	}
	if err := b.EndTurn(t.Context(), ada, "thr_a", "run_2", []byte("late")); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("EndTurn after the deletion = %v, want %v", err, event.ErrNotFound)
	}
	if left := subjectsOf(t, turns); len(left) > 0 {
		t.Errorf("the turns %v are left, want none", left)
	}
}

// The servers of a cluster lag behind each other, and any of them answers.
func TestThreadsOnCluster(t *testing.T) {
	t.Parallel()
	url := eventtest.StartCluster(t).URL()
	a, b := openLog(t, jetstream.Options{URL: url, Lease: lease}), openLog(t, jetstream.Options{URL: url, Lease: lease})
	eventtest.RaceBeginTurn(t, a, b)
	for i := range 50 {
		addTurn(t, a, ada, "thr_a", fmt.Sprintf("run_%d", i), fmt.Append(nil, i))
		if page, err := b.Turns(t.Context(), ada, "thr_a", 0, 3, 1<<20); err != nil || len(page.Turns) != min(i+1, 3) || string(page.Turns[len(page.Turns)-1].Data) != fmt.Sprint(i) {
			t.Fatalf("Turns on another instance after turn %d = %+v, %v, want the last ones", i, page, err)
		}
	}
}

// An earlier version used all of MaxBytes for runs. An upgrade drops no event for the share of the threads,
// and the limits of all streams together stay the same.
func TestUpgradeToThreadsKeepsEvents(t *testing.T) {
	t.Parallel()
	const maxBytes = 16 << 20
	url := startCluster(t)
	o := jetstream.Options{URL: url, Lease: lease, MaxBytes: maxBytes}
	log, err := jetstream.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	j, err := js.New(connect(t, url))
	if err != nil {
		t.Fatal(err)
	}

	limits := func() (runs, all int64) {
		t.Helper()
		for info := range j.ListStreams(t.Context()).Info() {
			all += info.Config.MaxBytes
			if info.Config.Name == "ANSWERD_RUNS" {
				runs = info.Config.MaxBytes
			}
		}
		return runs, all
	}

	// Make the streams those of an older version, and fill them with runs.
	s, err := j.Stream(t.Context(), "ANSWERD_RUNS")
	if err != nil {
		t.Fatal(err)
	}
	older := s.CachedInfo().Config
	older.MaxBytes = maxBytes
	if _, err := j.UpdateStream(t.Context(), older); err != nil {
		t.Fatal(err)
	}
	const runs = 13
	for i := range runs {
		id := fmt.Sprintf("run_%d", i)
		if err := log.Create(t.Context(), event.Run{ID: id, Owner: ada, Created: log.Now()}); err != nil {
			t.Fatal(err)
		}
		appendEvent(t, log, id, event.Start{Question: strings.Repeat("x", 1<<20)})
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}

	// After the upgrade, all events are there, and the limit has room for them.
	log = openLog(t, o)
	for i := range runs {
		if page, err := log.After(t.Context(), fmt.Sprintf("run_%d", i), 0); err != nil || len(page.Events) != 1 {
			t.Errorf("run %d has %d events, %v after the upgrade, want 1", i, len(page.Events), err)
		}
	}
	const most = maxBytes/4*5 + 1<<20 // some streams have at least a MiB
	if got, all := limits(); got < runs<<20 || got >= maxBytes || all > most {
		t.Errorf("the limit of runs is %d and of all streams %d, want what is stored and five quarters of %d", got, all, maxBytes)
	}
	for i := range runs {
		if err := log.Delete(t.Context(), fmt.Sprintf("run_%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	openLog(t, o)
	if got, all := limits(); got != maxBytes/4*3 || all > maxBytes/4*5 {
		t.Errorf("the limit of runs is %d and of all streams %d after another start, want %d and at most %d", got, all, maxBytes/4*3, maxBytes/4*5)
	}
}

// A power failure may lose turns that a thread counts. The others are still read.
func TestLostTurnHidesNoOther(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	log := openLog(t, jetstream.Options{URL: url, Lease: lease})
	_, turns := openStreams(t, url)

	for i := range 10 {
		addTurn(t, log, ada, "thr_a", fmt.Sprintf("run_%d", i), fmt.Append(nil, i))
	}

	for _, pos := range []uint64{1, 5, 10} {
		if err := turns.DeleteMsg(t.Context(), pos); err != nil {
			t.Fatal(err)
		}
	}

	addTurn(t, log, ada, "thr_a", "run_10", []byte("10"))
	for _, limit := range []int{2, 100} {
		var got []string
		for before := int64(0); ; {
			page, err := log.Turns(t.Context(), ada, "thr_a", before, limit, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			for _, turn := range slices.Backward(page.Turns) {
				got = append(got, string(turn.Data))
			}
			if before = page.Before; before == 0 {
				break
			}
		}
		if want := []string{"10", "8", "7", "6", "5", "3", "2", "1"}; !slices.Equal(got, want) {
			t.Errorf("turns in pages of %d, the newest first, are %v, want %v", limit, got, want)
		}
	}
}

func TestThreadsSurviveARestart(t *testing.T) {
	t.Parallel()
	o := jetstream.Options{URL: "file:" + t.TempDir(), Lease: lease}
	log, err := jetstream.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}

	for i := range 3 {
		addTurn(t, log, ada, fmt.Sprintf("thr_%d", i), fmt.Sprintf("run_%d", i), []byte("x"))
	}

	if _, err := log.RenameThread(t.Context(), ada, "thr_0", "renamed"); err != nil {
		t.Fatal(err)
	}
	beginTurn(t, log, ada, "thr_1", "run_active")
	if err := log.DeleteThread(t.Context(), ada, "thr_2"); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	log = openLog(t, o)
	if got, want := threadsOf(t, log, ada), []string{"thr_1", "thr_0"}; !slices.Equal(got, want) {
		t.Errorf("threads after the restart are %v, want %v", got, want)
	}
	if got, err := log.Thread(t.Context(), ada, "thr_0"); err != nil || got.Title != "renamed" || got.Turns != 1 {
		t.Errorf("Thread after the restart = %+v, %v, want title renamed and one turn", got, err)
	}
	if err := log.EndTurn(t.Context(), ada, "thr_1", "run_active", []byte("y")); err != nil {
		t.Errorf("EndTurn of a run that began before the restart = %v, want no error", err)
	}
}

// openStreams returns the streams of threads.
func openStreams(t *testing.T, url string) (heads, turns js.Stream) {
	t.Helper()
	j, err := js.New(connect(t, url))
	if err == nil {
		heads, err = j.Stream(t.Context(), "ANSWERD_THREADS")
	}
	if err == nil {
		turns, err = j.Stream(t.Context(), "ANSWERD_TURNS")
	}
	if err != nil {
		t.Fatal(err)
	}
	return heads, turns
}

// subjectsOf returns the subjects of a stream.
func subjectsOf(t *testing.T, s js.Stream) (subjects []string) {
	t.Helper()
	info, err := s.Info(t.Context(), js.WithSubjectFilter(">"))
	if err != nil {
		t.Fatal(err)
	}
	for subject := range info.State.Subjects {
		subjects = append(subjects, subject)
	}
	slices.Sort(subjects)
	return subjects
}

// A process stores a turn and is killed before the thread counts it. The turn is not lost, and the next
// one follows it.
func TestTurnOfAKilledProcessIsCounted(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	log := openLog(t, jetstream.Options{URL: url, Lease: lease})
	_, turns := openStreams(t, url)
	addTurn(t, log, ada, "thr_a", "run_1", []byte("first"))
	beginTurn(t, log, ada, "thr_a", "run_2")
	first := subjectsOf(t, turns)[0]
	killed := recordedMessage{strings.TrimSuffix(first, "1") + "2", nats.Header{"Answerd-Run": {"run_2"}, "Answerd-Writer": {"killed"}}, "second"}
	killed.publish(t, connect(t, url))

	// Another process finds run_2 dead.
	if err := log.EndTurn(t.Context(), ada, "thr_a", "run_2", nil); err != nil {
		t.Fatal(err)
	}
	addTurn(t, log, ada, "thr_a", "run_3", []byte("third"))
	if err := log.EndTurn(t.Context(), ada, "thr_a", "run_2", []byte("again")); err != nil {
		t.Errorf("a second EndTurn of the run whose process was killed = %v, want no error", err)
	}
	page, err := log.Turns(t.Context(), ada, "thr_a", 0, 10, 1<<20)
	if err != nil {
		t.Fatal(err)
	}

	var got []string
	for _, turn := range page.Turns {
		got = append(got, turn.Run+" "+string(turn.Data))
	}

	if want := []string{"run_1 first", "run_2 second", "run_3 third"}; !slices.Equal(got, want) {
		t.Errorf("turns = %q, want %q", got, want)
	}
	if thread, err := log.Thread(t.Context(), ada, "thr_a"); err != nil || thread.Turns != 3 || thread.LastRun != "run_3" || thread.Active != "" {
		t.Errorf("Thread = %+v, %v, want three turns", thread, err)
	}
}

// Names and texts of callers are in no subject, and a deletion leaves nothing but a tombstone.
func TestDeletedThreadLeavesATombstone(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	log := openLog(t, jetstream.Options{URL: url, Lease: lease})
	heads, turns := openStreams(t, url)

	for i := range 3 {
		addTurn(t, log, ada, "thr_secret", fmt.Sprintf("run_%d", i), []byte("secret"))
	}

	for _, subject := range slices.Concat(subjectsOf(t, heads), subjectsOf(t, turns)) {
		if strings.Contains(subject, "ada") || strings.Contains(subject, "secret") {
			t.Errorf("the subject %s has what a caller chose, want digests alone", subject)
		}
	}

	if err := log.DeleteThread(t.Context(), ada, "thr_secret"); err != nil {
		t.Fatal(err)
	}
	if left := subjectsOf(t, turns); len(left) > 0 {
		t.Errorf("the turns %v are left, want none", left)
	}
	m, err := heads.GetMsg(t.Context(), 7) // the last head: a beginning and an end for each turn, and this one
	if err != nil || bytes.Contains(m.Data, []byte("secret")) || bytes.Contains(m.Data, []byte("ada")) {
		t.Errorf("the head that is left is %+v, %v, want a tombstone without texts", m, err)
	}
}

func TestThreadExpiresWithoutAWrite(t *testing.T) {
	t.Parallel()
	url := startCluster(t)
	log := openLog(t, jetstream.Options{URL: url, Lease: lease, ThreadsRetention: 2 * time.Second})
	_, turns := openStreams(t, url)
	addTurn(t, log, ada, "thr_a", "run_1", []byte("x"))
	beginTurn(t, log, ada, "thr_active", "run_2")
	eventtest.Await(t, "the turn of the expired thread to be removed", func() bool { return len(subjectsOf(t, turns)) == 0 })
	if got := threadsOf(t, log, ada); !slices.Equal(got, []string{"thr_active"}) {
		t.Errorf("threads after the retention are %v, want the active one", got)
	}
	if _, err := log.Thread(t.Context(), ada, "thr_a"); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("Thread after its retention = %v, want %v", err, event.ErrNotFound)
	}
	addTurn(t, log, ada, "thr_a", "run_1", []byte("again"))
}

// Threads have a quarter of the log. Those of the owner above its share give way first.
func TestThreadsAreBounded(t *testing.T) {
	t.Parallel()
	const maxBytes = 16 << 20
	url := startCluster(t)
	log := openLog(t, jetstream.Options{URL: url, Lease: lease, MaxBytes: maxBytes})
	heads, turns := openStreams(t, url)
	bob := event.Owner{Issuer: "i", Subject: "bob"}
	addTurn(t, log, bob, "thr_bob", "run_bob", make([]byte, 100<<10))
	beginTurn(t, log, ada, "thr_active", "run_active")

	for i := range 40 {
		addTurn(t, log, ada, fmt.Sprintf("thr_%d", i), fmt.Sprintf("run_%d", i), make([]byte, 256<<10))
	}

	limit := uint64(0)
	for _, s := range []js.Stream{heads, turns} {
		info, err := s.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		limit += uint64(info.Config.MaxBytes)
		if info.State.Bytes > uint64(info.Config.MaxBytes) {
			t.Errorf("stream %s has %d bytes, want at most %d", info.Config.Name, info.State.Bytes, info.Config.MaxBytes)
		}
	}
	if limit > maxBytes/4 {
		t.Errorf("the streams of threads may have %d bytes, want at most a quarter of %d", limit, maxBytes)
	}
	eventtest.Await(t, "the threads to fit", func() bool { n := len(threadsOf(t, log, ada)); return n < 14 })
	got := threadsOf(t, log, ada)
	if len(got) < 6 || got[0] != "thr_39" || got[len(got)-1] != "thr_active" {
		t.Errorf("threads of the owner above its share are %v, want the newest ones and the active one", got)
	}
	if got := threadsOf(t, log, bob); !slices.Equal(got, []string{"thr_bob"}) {
		t.Errorf("threads of the owner below its share are %v, want thr_bob", got)
	}

	// The stream of heads refuses what does not fit, so that old threads have to be dropped first.
	title := strings.Repeat("t", event.MaxTitle)
	for i := range 1200 {
		if _, err := log.BeginTurn(t.Context(), ada, fmt.Sprintf("thr_%d_%s", i, strings.Repeat("x", 800)), "run_x", "", title); err != nil {
			t.Fatalf("BeginTurn %d in a log full of threads = %v, want no error", i, err)
		}
	}
}

// A full account gives no thread more space than a quarter of what it stores: runs can be created again.
func TestThreadsAreDroppedInAFullAccount(t *testing.T) {
	t.Parallel()
	s := startServer(t, &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()})
	log := openLog(t, jetstream.Options{URL: s.ClientURL(), Lease: lease, MaxBytes: 64 << 20, Retention: 2 * time.Second})
	limits := server.JetStreamAccountLimits{MaxMemory: -1, MaxStore: 4 << 20, MaxStreams: -1, MaxConsumers: -1, MaxAckPending: -1, MemoryMaxStreamBytes: -1, StoreMaxStreamBytes: -1}
	if err := s.GlobalAccount().UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"": limits}); err != nil {
		t.Fatal(err)
	}

	full := false
	for i := 0; i < 40 && !full; i++ {
		thread, run := fmt.Sprintf("thr_%d", i), fmt.Sprintf("run_%d", i)
		_, err := log.BeginTurn(t.Context(), ada, thread, run, "", "")
		if err == nil {
			err = log.EndTurn(t.Context(), ada, thread, run, make([]byte, 256<<10))
		}
		if full = errors.Is(err, event.ErrUnavailable); err != nil && !full {
			t.Fatalf("a turn in a full account got %v, want %v", err, event.ErrUnavailable)
		}
	}
	if !full {
		t.Fatal("the account did not get full, want ErrUnavailable")
	}
	before := threadsOf(t, log, ada)
	if err := log.DeleteThread(t.Context(), ada, before[len(before)-1]); err != nil {
		t.Errorf("DeleteThread in a full account = %v, want no error", err)
	}
	eventtest.Await(t, "a run of 1 MiB to be stored", func() bool {
		id := log.NewID()
		err := log.Create(t.Context(), event.Run{ID: id, Owner: ada, Created: log.Now()})
		for i := 0; i < 5 && err == nil; i++ {
			err = log.SaveResult(t.Context(), id, fmt.Sprint(i), make([]byte, 200<<10))
		}
		if err != nil && !errors.Is(err, event.ErrUnavailable) && !errors.Is(err, event.ErrGone) { // gone: it waited for longer than the retention
			t.Fatalf("a run in a full account got %v, want %v", err, event.ErrUnavailable)
		}
		return err == nil
	})
	after := threadsOf(t, log, ada)
	if len(after) == 0 || len(after) >= len(before) || after[0] != before[0] {
		t.Errorf("threads are %v after %v, want the newest ones of them", after, before)
	}
}
