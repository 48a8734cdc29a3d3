package main

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
)

// loadCounter counts the outcomes of one caller's questions.
type loadCounter struct {
	mu       sync.Mutex // protects what follows
	answered int
	refusals []time.Duration
	waits    []time.Duration // of those that were answered, the answer included
}

// ask asks one question, and checks that it is either answered whole or refused well.
func (c *loadCounter) ask(ctx context.Context, t *testing.T, client *http.Client, url string) {
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/answer", strings.NewReader(`{"question":"?"}`))
	if err != nil {
		t.Error(err)
		return
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	took := time.Since(began)
	c.mu.Lock()
	defer c.mu.Unlock()
	var p struct{ Answer, Code string }
	if err != nil || json.Unmarshal(b, &p) != nil {
		t.Errorf("%s: %.200s %v, want a problem document", resp.Status, b, err)
		return
	}
	switch after, _ := strconv.Atoi(resp.Header.Get("Retry-After")); {
	case resp.StatusCode == http.StatusOK && p.Answer == "Yes.":
		c.answered++
		c.waits = append(c.waits, took)
	case resp.StatusCode == http.StatusServiceUnavailable && p.Code == "overloaded" && after >= 1 && after <= 60:
		c.refusals = append(c.refusals, took)
	default:
		t.Errorf("%s: %.200s, want 200 or a refusal", resp.Status, b)
	}
}

// percentile returns the p-th part of durations, which may be in any order.
func percentile(d []time.Duration, p float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Sorted(slices.Values(d))
	return d[min(int(p*float64(len(d))), len(d)-1)].Round(100 * time.Microsecond)
}

// newClientFrom returns a client that connects from that address of this machine.
func newClientFrom(t *testing.T, address string) *http.Client {
	probe, err := net.ListenPacket("udp", address+":0")
	if err != nil {
		t.Skip("one caller cannot be told from another here:", err)
	}
	probe.Close()
	c := newClient(t)
	transport := c.Transport.(*http.Transport)
	transport.MaxIdleConnsPerHost = 1000
	transport.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).DialContext
	return c
}

// Three times the load that fits, nine tenths of it from one caller: every refusal is a valid problem
// with Retry-After, every admitted question is answered, and the figures say how quickly and fairly.
// facts/reliability.md L3; LOAD=1 takes two minutes of it.
func TestThreeTimesTheLoadIsRefusedOrAnswered(t *testing.T) {
	const places, took = 20, 400 * time.Millisecond // so that 50 answers a second fit
	seconds := 2
	if os.Getenv("LOAD") != "" {
		seconds = 120 // and without parallel tests, for the figures
	} else {
		skipUnlessDurable(t)
		t.Parallel()
	}

	clients := []*http.Client{newClientFrom(t, "127.0.0.1"), newClientFrom(t, "127.0.0.2")}
	w := newTestWorld(t, llmtest.Turns(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(rand.N(2 * took)):
			llmtest.Says("Yes.")(w, r)
		case <-r.Context().Done():
		}
	}))

	p := spawnAnswerd(t, append(w.environ(), "MAX_CONCURRENT_RUNS="+strconv.Itoa(places)))
	url := p.url(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds+30)*time.Second)
	defer cancel()

	var noisy, quiet loadCounter
	var all sync.WaitGroup
	began := time.Now()
	for i := range seconds * 3 * int(places*time.Second/took) {
		<-time.After(time.Until(began.Add(time.Duration(i) * took / (3 * places))))
		c, client := &noisy, clients[0]
		if i%10 == 5 {
			c, client = &quiet, clients[1]
		}
		all.Go(func() { c.ask(ctx, t, client, url) })
	}

	all.Wait()
	for name, c := range map[string]*loadCounter{"noisy": &noisy, "quiet": &quiet} {
		t.Logf("%s: %d answered (p50 %s, p99 %s), %d refused (p50 %s, p99 %s)", name,
			c.answered, percentile(c.waits, 0.5), percentile(c.waits, 0.99), len(c.refusals), percentile(c.refusals, 0.5), percentile(c.refusals, 0.99))
	}

	refusals := slices.Concat(noisy.refusals, quiet.refusals)
	t.Logf("refusals: %d, p50 %s, p99 %s", len(refusals), percentile(refusals, 0.5), percentile(refusals, 0.99))
	if noisy.answered == 0 || quiet.answered == 0 || len(noisy.refusals) == 0 {
		t.Errorf("answered %d and %d, %d refusals, want at least 1 of each", noisy.answered, quiet.answered, len(noisy.refusals))
	}
	p.signal(t, syscall.SIGTERM)
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}
