// Package sealed keeps users' secrets encrypted in a store that processes can share.
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
// A secret is encrypted with AES-256-GCM and the first key. All keys decrypt. To replace a key, first add the new one
// to the file of every process, then make it the first key in all of them, and remove the old key when no secret needs
// it any more. If this were done in one step, a process would get secrets that it cannot decrypt yet.
//
// A secret's name is authenticated together with the secret, so that someone who can write to the store cannot give one
// user the secret of another. The store has only a hash of the name. Everything may be used concurrently.
package sealed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"answerd/internal/help"
	"answerd/internal/values"
)

// version is the first byte of a stored value. The key's id, the nonce, the ciphertext and the tag follow it.
const version = 1

// Store encrypts and decrypts the values of a values.Store.
type Store struct {
	keys     *Keys
	values   values.Store
	logger   *slog.Logger
	reported atomic.Bool // a secret that cannot be decrypted was logged, which happens once per process
}

// New returns a Store that encrypts secrets with keys and keeps them in store.
func New(keys *Keys, store values.Store, logger *slog.Logger) *Store {
	return &Store{keys: keys, values: store, logger: logger}
}

// NewInMemory returns a Store whose secrets are lost when the process ends: they are in memory, encrypted with a random
// key.
func NewInMemory(logger *slog.Logger) (*Store, error) {
	keys, err := newKeys()
	if err != nil {
		return nil, err
	}
	return New(keys, &values.Memory{}, logger), nil
}

// Now returns the time according to the clock of the underlying values.Store.
func (s *Store) Now() time.Time { return s.values.Now() }

// Load returns the secret called name, and its revision, which Save needs. name has at least one part, and the first
// part is the kind of secret, for the log. data is nil if there is no such secret. If the secret cannot be decrypted,
// Load logs a warning and also returns nil data and no error, so that the user has to sign in again.
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

// open decrypts value, which is stored for the secret called name. Errors quote nothing from value.
func (s *Store) open(value []byte, name values.Key) ([]byte, error) {
	if len(value) < 1+keyIDLen || value[0] != version {
		return nil, errors.New("it has an unknown format")
	}
	header, sealed := value[:1+keyIDLen], value[1+keyIDLen:]
	keys := s.keys.currentKeys(s.logger)
	i := slices.IndexFunc(keys, func(k key) bool { return bytes.Equal(k.id[:], header[1:]) })
	if i < 0 {
		return nil, errors.New("its key is not in the file of TOKENS_KEY_FILE")
	}
	data, err := keys[i].aead.Open(nil, nil, sealed, additionalData(header, name))
	if err != nil {
		return nil, errors.New("it was changed, or belongs to another user or server")
	}
	return data, nil
}

// Save encrypts a secret, stores it for ttl and returns its new revision. If another process has changed the secret, so
// that it no longer has the given revision, Save stores nothing and returns 0. Callers should then load the secret
// again. Empty data removes the secret.
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
// (version and key id), and the name. With the name, a value cannot be moved to another name.
func additionalData(header []byte, name values.Key) []byte {
	return append(bytes.Clone(header), name.String()...)
}
