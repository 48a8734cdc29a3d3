package jetstream_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

// crashDir is the environment variable that has the directory of a process that is to be killed.
const crashDir = "ANSWERD_TEST_CRASH_DIR"

func crashOptions(dir string) jetstream.Options {
	return jetstream.Options{URL: "file:" + dir, Lease: 50 * time.Millisecond, MaxBytes: 1 << 30}
}

// appendUntilKilled claims the runs of a log on disk, or creates new ones, appends events to
// them, and prints the number of each event when it is acknowledged.
func appendUntilKilled(dir string) {
	ctx := context.Background()
	log, err := jetstream.Open(ctx, crashOptions(dir))
	for n := 0; err == nil; n++ {
		run := fmt.Sprintf("run_%d_%d", os.Getpid(), n)
		var job event.Job
		try, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		job, _ = log.Claim(try)
		if job != nil {
			run = job.Run()
		} else if err = log.Create(ctx, event.Run{ID: run, Created: time.Now()}); err == nil {
			job, err = log.CreateJob(ctx, run, []byte(run)) // acknowledges nothing; the first event does
		}
		cancel()
		for i := range 600 {
			var b event.Body = event.ToolProgress{Progress: float64(i)}
			switch {
			case i == 599:
				b = event.FinalAnswer{}
			case i%200 == 99:
				b = event.LogMessage{Data: json.RawMessage(`"` + strings.Repeat("x", 600<<10) + `"`)} // in parts
			}

			var seq int64
			if i%7 > 0 && i != 599 { // comes in one message with the next ones
				if _, err = log.AppendAsync(ctx, run, b); err != nil {
					break
				}
				continue
			}

			if seq, err = log.Append(ctx, run, b); err != nil {
				break
			}
			fmt.Println(run, seq)
		}
		if err == nil {
			err = job.Done(ctx)
		}
	}

	fmt.Println("failed:", err)
	os.Exit(1)
}

// A process with a log on disk is killed again and again (fault F24).
func TestKill9LosesNoAcknowledgedEvent(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	kills := 2 // make durable sets more
	if n, err := strconv.Atoi(os.Getenv("ANSWERD_TEST_KILLS")); err == nil {
		kills = n
	}

	// Kill a writing process again and again, and collect what it acknowledged.
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(3, 4))
	acknowledged := make(map[string]int64)
	for kill := range kills {
		p := exec.CommandContext(t.Context(), os.Args[0])
		p.Env = append(os.Environ(), crashDir+"="+dir)
		out, err := p.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}

		lines := bufio.NewScanner(out)
		for left := 1 + rnd.IntN(1000); lines.Scan(); left-- {
			if left == 0 {
				_ = p.Process.Kill() // the lines that it printed by then are still read
			}
			run, seq, ok := strings.Cut(lines.Text(), " ")
			n, err := strconv.ParseInt(seq, 10, 64)
			if !ok || err != nil {
				t.Fatalf("after %d kills the process printed %q, want a run and a number", kill, lines.Text())
			}
			acknowledged[run] = max(acknowledged[run], n)
		}
		_ = p.Wait() // killed
	}

	// Every acknowledged event is in the log.
	log := openLog(t, crashOptions(dir))
	ended := 0
	for run, n := range acknowledged {
		known, err := log.Run(t.Context(), run)
		if err != nil || known.Last.Seq < n {
			t.Errorf("%s has %d events, %v, want the %d acknowledged ones", run, known.Last.Seq, err, n)
			continue
		}
		all, err := readUntil(t.Context(), log, run, func(e event.Event) bool { return e.Seq == known.Last.Seq })
		if err != nil && known.Last.Seq > 0 {
			t.Errorf("reading %s gave %d events, %v, want %d", run, len(all), err, known.Last.Seq)
		}
		if known.Last.Terminal() {
			ended++
		}
	}
	t.Logf("%d kills, %d runs, %d of them ended", kills, len(acknowledged), ended)

	// Every run that has a job and has not ended can be claimed.
	unended := make(map[string]bool)
	for run := range acknowledged {
		if r, err := log.Run(t.Context(), run); err == nil && r.Last.Seq > 0 && !r.Last.Terminal() {
			unended[run] = true
		}
	}
	for len(unended) > 0 {
		job := claimJob(t, log)
		delete(unended, job.Run())
	}
}

func TestLogOnDiskAnswersAsItsModel(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	o := jetstream.Options{URL: "file:" + t.TempDir(), Lease: lease}
	log := openLog(t, o)
	eventtest.Model(t, log, func(t *testing.T) (event.Log, func()) {
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		log = openLog(t, o)
		return log, nil
	})
}

func TestLogOnServerAnswersAsItsModel(t *testing.T) {
	skipUnlessDurable(t)
	t.Parallel()
	url := startCluster(t)
	var proxy *eventtest.Proxy
	openNext := func() event.Log {
		proxy = eventtest.StartProxy(t, url)
		return openLog(t, jetstream.Options{URL: proxy.URL(), Lease: lease})
	}
	eventtest.Model(t, openNext(), func(*testing.T) (event.Log, func()) {
		proxy.Stop()
		resume := proxy.Resume
		return openNext(), resume
	})
}
