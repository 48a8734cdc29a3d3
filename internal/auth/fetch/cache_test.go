package fetch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func ExampleCheckEndpoint() {
	for _, url := range []string{"https://iam.example/keys", "http://127.0.0.1:8080/keys", "http://iam.example/keys"} {
		fmt.Println(CheckEndpoint("the JWKS URL", url))
	}
	// Output:
	// <nil>
	// <nil>
	// the JWKS URL must be https, or http on the loopback address
}

// A reply that makes the decoder panic must not end the process.
func TestCacheConvertsAPanicToAnError(t *testing.T) {
	c := NewCache(func(context.Context) (int, error) { panic("bad reply") }, Policy{})
	defer c.Close()
	_, err := c.Get(t.Context(), "a value", func(int) State { return Expired })
	var failure *Error
	if !errors.As(err, &failure) || !strings.Contains(failure.Err.Error(), "bad reply") {
		t.Errorf("Get = %v, want a *Error with the panic", err)
	}
}

func TestCacheCooldownAppliesAfterSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		c := NewCache(func(context.Context) (int, error) { requests++; return requests, nil }, Policy{Cooldown: 30 * time.Second})
		defer c.Close()
		replace := func() (int, error) {
			return c.Replace(t.Context(), "a value", 0, func(int) bool { return false })
		}
		if got, err := replace(); got != 1 || err != nil {
			t.Fatalf("Replace = %d, %v, want 1", got, err)
		}
		if _, err := replace(); !errors.Is(err, errTooSoon) {
			t.Errorf("Replace within the cooldown = %v, want %v", err, errTooSoon)
		}
		<-time.After(30 * time.Second)
		if got, err := replace(); got != 2 || err != nil {
			t.Errorf("Replace after the cooldown = %d, %v, want 2", got, err)
		}
	})
}
