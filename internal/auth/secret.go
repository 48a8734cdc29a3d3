package auth

import (
	"log/slog"
	"unique"
)

const redacted = "[redacted]"

// Secret is a text that never prints: formatting, logging or encoding it gives
// "[redacted]". Only Reveal returns the text. Two Secrets are == when their texts are
// equal.
//
// The struct contains a handle and not the text, because package fmt does not call String
// for %d, nor for an unexported field of another struct: it prints the field itself, which
// is now an address.
type Secret struct{ text unique.Handle[string] }

// NewSecret returns text as a Secret; the zero Secret for "".
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{unique.Make(text)}
}

// Reveal returns the text itself, for the one place that sends it.
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
