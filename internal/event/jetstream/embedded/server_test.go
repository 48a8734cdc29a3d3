package embedded

import (
	"log/slog"
	"sync"
	"testing"
	"time"
)

// A log that finds its disk unhealthy refuses all events and opens its files again. The server reports that it is
// unhealthy if it did not run for a millisecond at the wrong moment. A busy machine must not do that to a log.
func TestServerOnABusyMachineIsHealthy(t *testing.T) {
	t.Parallel()
	s, err := Start(Options{Dir: t.TempDir(), Default: 1 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}

	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()

	var wg sync.WaitGroup
	end := time.Now().Add(300 * time.Millisecond)
	for range 8 {
		wg.Go(func() {
			for time.Now().Before(end) {
				if err := s.Health(); err != nil {
					t.Errorf("Health = %v, want nil", err)
					return
				}
			}
		})
	}
	wg.Wait()
}
