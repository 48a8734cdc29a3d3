package auth

import (
	"context"
	"time"
)

// Fresh is a token as a token endpoint gave it.
type Fresh struct {
	Token Secret
	Life  time.Duration // from Asked on
	Asked time.Time     // just before the request was sent
}

// Kept is a TokenSource whose tokens come from a function of its owner, by whatever
// grant: one fetch at a time however many callers wait, a pause of 1 s to 30 s after a
// failed one, and a refresh shortly before the token expires. NewKept makes one.
type Kept struct{ *keeper }

// NewKept fetches nothing yet. Fetch is called with a context that ends with Close and
// bounds its own time; its errors are what Token and Renew give.
func NewKept(fetch func(context.Context) (Fresh, error)) *Kept {
	return &Kept{newKeeper(fetch)}
}

// Token implements TokenSource.
func (k *Kept) Token(ctx context.Context) (Secret, error) { return k.token(ctx) }

// Renew implements TokenSource. The zero Secret stands for a request that went without
// a token. It starts at most one fetch per second, and none in the pause after a failed
// one.
func (k *Kept) Renew(ctx context.Context, rejected Secret) (Secret, error) {
	return k.renew(ctx, rejected)
}

// Have is the token that is kept, if it is valid: it fetches none and does not wait.
func (k *Kept) Have() (Secret, bool) {
	k.grants.mu.Lock()
	defer k.grants.mu.Unlock()
	return k.grants.value.token, time.Now().Before(k.grants.value.expires)
}

// Put keeps a token that came another way, and ends the pause after a failed fetch.
func (k *Kept) Put(f Fresh) {
	k.grants.mu.Lock()
	defer k.grants.mu.Unlock()
	k.grants.value, k.grants.have = newGrant(f), true
	k.grants.failures, k.grants.next = 0, time.Time{}
}

// Forget makes token worthless, if it is the one that is kept.
func (k *Kept) Forget(token Secret) {
	k.grants.mu.Lock()
	defer k.grants.mu.Unlock()
	if k.grants.value.token == token {
		k.grants.value = grant{}
	}
}

// Close ends the fetch under way, waits for it, and lets no other start.
func (k *Kept) Close() { k.grants.close() }

// ReadTokenReply reads a successful reply of a token endpoint (RFC 6749 section 5.1) to
// a request that was sent at asked. Kind is the token_type that it must have, in any
// case: Bearer or DPoP. Errors are *FetchError.
func ReadTokenReply(r Reply, asked time.Time, kind string) (Fresh, error) {
	token, life, err := parseTokenReply(r.Body, issuerTime(r.Header, asked), kind)
	if err != nil {
		return Fresh{}, &FetchError{Public: err.Error(), Status: r.Status}
	}
	return Fresh{token, life, asked}, nil
}
