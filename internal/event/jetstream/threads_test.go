package jetstream_test

import (
	"testing"

	"answerd/internal/event"
	"answerd/internal/event/eventtest"
	"answerd/internal/event/jetstream"
)

func TestThreadsOnDisk(t *testing.T) {
	eventtest.Threads(t, func(t *testing.T) event.Log {
		return openLog(t, jetstream.Options{URL: "file:" + t.TempDir(), Lease: lease})
	})
}

func TestThreadsOnServer(t *testing.T) {
	eventtest.Threads(t, func(t *testing.T) event.Log { return openLog(t, jetstream.Options{URL: startCluster(t), Lease: lease}) })
}
