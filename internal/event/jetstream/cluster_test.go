package jetstream_test

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
	"answerd/internal/event/jetstream"
)

// startThreeServers starts a cluster of three servers and returns their URLs.
func startThreeServers(t *testing.T) (running []*server.Server, urls string) {
	t.Helper()
	var routes []*url.URL
	var listeners []net.Listener
	for range 6 { // free ports
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
	}
	port := func(i int) int { return listeners[i].Addr().(*net.TCPAddr).Port }
	for i := range 3 {
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port(i))})
	}
	for _, l := range listeners {
		_ = l.Close()
	}
	var clients []string
	for i := range 3 {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: port(3 + i), NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
			Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: port(i)}, Routes: routes,
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Start() // gets ready when two servers run
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		running = append(running, s)
		clients = append(clients, fmt.Sprintf("nats://127.0.0.1:%d", port(3+i)))
	}
	return running, strings.Join(clients, ",")
}

// leaderOf returns the number of the server that is the leader of the runs' stream.
func leaderOf(t *testing.T, urls string) int {
	t.Helper()
	c, err := nats.Connect(urls)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	j, err := js.New(c)
	if err != nil {
		t.Fatal(err)
	}
	s, err := j.Stream(t.Context(), "ANSWERD_RUNS")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimPrefix(s.CachedInfo().Cluster.Leader, "n"))
	if err != nil || s.CachedInfo().Config.Replicas != 3 {
		t.Fatalf("stream has cluster %+v and %d replicas, %v, want a leader and 3", s.CachedInfo().Cluster, s.CachedInfo().Config.Replicas, err)
	}
	return n
}

// An append that is in flight when the leader dies may be stored, or not, or on one server
// only. Its repetition must not take it for the message of another writer.
func TestClusterLosesNoEventWithItsLeader(t *testing.T) {
	t.Parallel()
	running, urls := startThreeServers(t)
	a, b := openLog(t, jetstream.Options{URL: urls}), openLog(t, jetstream.Options{URL: urls})
	const runs, steps = 4, 40
	var readers sync.WaitGroup
	for i := range runs {
		id := fmt.Sprintf("run_%d", i)
		startRun(t, a, id)
		readers.Go(func() {
			all, err := readUntil(t.Context(), b, id, nil)
			if err != nil || len(all) != steps+2 {
				t.Errorf("reader of %s got %d events, %v, want %d", id, len(all), err, steps+2)
			}
		})
	}
	oldLeader := running[leaderOf(t, urls)]
	var writers sync.WaitGroup
	for i := range runs {
		writers.Go(func() {
			id, longest := fmt.Sprintf("run_%d", i), time.Duration(0)
			for step := range steps {
				if i == 0 && step == steps/2 {
					oldLeader.Shutdown()
				}
				from := time.Now()
				if _, err := a.Append(t.Context(), id, event.StepStart{Step: step}); err != nil {
					t.Errorf("Append to %s: %v", id, err)
					return
				}
				longest = max(longest, time.Since(from))
			}
			if _, err := a.Append(t.Context(), id, event.FinalAnswer{}); err != nil {
				t.Errorf("Append to %s: %v", id, err)
			}
			t.Logf("%s: longest append %v", id, longest)
		})
	}
	writers.Wait()
	readers.Wait()
	// The log asks the leader before it denies something: a replica may lag behind.
	if _, err := b.After(t.Context(), "run_0", steps+3); !errors.Is(err, event.ErrInvalidPosition) {
		t.Errorf("After beyond the end = %v, want %v", err, event.ErrInvalidPosition)
	}
	if _, err := b.Run(t.Context(), "run_unknown"); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("Run of an unknown id = %v, want %v", err, event.ErrNotFound)
	}
}
