package agent

import (
	"errors"
	"testing"

	"answerd/internal/auth"
)

// A job that uses one key every day was told "gone" for ever once the log had given up
// its first run, and another body "reused".
func TestAKeyWhoseRunIsNoLongerKeptIsFreeAgain(t *testing.T) {
	kept := map[string]bool{"run_1": true, "run_2": true, "run_3": true}
	k := newKeyring(func(run string) bool { return kept[run] })
	ada := auth.Identity{Subject: "ada"}
	daily, other := Request{IdempotencyKey: "daily", Fingerprint: [32]byte{1}}, Request{IdempotencyKey: "other"}
	changed := Request{IdempotencyKey: "daily", Fingerprint: [32]byte{2}}
	k.keep(ada, daily, "run_1")
	if run, err := k.find(ada, daily); run != "run_1" || err != nil {
		t.Errorf("kept: %q, %v", run, err)
	}
	delete(kept, "run_1")
	for _, r := range []Request{daily, changed} {
		if run, err := k.find(ada, r); run != "" || err != nil {
			t.Errorf("no longer kept: %q, %v", run, err)
		}
	}
	k.keep(ada, changed, "run_2")
	k.keep(ada, other, "run_3") // forgets what the log has forgotten, and no more
	if run, err := k.find(ada, changed); run != "run_2" || err != nil {
		t.Errorf("used again: %q, %v", run, err)
	}
	if _, err := k.find(ada, daily); !errors.Is(err, ErrKeyReused) {
		t.Errorf("the first body: %v", err)
	}
	if len(k.order) != 2 || len(k.runs) != 2 {
		t.Errorf("%d uses of %d keys are remembered", len(k.order), len(k.runs))
	}
}
