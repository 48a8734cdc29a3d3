package api_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/agent"
	"answerd/internal/api"
	"answerd/internal/event"
	"answerd/internal/mcp"
)

// apiOver is an API over a log that the test writes itself, without servers or model.
func apiOver(t testing.TB, log event.Log) http.Handler {
	t.Helper()
	return apiOf(t, agent.Options{Log: log})
}

// apiOf is an API without servers.
func apiOf(t testing.TB, o agent.Options) http.Handler {
	t.Helper()
	tools, err := mcp.New(nil, mcp.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	o.Tools = tools
	a, err := agent.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		tools.Close()
		a.Drain(context.Background())
	})
	h := api.New(api.Options{Agent: a, Log: o.Log})
	t.Cleanup(func() { h.Close(context.Background()) })
	return h
}

// still is that API on a listener without sockets, and a way to connect.
func still(t *testing.T, log event.Log) (dial func() net.Conn) {
	t.Helper()
	return overPipes(t, apiOver(t, log))
}

func readRun(c net.Conn) error {
	_, err := fmt.Fprint(c, "GET /runs/run_a/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
	return err
}

// followed is a log in which a run has been made, and a connection that reads it.
func followed(t *testing.T) (*event.Memory, net.Conn) {
	t.Helper()
	log := event.NewMemory(event.MemoryOptions{})
	if err := log.Create(t.Context(), event.Run{ID: "run_a"}); err != nil {
		t.Fatal(err)
	}
	c := still(t, log)()
	if err := readRun(c); err != nil {
		t.Fatal(err)
	}
	return log, c
}

func TestAnOpenStreamBeatsEveryFifteenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := followed(t)
		defer c.Close()
		began, beats := time.Now(), 0
		for lines := bufio.NewScanner(c); beats < 4 && lines.Scan(); {
			if lines.Text() == ": ping" {
				if beats++; time.Since(began) != time.Duration(beats)*15*time.Second {
					t.Errorf("beat %d after %s", beats, time.Since(began))
				}
			}
		}
		if beats != 4 {
			t.Errorf("%d beats", beats)
		}
	})
}

// F30: a reader that takes nothing holds its connection for one write's time and not
// for ever; the run and its other readers never wait for it.
func TestAReaderThatStallsIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := event.NewMemory(event.MemoryOptions{})
		if err := log.Create(t.Context(), event.Run{ID: "run_a"}); err != nil {
			t.Fatal(err)
		}
		dial := still(t, log)
		stalled, reading := dial(), dial()
		defer stalled.Close()
		defer reading.Close()
		for _, c := range []net.Conn{stalled, reading} {
			if err := readRun(c); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		for range 100 {
			if _, err := log.Append(t.Context(), "run_a", event.TextDelta{PartID: "p", Delta: strings.Repeat("x", 1000)}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := log.Append(t.Context(), "run_a", event.FinalAnswer{}); err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(reading); lines.Scan() && lines.Text() != "event: final_answer"; {
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the other reader waited %s", took)
		}
		// The server closes its end; until then a read would have got what it wrote.
		<-time.After(10 * time.Second)
		synctest.Wait()
		if b, err := io.ReadAll(stalled); err != nil || strings.Contains(string(b), "final_answer") {
			t.Errorf("the connection is still there: %v, %d bytes", err, len(b))
		}
	})
}

// A result can be as large as megabytes: a reader that takes it slowly is no reader that
// takes nothing. Let go in the middle, it would come back to the same event again and again.
func TestASlowReaderGetsALargeEventWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, c := followed(t)
		defer c.Close()
		if _, err := log.Append(t.Context(), "run_a", event.FinalAnswer{Answer: strings.Repeat("x", 1<<20)}); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		takeSlowly(t, resp.Body)
	})
}

// takeSlowly reads a mebibyte and more, in over a minute.
func takeSlowly(t *testing.T, body io.Reader) {
	t.Helper()
	began, got := time.Now(), 0
	var err error
	for part := make([]byte, 16<<10); err == nil; {
		var n int
		n, err = io.ReadFull(body, part)
		got += n
		<-time.After(time.Second)
	}
	if took := time.Since(began); got < 1<<20 || took < time.Minute {
		t.Errorf("%d bytes in %s: %v", got, took, err)
	}
}
