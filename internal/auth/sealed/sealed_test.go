package sealed_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"answerd/internal/auth/sealed"
	"answerd/internal/values"
)

// recordingStore is a store whose values the tests read.
type recordingStore struct {
	values.Memory
	all map[values.Key][]byte
}

func (r *recordingStore) SetValue(ctx context.Context, key values.Key, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	n, err := r.Memory.SetValue(ctx, key, value, revision, ttl)
	if n > 0 {
		r.all[key] = value
	}
	return n, err
}

func newRecordingStore() *recordingStore { return &recordingStore{all: map[values.Key][]byte{}} }

var (
	oldKey = bytes.Repeat([]byte{1}, 32)
	newKey = bytes.Repeat([]byte{2}, 32)
)

func keyFile(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func openStore(t *testing.T, path string, store values.Store, log io.Writer) *sealed.Store {
	t.Helper()
	keys, err := sealed.ReadKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	return sealed.New(keys, store, slog.New(slog.NewTextHandler(log, nil)))
}

func saveSecret(t *testing.T, s *sealed.Store, data string, revision uint64, name ...string) uint64 {
	t.Helper()
	next, err := s.Save(t.Context(), []byte(data), revision, time.Hour, name...)
	if err != nil || next == 0 {
		t.Fatalf("Save(%q) = %d, %v, want a revision", name, next, err)
	}
	return next
}

func checkSecret(t *testing.T, s *sealed.Store, want string, name ...string) {
	t.Helper()
	data, _, err := s.Load(t.Context(), name...)
	if err != nil || string(data) != want {
		t.Errorf("Load(%q) = %q, %v, want %q", name, data, err, want)
	}
}

func TestSecretIsStoredEncryptedAndBoundToItsName(t *testing.T) {
	store := newRecordingStore()
	s := openStore(t, keyFile(t, "# first", "", base64.StdEncoding.EncodeToString(newKey)), store, io.Discard)
	ann, bob := []string{"grant", "https://crm", "ann"}, []string{"grant", "https://crm", "bob"}
	saveSecret(t, s, "canary", 0, ann...)
	checkSecret(t, s, "canary", ann...)
	checkSecret(t, s, "", "grant", "https://crma", "nn")

	for key, value := range store.all {
		if bytes.Contains(value, []byte("canary")) || strings.Contains(key.String(), "ann") {
			t.Errorf("the store has %q: %q, want neither secret nor name", key, value)
		}
	}

	// Someone who can write to the store gives ann's secret to bob.
	revision := saveSecret(t, s, "bob's", 0, bob...)
	if _, err := store.SetValue(t.Context(), values.NewKey(bob...), store.all[values.NewKey(ann...)], revision, time.Hour); err != nil {
		t.Fatal(err)
	}
	checkSecret(t, s, "", bob...)
	changed := bytes.Clone(store.all[values.NewKey(ann...)])
	changed[len(changed)-1] ^= 1
	if _, err := store.SetValue(t.Context(), values.NewKey("changed"), changed, 0, time.Hour); err != nil {
		t.Fatal(err)
	}
	checkSecret(t, s, "", "changed")
}

func TestSaveRefusesAnOutdatedRevision(t *testing.T) {
	s, err := sealed.NewInMemory(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	first := saveSecret(t, s, "a", 0, "k")
	if n, err := s.Save(t.Context(), []byte("b"), 0, time.Hour, "k"); n != 0 || err != nil {
		t.Errorf("Save at an outdated revision = %d, %v, want 0", n, err)
	}
	checkSecret(t, s, "a", "k")
	if n, err := s.Save(t.Context(), nil, first, time.Hour, "k"); n == 0 || err != nil {
		t.Errorf("Save of nothing = %d, %v, want a revision", n, err)
	}
	checkSecret(t, s, "", "k")
}

// TestKeyIsRotated changes the file while it is used: its first key encrypts, and all decrypt.
func TestKeyIsRotated(t *testing.T) {
	store, log := newRecordingStore(), &bytes.Buffer{}
	oldLine, newLine := hex.EncodeToString(oldKey), base64.RawURLEncoding.EncodeToString(newKey)
	path := keyFile(t, oldLine)
	s := openStore(t, path, store, log)
	first := saveSecret(t, s, "a", 0, "k")

	rewrite := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	rewrite(newLine + "\n" + oldLine + "\n")
	checkSecret(t, s, "a", "k")
	saveSecret(t, s, "b", first, "k")
	checkSecret(t, openStore(t, keyFile(t, newLine), store, io.Discard), "b", "k")
	without := &bytes.Buffer{}

	behind := openStore(t, keyFile(t, oldLine), store, without)
	for range 3 {
		checkSecret(t, behind, "", "k")
	}

	if n := strings.Count(without.String(), "cannot be used"); n != 1 {
		t.Errorf("%d lines say that a secret cannot be decrypted, want 1: %s", n, without)
	}
	rewrite("canary, which is not a key and is longer than those that stay in use because of that: " + newLine + newLine)

	for range 3 {
		checkSecret(t, s, "b", "k")
	}

	if n := strings.Count(log.String(), "the keys in use stay"); n != 1 || strings.Contains(log.String(), "canary") {
		t.Errorf("%d lines say that the keys stay, want 1 without what the file has: %s", n, log)
	}
}

// TestMissingKeyFileIsReportedOnce removes the file while it is used, and makes it unreadable. Each way is
// one line, however many secrets are read meanwhile, and the file is used again as soon as that works.
func TestMissingKeyFileIsReportedOnce(t *testing.T) {
	log := &bytes.Buffer{}
	line := hex.EncodeToString(oldKey) + "\n"
	path := keyFile(t, line)
	s := openStore(t, path, newRecordingStore(), log)
	saveSecret(t, s, "a", 0, "k")

	checkLogCount := func(text string, want int) {
		t.Helper()
		log.Reset()
		for range 3 {
			checkSecret(t, s, "a", "k")
		}
		if got := strings.Count(log.String(), text); got != want {
			t.Errorf("%d lines with %q, want %d: %s", got, text, want, log)
		}
	}

	away := path + ".away"
	for range 2 {
		if err := os.Rename(path, away); err != nil {
			t.Fatal(err)
		}
		checkLogCount("the keys in use stay", 1)
		if err := os.Rename(away, path); err != nil {
			t.Fatal(err)
		}
		checkLogCount("the keys", 0) // it is the same file
	}

	if os.Geteuid() == 0 {
		return // root can read every file
	}
	if err := errors.Join(os.WriteFile(path, []byte("# rotated\n"+line), 0o600), os.Chmod(path, 0)); err != nil {
		t.Fatal(err)
	}
	checkLogCount("the keys in use stay", 1)
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	checkLogCount("read again", 1)
}

func TestKeysOfABadFileAreRefusedWithoutQuotingIt(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "\n# nothing\n", "short": hex.EncodeToString(newKey[:16]), "long": hex.EncodeToString(newKey) + "00", "text": "canary-canary-canary",
		"second line": hex.EncodeToString(newKey) + "\ncanary", "large": strings.Repeat("#\n", 40<<10),
	} {
		if _, err := sealed.ReadKeys(keyFile(t, text)); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: ReadKeys = %v, want an error that quotes nothing", name, err)
		}
	}
	if _, err := sealed.ReadKeys(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("ReadKeys of a missing file = nil, want an error")
	}
}
