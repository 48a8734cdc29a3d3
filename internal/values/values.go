// Package values defines a store for small values that belong to no run, and implements it in memory. All processes
// that share a store see the same values.
//
//	key := values.NewKey("grant", server, issuer, subject)
//	value, revision, err := store.Value(ctx, key)
//	revision, err = store.SetValue(ctx, key, changed, revision, 30*24*time.Hour)
//	if err == nil && revision == 0 {
//		// another process has set the value since Value: read it again
//	}
//
// SetValue is a compare-and-set operation: of several processes that have read the same revision, only one can set the
// value. Every event.Log is also a Store. Package event/eventtest has the tests for all stores.
package values

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"
	"time"
)

// MaxSize is the maximum size of a value in bytes.
const MaxSize = 128 << 10

var (
	// ErrTooLarge means that a value is larger than MaxSize.
	ErrTooLarge = errors.New("the value is too large to be stored")
	// ErrFull means that the store has no space for another value.
	ErrFull = errors.New("the store of values is full")
)

// Store keeps values. After an error other than ErrTooLarge or ErrFull, for example a network error, it is unknown
// whether the operation has taken effect.
type Store interface {
	// Value returns the value of key and its revision. If key has no value, it returns an empty value, whose revision
	// may still be above 0. Callers must not change the value, which is shared.
	Value(ctx context.Context, key Key) (value []byte, revision uint64, err error)
	// SetValue sets the value of key and returns the new revision. When it returns, the value is stored durably. If key
	// no longer has the given revision, because another process has set it, SetValue changes nothing and returns 0. The
	// value expires after ttl, or after one second if ttl is shorter. An empty value removes the key.
	SetValue(ctx context.Context, key Key, value []byte, revision uint64, ttl time.Duration) (uint64, error)
	// Now returns the time of the store's clock, which is the same for all processes that share the store. Times within
	// values must come from it, because the clocks of machines can differ by an hour.
	Now() time.Time
}

// Key identifies a value. It does not reveal the parts that it was made from.
type Key struct{ digest string }

// NewKey returns the key for a name that consists of the given parts. Different lists of parts give different keys,
// even if their concatenations are equal.
func NewKey(parts ...string) Key {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write([]byte(strconv.Itoa(len(p)) + ":" + p)) // never fails
	}
	return Key{hex.EncodeToString(h.Sum(nil))}
}

// String returns the key as 64 hexadecimal digits.
func (k Key) String() string { return k.digest }
