package agent

import (
	"answerd/internal/auth"
)

// keyring remembers which request an idempotency key stands for, as long as the log
// keeps that request's run. The agent's mutex guards it.
type keyring struct {
	runs  map[ownedKey]keptKey
	order []ownedKey // the oldest first
}

type ownedKey struct{ issuer, subject, key string }

type keptKey struct {
	run         string
	fingerprint [32]byte
}

func newKeyring() keyring { return keyring{runs: make(map[ownedKey]keptKey)} }

func keyOf(owner auth.Identity, r Request) ownedKey {
	return ownedKey{owner.Issuer, owner.Subject, r.IdempotencyKey}
}

// find returns the run of an earlier request with r's key, "" if there was none, or
// ErrKeyReused if that was another request.
func (k *keyring) find(owner auth.Identity, r Request) (run string, err error) {
	if r.IdempotencyKey == "" {
		return "", nil
	}
	kept, ok := k.runs[keyOf(owner, r)]
	if ok && kept.fingerprint != r.Fingerprint {
		return "", ErrKeyReused
	}
	return kept.run, nil
}

// keep remembers run for r's key, and forgets the oldest keys whose runs are no
// longer alive.
func (k *keyring) keep(owner auth.Identity, r Request, run string, alive func(run string) bool) {
	if r.IdempotencyKey == "" {
		return
	}
	for len(k.order) > 0 && !alive(k.runs[k.order[0]].run) {
		delete(k.runs, k.order[0])
		k.order = k.order[1:]
	}
	key := keyOf(owner, r)
	k.runs[key] = keptKey{run, r.Fingerprint}
	k.order = append(k.order, key)
}
