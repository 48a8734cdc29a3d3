package main

import (
	"fmt"
	"os"
	"testing"
)

// What was touched once and is not needed is no longer the process's.
func TestPagesOfTheBinaryAreGivenBack(t *testing.T) {
	shared := func() (pages int) {
		statm, err := os.ReadFile("/proc/self/statm")
		if err != nil {
			t.Skip(err)
		}
		if _, err := fmt.Sscanf(string(statm), "%d %d %d", new(int), new(int), &pages); err != nil {
			t.Fatal(err)
		}
		return pages
	}
	before := shared()
	giveBackBinary()
	if after := shared(); after > before/2 {
		t.Errorf("%d pages of files, and %d before", after, before)
	}
}
