package agent

import (
	"answerd/internal/auth"
)

// keyring remembers which request an idempotency key stands for, as long as the log
// keeps that request's run. The agent's mutex guards it.
type keyring struct {
	alive func(run string) bool // whether the log keeps it
	runs  map[ownedKey]keptKey
	order []keyUse // the oldest first
}

type ownedKey struct{ issuer, subject, key string }

type keptKey struct {
	run         string
	fingerprint [32]byte
}

// keyUse is one run that a key stood for. The same key may stand for another by now.
type keyUse struct {
	key ownedKey
	run string
}

func newKeyring(alive func(run string) bool) keyring {
	return keyring{alive: alive, runs: make(map[ownedKey]keptKey)}
}

func keyOf(owner auth.Identity, r Request) ownedKey {
	return ownedKey{owner.Issuer, owner.Subject, r.IdempotencyKey}
}

// find returns the run of an earlier request with r's key, "" if there was none, or
// ErrKeyReused if that was another request. A key whose run is no longer kept is free
// again: a job that uses the same one every day must not be told "gone" for ever.
func (k *keyring) find(owner auth.Identity, r Request) (run string, err error) {
	if r.IdempotencyKey == "" {
		return "", nil
	}
	kept, ok := k.runs[keyOf(owner, r)]
	switch {
	case !ok || !k.alive(kept.run):
		return "", nil
	case kept.fingerprint != r.Fingerprint:
		return "", ErrKeyReused
	}
	return kept.run, nil
}

// keep remembers run for r's key, and forgets the oldest keys whose runs are no
// longer alive.
func (k *keyring) keep(owner auth.Identity, r Request, run string) {
	if r.IdempotencyKey == "" {
		return
	}
	for len(k.order) > 0 && !k.alive(k.order[0].run) {
		if old := k.order[0]; k.runs[old.key].run == old.run {
			delete(k.runs, old.key)
		}
		k.order = k.order[1:]
	}
	key := keyOf(owner, r)
	k.runs[key] = keptKey{run, r.Fingerprint}
	k.order = append(k.order, keyUse{key, run})
}
