package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"

	"answerd/internal/help"
)

const (
	keySize  = 32       // bytes of an AES-256 key
	keyIDLen = 8        // bytes of a key's id
	maxFile  = 64 << 10 // bytes of the key file
)

// Keys is a list of keys, usually from a file. The first key encrypts, and all keys decrypt. Keys may be used
// concurrently.
type Keys struct {
	path string // the file's path; "" for a random key that is only in memory

	mu       sync.Mutex  // protects the fields below
	keys     []key       // the keys in use, at least one
	info     os.FileInfo // describes the file at the time when keys was read from it
	reported string      // the last logged reason why a changed file cannot be used; "" if the file can be used
}

// key is an AES-256 key.
type key struct {
	id   [keyIDLen]byte // the start of the key's hash; stored with each secret, to find the secret's key
	aead cipher.AEAD
}

// ReadKeys reads keys from a file, which has one key of 32 bytes per line, in base64 or hex. Empty lines and lines that
// begin with # are skipped. The returned Keys read the file again when it has changed. Errors quote nothing from the
// file.
func ReadKeys(path string) (*Keys, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("find the keys: %w", err)
	}
	keys, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return &Keys{path: path, info: info, keys: keys}, nil
}

// newKeys returns Keys with one random key.
func newKeys() (*Keys, error) {
	raw := make([]byte, keySize)
	_, _ = rand.Read(raw) // never fails
	k, err := newKey(raw)
	if err != nil {
		return nil, err
	}
	return &Keys{keys: []key{k}}, nil
}

// readFile reads the keys in a file of at most maxFile bytes.
func readFile(path string) ([]key, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the keys: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the keys: %w", err)
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("larger than %d bytes", maxFile)
	}
	return parseKeys(string(text))
}

// parseKeys parses the content of a key file. It returns an error if a line is not a key, or if there are no keys.
func parseKeys(text string) ([]key, error) {
	var keys []key
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		raw, ok := decodeKey(line)
		if !ok {
			return nil, fmt.Errorf("line %d is not a key of %d bytes in base64 or hex", i+1, keySize)
		}
		k, err := newKey(raw)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no key in it")
	}
	return keys, nil
}

// decodeKey decodes a key in hex, or in standard or URL-safe base64 with or without padding. ok is false unless the key
// has keySize bytes.
func decodeKey(line string) (raw []byte, ok bool) {
	if raw, err := hex.DecodeString(line); err == nil && len(raw) == keySize {
		return raw, true
	}
	line = strings.TrimRight(line, "=")
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		if raw, err := encoding.DecodeString(line); err == nil && len(raw) == keySize {
			return raw, true
		}
	}
	return nil, false
}

// newKey returns the key that consists of the bytes raw. Its cipher chooses a random nonce for each secret, so that
// processes that share the key need no common counter. The id depends only on raw, because processes may have the key
// on different lines of their files.
func newKey(raw []byte) (key, error) {
	block, err := aes.NewCipher(raw)
	if err != nil {
		return key{}, fmt.Errorf("use a key: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return key{}, fmt.Errorf("use a key: %w", err)
	}
	k := key{aead: aead}
	sum := sha256.Sum256(append([]byte("answerd key id\x00"), raw...))
	copy(k.id[:], sum[:])
	return k, nil
}

// currentKeys returns the keys, after reading the file again if it has changed. If the changed file cannot be used, it
// returns the previous keys, logs the reason once, and tries again at the next call.
func (k *Keys) currentKeys(logger *slog.Logger) []key {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.path == "" {
		return k.keys
	}
	info, err := os.Stat(k.path)
	if err != nil {
		k.reportLocked(logger, err)
		return k.keys
	}
	if isSameFile(info, k.info) {
		k.reported = ""
		return k.keys
	}
	changed, err := readFile(k.path)
	if err != nil {
		// Keep k.info, so that the next call reads the file again. The file may become readable without a change of its
		// size or time.
		k.reportLocked(logger, err)
		return k.keys
	}
	logger.Info("the keys of TOKENS_KEY_FILE were read again", "keys", len(changed))
	k.info = info
	k.reported = ""
	k.keys = changed
	return k.keys
}

// reportLocked logs err, the reason why the file cannot be used, unless it is the reason that was logged last. k.mu
// must be held.
func (k *Keys) reportLocked(logger *slog.Logger, err error) {
	if err.Error() == k.reported {
		return
	}
	logger.Warn("the file of TOKENS_KEY_FILE cannot be used; the keys in use stay", "error", err, help.SecretFiles.Attr())
	k.reported = err.Error()
}

// isSameFile reports whether a and b describe the same file with the same modification time and size.
func isSameFile(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}
