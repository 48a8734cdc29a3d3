// Package values defines a store of small values that belong to no run, which all processes that
// share the store see, and implements it in memory.
//
//	key := values.NewKey("grant", server, issuer, subject)
//	value, revision, err := store.Value(ctx, key)
//	revision, err = store.SetValue(ctx, key, changed, revision, 30*24*time.Hour)
//	if err == nil && revision == 0 {
//		// another process has set it meanwhile: read it again
//	}
//
// SetValue is a compare-and-set: of several processes that have read the same revision, one sets the
// value. The event logs are stores (event.Log). The package event/eventtest tests every store.
package values

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"
	"time"
)

// MaxSize bounds a value, in bytes.
const MaxSize = 128 << 10

var (
	// ErrTooLarge: a value is longer than MaxSize.
	ErrTooLarge = errors.New("the value is too large to be stored")
	// ErrFull: the store has no space for another value.
	ErrFull = errors.New("the store of values is full")
)

// Store keeps values. The errors of a store beyond a network include others than those of this
// package, and mean that the outcome is unknown.
type Store interface {
	// Value returns the value of a key and its revision. A key without a value has an empty one; its
	// revision may be above 0 nevertheless. The value is shared: do not change it.
	Value(ctx context.Context, key Key) (value []byte, revision uint64, err error)
	// SetValue sets the value of a key, durably before it returns, and returns the new revision. If
	// the key has another revision, because another process has set it, SetValue sets nothing and
	// returns 0. The value is kept for ttl, at least for a second. An empty value removes the key.
	SetValue(ctx context.Context, key Key, value []byte, revision uint64, ttl time.Duration) (uint64, error)
	// Now returns the time of the store's clock, which is the same for all processes that share the
	// store. Times in values must be of it: clocks of machines can differ by an hour.
	Now() time.Time
}

// Key identifies a value. It does not reveal what it was made from.
type Key struct{ digest string }

// NewKey returns the key of a name that has the given parts.
func NewKey(parts ...string) Key {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write([]byte(strconv.Itoa(len(p)) + ":" + p)) // never fails
	}
	return Key{hex.EncodeToString(h.Sum(nil))}
}

// String returns the key as 64 hexadecimal digits.
func (k Key) String() string { return k.digest }
