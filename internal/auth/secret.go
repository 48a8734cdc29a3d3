package auth

import (
	"context"
	"log/slog"
	"unique"
)

const redacted = "[redacted]"

// Secret is a text that never prints: formatting, logging or encoding it gives
// "[redacted]". Only Reveal gives the text. Two Secrets are == when their texts are
// equal.
//
// The text sits behind a handle, not in the struct, because package fmt does not ask
// String for %d, nor for an unexported field of somebody else's struct: it prints what
// it finds, which is now an address.
type Secret struct{ text unique.Handle[string] }

// NewSecret wraps text.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{unique.Make(text)}
}

// Reveal is the text itself, for the one place that sends it.
func (s Secret) Reveal() string {
	if s.IsZero() {
		return ""
	}
	return s.text.Value()
}

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s == Secret{} }

func (s Secret) String() string   { return redacted }
func (s Secret) GoString() string { return redacted }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// UnmarshalText implements encoding.TextUnmarshaler, for configuration.
func (s *Secret) UnmarshalText(b []byte) error {
	*s = NewSecret(string(b))
	return nil
}

// Fixed gives s whenever it is asked: the client secret that the configuration
// holds itself.
func Fixed(s Secret) func(context.Context) (Secret, error) {
	return func(context.Context) (Secret, error) { return s, nil }
}
