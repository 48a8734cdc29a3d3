package auth

import (
	"log/slog"
	"unique"
)

// redacted is printed instead of a secret.
const redacted = "[redacted]"

// Secret holds a text that never prints: formatting, logging or encoding it gives "[redacted]".
// Only Reveal returns the text. Two Secrets are == if their texts are equal.
//
// The struct contains a handle instead of the text. Package fmt does not call String for %d, or
// for an unexported field of another struct; it then prints the field, which is only an address.
type Secret struct{ text unique.Handle[string] }

// NewSecret returns text as a Secret, and the zero Secret for "".
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{unique.Make(text)}
}

// Reveal returns the text. Only code that sends the secret should call it.
func (s Secret) Reveal() string {
	if s.IsZero() {
		return ""
	}
	return s.text.Value()
}

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s == Secret{} }

// String and GoString implement fmt.Stringer and fmt.GoStringer.
func (s Secret) String() string   { return redacted }
func (s Secret) GoString() string { return redacted }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements encoding.TextMarshaler. It does not return the text either.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// UnmarshalText implements encoding.TextUnmarshaler, for the configuration.
func (s *Secret) UnmarshalText(b []byte) error {
	*s = NewSecret(string(b))
	return nil
}
