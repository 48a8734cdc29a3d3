package window

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestSizesAreForgottenAfterAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Sizes
		s.Learn("a", 4096)
		s.Learn("b", 0)
		<-time.After(time.Hour)
		if a, b := s.Size("a"), s.Size("b"); a != 4096 || b != 0 {
			t.Errorf("after an hour: got %d and %d, want 4096 and 0", a, b)
		}
		<-time.After(time.Second)
		if got := s.Size("a"); got != 0 {
			t.Errorf("after more than an hour: got %d, want 0", got)
		}
	})
}

func TestSizesAreBounded(t *testing.T) {
	var s Sizes
	for i := range maxSizes + 100 {
		s.Learn(fmt.Sprint(i), 4096)
	}
	known := 0
	for i := range maxSizes + 100 {
		if s.Size(fmt.Sprint(i)) > 0 {
			known++
		}
	}
	if known != maxSizes || s.Size(fmt.Sprint(maxSizes+99)) == 0 {
		t.Errorf("got %d models, want %d with the last one", known, maxSizes)
	}
}
