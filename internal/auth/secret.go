package auth

import (
	"log/slog"
	"unique"
)

// redacted is shown instead of a secret.
const redacted = "[redacted]"

// Secret holds a text that is never printed: formatting, logging or encoding a Secret gives "[redacted]". Only Reveal
// returns the text. Two Secrets are equal (==) if their texts are equal.
//
// The struct contains a handle instead of the text, because package fmt does not always call String: for %d, and for an
// unexported field of another struct, it prints the fields. A handle's field is only an address.
type Secret struct{ text unique.Handle[string] }

// NewSecret returns a Secret with the given text. For "", it returns the zero Secret.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{unique.Make(text)}
}

// Reveal returns the text, or "" for the zero Secret. Only code that sends the secret should call it.
func (s Secret) Reveal() string {
	if s.IsZero() {
		return ""
	}
	return s.text.Value()
}

// IsZero reports whether s is the zero Secret, which has no text.
func (s Secret) IsZero() bool { return s == Secret{} }

// String and GoString implement fmt.Stringer and fmt.GoStringer.
func (s Secret) String() string   { return redacted }
func (s Secret) GoString() string { return redacted }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements encoding.TextMarshaler. It returns "[redacted]", not the text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// UnmarshalText implements encoding.TextUnmarshaler, so that the configuration can have Secrets.
func (s *Secret) UnmarshalText(b []byte) error {
	*s = NewSecret(string(b))
	return nil
}
