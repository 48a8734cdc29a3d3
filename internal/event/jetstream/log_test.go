package jetstream_test

import (
	"os"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		crash(dir) // this is a process that a test kills
	}
	goleak.VerifyTestMain(m)
}

// open opens a log and closes it at the end of the test.
func open(t testing.TB, o jetstream.Options) *jetstream.Log {
	t.Helper()
	l, err := jetstream.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// cluster is one NATS server on loopback, for logs that share it.
func cluster(t testing.TB) (url string) {
	t.Helper()
	return serve(t, &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
	}).ClientURL()
}

func TestOnThisDisk(t *testing.T) {
	eventtest.Run(t, func(t *testing.T) event.Log {
		return open(t, jetstream.Options{URL: "file:" + t.TempDir(), Lease: lease})
	})
}

func TestOnAServer(t *testing.T) {
	eventtest.Run(t, func(t *testing.T) event.Log { return open(t, jetstream.Options{URL: cluster(t), Lease: lease}) })
}
