// Package values defines a store of small values that belong to no run, which all processes that
// share the store see, and implements it in memory.
//
//	key := values.NewKey("grant", server, issuer, subject)
//	value, revision, err := store.Value(ctx, key)
//	revision, err = store.SetValue(ctx, key, changed, revision, 30*24*time.Hour)
//	if err == nil && revision == 0 {
//		// another process has set the value since Value: read it again
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

// Store keeps values. An error that is not ErrTooLarge or ErrFull, for example of the network, means that the outcome
// is unknown.
type Store interface {
	// Value returns the value of a key and its revision. For a key without a value it returns an empty value; the
	// revision may be above 0 nevertheless. The caller must not change the value, which is shared.
	Value(ctx context.Context, key Key) (value []byte, revision uint64, err error)
	// SetValue sets the value of a key and returns the new revision. The value is stored durably when SetValue returns.
	// If the key has another revision than the given one, because another process has set it, SetValue changes nothing
	// and returns 0. The value expires after ttl, or after a second if ttl is shorter. An empty value removes the key.
	SetValue(ctx context.Context, key Key, value []byte, revision uint64, ttl time.Duration) (uint64, error)
	// Now returns the time of the store's clock, which all processes that share the store have in common. Times within
	// values must come from it, because the clocks of machines can differ by an hour.
	Now() time.Time
}

// Key identifies a value. It does not reveal what it was made from.
type Key struct{ digest string }

// NewKey returns the key for a name that consists of parts. Different parts give different keys, also if their
// concatenations are equal.
func NewKey(parts ...string) Key {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write([]byte(strconv.Itoa(len(p)) + ":" + p)) // never fails
	}
	return Key{hex.EncodeToString(h.Sum(nil))}
}

// String returns the key as 64 hexadecimal digits.
func (k Key) String() string { return k.digest }
