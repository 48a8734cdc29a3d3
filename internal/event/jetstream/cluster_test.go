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

// three is a cluster of three servers and its URLs.
func three(t *testing.T) (running []*server.Server, urls string) {
	t.Helper()
	var routes []*url.URL
	var listeners []net.Listener
	for range 6 { // ports that are free now
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
		s.Start() // ready once there are two
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		running = append(running, s)
		clients = append(clients, fmt.Sprintf("nats://127.0.0.1:%d", port(3+i)))
	}
	return running, strings.Join(clients, ",")
}

// leader is the number of the server that decides what is appended.
func leader(t *testing.T, urls string) int {
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
		t.Fatalf("cluster %+v, %v", s.CachedInfo().Cluster, err)
	}
	return n
}

// What is on its way when a leader dies may be stored, or not, or on one server only:
// that is no other writer.
func TestAClusterLosesItsLeaderAndNothingElse(t *testing.T) {
	t.Parallel()
	running, urls := three(t)
	a, b := open(t, jetstream.Options{URL: urls}), open(t, jetstream.Options{URL: urls})
	const runs, steps = 4, 40
	var readers sync.WaitGroup
	for i := range runs {
		id := fmt.Sprintf("run_%d", i)
		begin(t, a, id)
		readers.Go(func() {
			all, err := read(t.Context(), b, id, nil)
			if err != nil || len(all) != steps+2 {
				t.Errorf("%s: %d events, %v", id, len(all), err)
			}
		})
	}
	dies := running[leader(t, urls)]
	var writers sync.WaitGroup
	for i := range runs {
		writers.Go(func() {
			id, longest := fmt.Sprintf("run_%d", i), time.Duration(0)
			for step := range steps {
				if i == 0 && step == steps/2 {
					dies.Shutdown()
				}
				from := time.Now()
				if _, err := a.Append(t.Context(), id, event.StepStart{Step: step}); err != nil {
					t.Errorf("%s: %v", id, err)
					return
				}
				longest = max(longest, time.Since(from))
			}
			if _, err := a.Append(t.Context(), id, event.FinalAnswer{}); err != nil {
				t.Errorf("%s: %v", id, err)
			}
			t.Logf("%s: longest append %v", id, longest)
		})
	}
	writers.Wait()
	readers.Wait()
	// A "no" is asked of a leader: a replica may not have heard.
	if _, err := b.After(t.Context(), "run_0", steps+3); !errors.Is(err, event.ErrInvalidPosition) {
		t.Errorf("beyond the end: %v", err)
	}
	if _, err := b.Run(t.Context(), "run_unknown"); !errors.Is(err, event.ErrNotFound) {
		t.Errorf("an unknown run: %v", err)
	}
}
