package auth

import (
	"context"
	"errors"
)

// ErrNothingNewer is what Renew of a Static source fails with.
var ErrNothingNewer = errors.New("the configured token was refused, and there is no other")

// Static is the source of one fixed token, as a configuration holds it. It never
// expires here: a server that refuses it says so.
func Static(token Secret) TokenSource { return static{token} }

type static struct{ token Secret }

func (s static) Token(context.Context) (Secret, error) { return s.token, nil }

func (s static) Renew(context.Context, Secret) (Secret, error) { return Secret{}, ErrNothingNewer }
