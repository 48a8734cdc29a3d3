// Package sealed keeps secrets of users encrypted in a store that processes share.
//
//	keys, err := sealed.ReadKeys(path)
//	if err != nil {
//		return err
//	}
//	secrets := sealed.New(keys, store, logger)
//	data, revision, err := secrets.Load(ctx, "grant", server, issuer, subject)
//	revision, err = secrets.Save(ctx, changed, revision, 30*24*time.Hour, "grant", server, issuer, subject)
//	if err == nil && revision == 0 {
//		// another process was faster: load it again
//	}
//
// A secret is encrypted with AES-256-GCM under the first key; all keys decrypt. To replace a key, add
// the new one to the file of every process, then make it the first one in all of them, and remove the old
// one when no secret needs it any more. In one step, a process would get secrets that it cannot decrypt
// yet. The name of a secret is authenticated with it: someone who can write to the store cannot give one
// user the secret of another. The store has the name as a hash only. Everything may be used concurrently.
package sealed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"answerd/internal/help"
	"answerd/internal/values"
)

// version is the first byte of a stored value. The key's id, the nonce, the ciphertext and the tag
// follow.
const version = 1

// Store encrypts and decrypts the values of a values.Store.
type Store struct {
	keys     *Keys
	values   values.Store
	logger   *slog.Logger
	reported atomic.Bool // a secret that cannot be decrypted was logged; this is logged once per process
}

// New returns a Store that keeps its secrets in store, encrypted with keys.
func New(keys *Keys, store values.Store, logger *slog.Logger) *Store {
	return &Store{keys: keys, values: store, logger: logger}
}

// NewInMemory returns a Store that ends with the process: its values are in memory, encrypted with a
// key that only this process has.
func NewInMemory(logger *slog.Logger) (*Store, error) {
	keys, err := newKeys()
	if err != nil {
		return nil, err
	}
	return New(keys, &values.Memory{}, logger), nil
}

// Now returns the time of the store's clock (values.Store).
func (s *Store) Now() time.Time { return s.values.Now() }

// Load returns the secret with a name and its revision, which Save needs. The name has at least one part; the first is
// the kind of the secret, for the log. data is nil if there is no such secret. It is also nil, with a warning in the
// log and without an error, if the secret cannot be decrypted: its user has to sign in again.
func (s *Store) Load(ctx context.Context, name ...string) (data []byte, revision uint64, err error) {
	key := values.NewKey(name...)
	value, revision, err := s.values.Value(ctx, key)
	if err != nil {
		return nil, 0, fmt.Errorf("read an encrypted secret: %w", err)
	}
	if len(value) == 0 {
		return nil, revision, nil
	}
	if data, err = s.open(value, key); err != nil {
		if !s.reported.Swap(true) {
			s.logger.WarnContext(ctx, "a stored secret cannot be used; its user has to sign in again",
				"kind", name[0], "error", err, help.StoredSignIns.Attr())
		}
		return nil, revision, nil
	}
	return data, revision, nil
}

// open decrypts the stored value of the secret with a name. The error quotes nothing of the value.
func (s *Store) open(value []byte, name values.Key) ([]byte, error) {
	if len(value) < 1+keyIDLen || value[0] != version {
		return nil, errors.New("it has an unknown format")
	}
	header, sealed := value[:1+keyIDLen], value[1+keyIDLen:]
	for _, k := range s.keys.currentKeys(s.logger) {
		if bytes.Equal(k.id[:], header[1:]) {
			data, err := k.aead.Open(nil, nil, sealed, additionalData(header, name))
			if err != nil {
				return nil, errors.New("it was changed, or belongs to another user or server")
			}
			return data, nil
		}
	}
	return nil, errors.New("its key is not in the file of TOKENS_KEY_FILE")
}

// Save encrypts a secret, stores it for ttl and returns its new revision. If the stored secret does not have the given
// revision any more, because another process has changed it, Save stores nothing and returns 0; the caller should then
// load the secret again. Empty data removes the secret.
func (s *Store) Save(ctx context.Context, data []byte, revision uint64, ttl time.Duration, name ...string) (uint64, error) {
	key := values.NewKey(name...)
	var value []byte
	if len(data) > 0 {
		first := s.keys.currentKeys(s.logger)[0]
		header := append([]byte{version}, first.id[:]...)
		value = first.aead.Seal(bytes.Clone(header), nil, data, additionalData(header, key))
	}
	next, err := s.values.SetValue(ctx, key, value, revision, ttl)
	if err != nil {
		return 0, fmt.Errorf("store an encrypted secret: %w", err)
	}
	return next, nil
}

// additionalData returns the data that is authenticated with a secret but not encrypted: the header of the stored value
// (version and key id) and the name, so that a value cannot be moved to another name.
func additionalData(header []byte, name values.Key) []byte {
	return append(bytes.Clone(header), name.String()...)
}
