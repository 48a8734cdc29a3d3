package jetstream

import (
	"testing"
	"time"
)

// An instance that has lost its connection for reads cannot ask whether the executor lives. It must not take its run over.
func TestInstanceThatCannotReadClaimsNoRun(t *testing.T) {
	t.Parallel()
	first := openEmbedded(t, Options{})
	second := openSecond(t, first)
	second.lease = 100 * time.Millisecond
	createRun(t, first, "run_a")
	if second.isClaimedBy(t.Context(), "gone", "run_a") {
		t.Error("isClaimedBy of an instance that is gone = true, want false")
	}
	second.read.Close()
	if !second.isClaimedBy(t.Context(), first.instanceID, "run_a") {
		t.Error("isClaimedBy without a connection = false, want true")
	}
}
