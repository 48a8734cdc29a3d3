package jetstream_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"answerd/internal/event"
	"answerd/internal/event/jetstream"
)

func TestURLs(t *testing.T) {
	for _, good := range []string{
		"file:/var/lib/answerd", "file:data", "nats://a:4222", "nats://u:p@a,nats://b:4222", "tls://a, tls://b/", "nats://[::1]:4222",
	} {
		if err := jetstream.CheckURL(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "file:", "file: ", "file:/", "file:///var", "http://a", "nats://", "nats://:4222", "a:4222", "nats://a,", "nats://a,http://b",
		"nats://a,tls://b", "nats://u:canary@a/x", "nats://u:canary@a?x=y", "nats://u:canary@a:port", "nats://u:canary%zz@a", "redis://a",
	} {
		if err := jetstream.CheckURL(bad); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestAPasswordIsInNoError(t *testing.T) {
	t.Parallel()
	s := serve(t, &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, Username: "u", Password: "right"})
	for _, url := range []string{
		strings.Replace(s.ClientURL(), "nats://", "nats://u:canary@", 1),
		strings.Replace(s.ClientURL(), "nats://", "nats://u:right@", 1), // no JetStream there
		"nats://u:canary@127.0.0.1:1",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		l, err := jetstream.Open(ctx, jetstream.Options{URL: url})
		cancel()
		if err == nil || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), "right") {
			t.Errorf("error %v", err)
		}
		if err == nil {
			_ = l.Close()
		}
	}
}

func TestOneDirectoryHasOneProcess(t *testing.T) {
	t.Parallel()
	url := "file:" + filepath.Join(t.TempDir(), "made", "here")
	l := open(t, jetstream.Options{URL: url})
	if _, err := jetstream.Open(t.Context(), jetstream.Options{URL: url}); err == nil || !strings.Contains(err.Error(), "another process uses it") {
		t.Errorf("a second one: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, jetstream.Options{URL: url})
}

func TestALogThatIsClosedSaysSo(t *testing.T) {
	t.Parallel()
	l := open(t, jetstream.Options{URL: "file:" + t.TempDir()})
	begin(t, l, "run_a")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, claim := l.Claim(t.Context())
	_, run := l.Run(t.Context(), "run_b")
	_, appended := l.Append(t.Context(), "run_a", event.FinalAnswer{})
	for _, err := range []error{claim, run, appended, l.Ready(t.Context()), l.Create(t.Context(), event.Run{ID: "run_c"})} {
		if !errors.Is(err, event.ErrUnavailable) {
			t.Errorf("error %v", err)
		}
	}
}
