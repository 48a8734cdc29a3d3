package auth

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"testing"
)

// Each value of a metric's label is a series, so invented tokens must not create new values.
func TestReasonIsOneOfAFixedSet(t *testing.T) {
	all := Reasons()
	for err, want := range map[error]string{
		ErrNoToken: "no_token", ErrMalformed: "malformed", &ScopeError{Required: "x"}: "scope", ErrInvalidToken: "other",
		fmt.Errorf("%w: down", ErrKeysUnavailable): "keys_unavailable", errors.New("eve"): "other",
		invalidTokenReason(fmt.Errorf("eve: %w", errNoKey)): "key", fmt.Errorf("x: %w", errSubject): "subject",
	} {
		if got := Reason(err); got != want || !slices.Contains(all, got) {
			t.Errorf("%v: Reason %s, want %s, one of %q", err, got, want, all)
		}
	}
	for _, known := range parserReasons {
		if err := invalidTokenReason(known.is); !errors.Is(err, ErrInvalidToken) || !slices.Contains(all, Reason(err)) {
			t.Errorf("%v: %v, want ErrInvalidToken with one of the reasons %q", known.is, err, all)
		}
	}
	for _, reason := range all {
		if !regexp.MustCompile(`^[a-z_]+$`).MatchString(reason) {
			t.Errorf("reason %q, want a label of letters and underscores", reason)
		}
	}
}
