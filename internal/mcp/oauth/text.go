package oauth

import (
	"fmt"
	"io"
	"os"
	"strings"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
)

// maxText bounds a key or an assertion, in bytes.
const maxText = 64 << 10

// Text is a secret that the configuration holds, or a file that does: the latter is read
// each time, because what writes such files, a Kubernetes projected token for one,
// replaces them.
type Text struct {
	Value auth.Secret
	File  string
}

// IsZero reports whether there is neither.
func (t Text) IsZero() bool { return t == Text{} }

// read is the secret, without the line feeds at its end. What names it in the error.
func (t Text) read(what string) (string, error) {
	if t.File == "" {
		return t.Value.Reveal(), nil
	}
	f, err := os.Open(t.File)
	if err != nil {
		return "", &fetch.Error{Public: what + " cannot be read", Err: err}
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxText+1))
	text := strings.TrimRight(string(b), "\r\n")
	switch {
	case err != nil:
		return "", &fetch.Error{Public: what + " cannot be read", Err: err}
	case len(b) > maxText:
		return "", &fetch.Error{Public: what + " is too large", Err: fmt.Errorf("more than %d bytes", maxText)}
	case text == "":
		return "", &fetch.Error{Public: what + " is empty"}
	}
	return text, nil
}
