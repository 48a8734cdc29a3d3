package jetstream_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"answerd/internal/event"
	"answerd/internal/event/jetstream"
)

// A pair that was made for this test, and is good for nothing else.
const (
	testSeed = "SUADTLIMTZ7W42D46NOFY3FJ6ZSR57TX2P5FE44IXYLQP7MKFT4ML7EEZA"
	testUser = "UBH2W5WOJLGH3ZKUCTEZ6JEO2PABVEOODTSLQSWWFBAI4EKNKACCXQ7T"
)

func TestAClusterIsLoggedInToWithAFile(t *testing.T) {
	t.Parallel()
	url := serve(t, &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
		Nkeys: []*server.NkeyUser{{Nkey: testUser}},
	}).ClientURL()
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "credentials")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	o := jetstream.Options{URL: url, Credentials: file(testSeed + "\n")}
	if err := jetstream.Check(t.Context(), o); err != nil {
		t.Error(err)
	}
	begin(t, open(t, o), "run_a")
	for name, bad := range map[string]string{
		"none": "", "missing": filepath.Join(t.TempDir(), "credentials"), "no seed": file("canary"), "too large": file(strings.Repeat("canary", 20<<10)),
		"no key of theirs": file(strings.Replace(testSeed, testSeed[8:16], "AAAAAAAA", 1)),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := jetstream.Check(ctx, jetstream.Options{URL: url, Credentials: bad})
		if err == nil || errors.Is(err, event.ErrUnavailable) || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := jetstream.Open(ctx, jetstream.Options{URL: url, Credentials: bad}); err == nil || errors.Is(err, event.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
	if err := jetstream.Check(t.Context(), jetstream.Options{URL: cluster(t)}); err != nil {
		t.Errorf("without a log in: %v", err)
	}
}

func TestACheckFindsAServerWithoutJetStreamAndNone(t *testing.T) {
	t.Parallel()
	plain := serve(t, &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err := jetstream.Check(t.Context(), jetstream.Options{URL: plain.ClientURL()}); err == nil {
		t.Error("JetStream is missed by nobody")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := jetstream.Check(ctx, jetstream.Options{URL: "nats://127.0.0.1:9"}); !errors.Is(err, event.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
}
