package jetstream_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

// An NKey pair that was made for this test alone.
const (
	testSeed = "SUADTLIMTZ7W42D46NOFY3FJ6ZSR57TX2P5FE44IXYLQP7MKFT4ML7EEZA"
	testUser = "UBH2W5WOJLGH3ZKUCTEZ6JEO2PABVEOODTSLQSWWFBAI4EKNKACCXQ7T"
)

func TestCredentialsFileLogsIn(t *testing.T) {
	t.Parallel()
	url := startServer(t, &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
		Nkeys: []*server.NkeyUser{{Nkey: testUser}},
	}).ClientURL()

	writeFile := func(text string) string {
		name := filepath.Join(t.TempDir(), "credentials")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}

	o := jetstream.Options{URL: url, Credentials: writeFile(testSeed + "\n")}
	if err := jetstream.Check(t.Context(), o); err != nil {
		t.Errorf("Check with the seed: %v", err)
	}
	startRun(t, openLog(t, o), "run_a")

	for name, bad := range map[string]string{
		"none": "", "missing": filepath.Join(t.TempDir(), "credentials"), "no seed": writeFile("canary"), "too large": writeFile(strings.Repeat("canary", 20<<10)),
		"unknown key": writeFile(strings.Replace(testSeed, testSeed[8:16], "AAAAAAAA", 1)),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := jetstream.Check(ctx, jetstream.Options{URL: url, Credentials: bad})
		if err == nil || errors.Is(err, event.ErrUnavailable) || strings.Contains(err.Error(), "canary") {
			t.Errorf("Check with %s = %v, want an error that is permanent and does not quote the file", name, err)
		}
		if _, err := jetstream.Open(ctx, jetstream.Options{URL: url, Credentials: bad}); err == nil || errors.Is(err, event.ErrUnavailable) {
			t.Errorf("Open with %s = %v, want a permanent error", name, err)
		}
		cancel()
	}

	if err := jetstream.Check(t.Context(), jetstream.Options{URL: startCluster(t)}); err != nil {
		t.Errorf("Check of a server without login: %v", err)
	}
}

// While secrets are rotated, a server may refuse the login of a process for some time. The client
// library gives up after two refusals by default (F53).
func TestRefusedLoginIsTriedAgain(t *testing.T) {
	t.Parallel()
	o := &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
		Username: "u", Password: "old",
	}
	s := startServer(t, o)
	log := openLog(t, jetstream.Options{URL: strings.Replace(s.ClientURL(), "nats://", "nats://u:old@", 1)})
	startRun(t, log, "run_a")

	setPassword := func(password string) {
		changed := o.Clone()
		changed.Port, changed.Password = s.Addr().(*net.TCPAddr).Port, password
		if err := s.ReloadOptions(changed); err != nil {
			t.Fatal(err)
		}
	}

	setPassword("new")
	refused := 0
	eventtest.Await(t, "Ready to fail for longer than two attempts take", func() bool {
		if log.Ready(t.Context()) != nil {
			refused++
		}
		return refused > 50
	})

	setPassword("old")
	eventtest.Await(t, "Ready to succeed", func() bool { return log.Ready(t.Context()) == nil })
	appendEvent(t, log, "run_a", event.FinalAnswer{})
}

func TestCheckFailsWithoutJetStreamAndWithoutServer(t *testing.T) {
	t.Parallel()
	plain := startServer(t, &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err := jetstream.Check(t.Context(), jetstream.Options{URL: plain.ClientURL()}); err == nil {
		t.Error("Check of a server without JetStream = nil, want an error")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := jetstream.Check(ctx, jetstream.Options{URL: "nats://127.0.0.1:9"}); !errors.Is(err, event.ErrUnavailable) {
		t.Errorf("Check without a server = %v, want %v", err, event.ErrUnavailable)
	}
}

func TestCheckURL(t *testing.T) {
	for _, good := range []string{
		"file:/var/lib/answerd", "file:data", "nats://a:4222", "nats://u:p@a,nats://b:4222", "tls://a, tls://b/", "nats://[::1]:4222",
	} {
		if err := jetstream.CheckURL(good); err != nil {
			t.Errorf("CheckURL(%q) = %v, want nil", good, err)
		}
	}
	for _, bad := range []string{
		"", "file:", "file: ", "file:/", "file:///var", "http://a", "nats://", "nats://:4222", "a:4222", "nats://a,", "nats://a,http://b",
		"nats://a,tls://b", "nats://u:canary@a/x", "nats://u:canary@a?x=y", "nats://u:canary@a:port", "nats://u:canary%zz@a", "redis://a",
	} {
		if err := jetstream.CheckURL(bad); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("CheckURL(%q) = %v, want an error without the password", bad, err)
		}
	}
}

func TestOpenErrorsDoNotQuoteThePassword(t *testing.T) {
	t.Parallel()
	s := startServer(t, &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, Username: "u", Password: "right"})
	for _, url := range []string{
		strings.Replace(s.ClientURL(), "nats://", "nats://u:canary@", 1),
		strings.Replace(s.ClientURL(), "nats://", "nats://u:right@", 1), // no JetStream there
		"nats://u:canary@127.0.0.1:1",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		l, err := jetstream.Open(ctx, jetstream.Options{URL: url})
		cancel()
		if err == nil || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), "right") {
			t.Errorf("Open(%q) = %v, want an error without the password", url, err)
		}
		if err == nil {
			_ = l.Close()
		}
	}
}

func TestOpenLocksTheDirectory(t *testing.T) {
	t.Parallel()
	url := "file:" + filepath.Join(t.TempDir(), "made", "here")
	l := openLog(t, jetstream.Options{URL: url})
	if _, err := jetstream.Open(t.Context(), jetstream.Options{URL: url}); err == nil || !strings.Contains(err.Error(), "another process uses it") {
		t.Errorf("a second Open = %v, want another process uses it", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	openLog(t, jetstream.Options{URL: url})
}

func TestClosedLogIsUnavailable(t *testing.T) {
	t.Parallel()
	l := openLog(t, jetstream.Options{URL: "file:" + t.TempDir()})
	startRun(t, l, "run_a")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}

	_, claim := l.Claim(t.Context())
	_, run := l.Run(t.Context(), "run_b")
	_, appended := l.Append(t.Context(), "run_a", event.FinalAnswer{})
	for method, err := range map[string]error{
		"Claim": claim, "Run": run, "Append": appended, "Ready": l.Ready(t.Context()), "Create": l.Create(t.Context(), event.Run{ID: "run_c"}),
	} {
		if !errors.Is(err, event.ErrUnavailable) {
			t.Errorf("%s of a closed log = %v, want %v", method, err, event.ErrUnavailable)
		}
	}
}
