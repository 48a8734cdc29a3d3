package api

import (
	"fmt"
	"testing"
)

func TestTheRunsWhoseEndWasMissedAreBounded(t *testing.T) {
	var runs torn
	for i := range maxTorn + 2 {
		runs.add(fmt.Sprint(i))
	}
	runs.add("5") // as new as the newest
	if len(runs.runs) != maxTorn || runs.has("0") || runs.has("1") || !runs.has("2") || !runs.has(fmt.Sprint(maxTorn+1)) {
		t.Errorf("%d are kept", len(runs.runs))
	}
	runs.add("more")
	if runs.has("2") || !runs.has("5") {
		t.Error("not the oldest one is given up")
	}
	runs.remove("5")
	if runs.has("5") {
		t.Error("5 is still there")
	}
}
