package jetstream_test

import (
	"flag"
	"os"
	"strconv"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/goleak"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		appendUntilKilled(dir) // this process is the one that TestKill9LosesNoAcknowledgedEvent kills
	}
	if url := os.Getenv(createURL); url != "" {
		createUntilKilled(url) // this process is one that TestKeyOfAKilledCreatorIsFreeAfterALease kills
	}
	if err := flag.Set("test.parallel", strconv.Itoa(parallelTests)); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// skipUnlessLong skips a test that waits for a real time limit, unless ANSWERD_TEST_LONG is set.
func skipUnlessLong(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("ANSWERD_TEST_LONG") == "" {
		t.Skip(reason + "; make durable runs it")
	}
}

// skipUnlessDurable skips a test that takes long, unless ANSWERD_TEST_DURABLE is set, as in make durable and make race.
func skipUnlessDurable(t *testing.T) {
	t.Helper()
	if os.Getenv("ANSWERD_TEST_DURABLE") == "" {
		t.Skip("takes long; make durable runs it")
	}
}

// openLog opens a log and closes it at the end of the test.
func openLog(t testing.TB, o jetstream.Options) *jetstream.Log {
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

// startCluster starts one NATS server on loopback, for logs that share it.
func startCluster(t testing.TB) (url string) {
	t.Helper()
	return startServer(t, &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(),
	}).ClientURL()
}

func TestLogOnDisk(t *testing.T) {
	t.Parallel()
	eventtest.Run(t, func(t *testing.T) event.Log {
		return openLog(t, jetstream.Options{URL: "file:" + t.TempDir(), Lease: lease})
	})
}

func TestLogOnServer(t *testing.T) {
	t.Parallel()
	eventtest.Run(t, func(t *testing.T) event.Log { return openLog(t, jetstream.Options{URL: startCluster(t), Lease: lease}) })
}
