package receipt_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"strings"
	"testing"

	"answerd/internal/event"
	"answerd/internal/export"
	"answerd/internal/receipt"
)

// newKey returns a private key as PEM.
func newKey(t *testing.T) []byte {
	t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func newSigner(t *testing.T, keys ...[]byte) *receipt.Signer {
	t.Helper()
	s, err := receipt.ParseKeys(bytes.Join(keys, nil))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func publicKeys(t *testing.T, s *receipt.Signer) []receipt.Key {
	t.Helper()
	keys, err := receipt.ParseJWKS(s.JWKS())
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// newExport returns the export of a run with an approved call.
func newExport(t *testing.T) (*export.Document, []byte) {
	t.Helper()
	doc := &export.Document{
		Version: export.Version, Run: export.Run{ID: "run_1", ThreadID: "thr_1", Subject: "ada", Status: "completed"},
		Request: export.Request{Question: "Who?", Model: "m"}, Messages: []export.Message{{Role: "user", Text: "Who? \u00e9"}},
		Tools: []export.Tool{{Name: "delete", Server: "files", SHA256: strings.Repeat("a", 64)}},
	}
	call := event.Call{CallID: "call_1", Tool: "delete", Server: "files"}
	for i, b := range []event.Body{
		event.Start{Question: "Who?", Model: "m"},
		event.ApprovalRequired{Call: call, InterruptID: "int_1", Args: json.RawMessage(`{"path":"a"}`), ToolVersion: "v"},
		event.ApprovalResolved{Call: call, InterruptID: "int_1", Approved: true, By: "ada"},
		event.ToolResult{Call: call, Args: json.RawMessage(`{"path":"a"}`), Payload: json.RawMessage(`"gone"`)},
		event.FinalAnswer{Answer: "Ada."},
	} {
		e, err := event.Encode("run_1", int64(i+1), 1_795_000_000_000, b)
		if err != nil {
			t.Fatal(err)
		}
		doc.Events = append(doc.Events, e.JSON)
	}
	data, err := doc.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return doc, data
}

func TestReceiptSaysWhatTheRunDid(t *testing.T) {
	doc, data := newExport(t)
	s := newSigner(t, newKey(t))
	signed, err := s.Sign(doc)
	if err != nil {
		t.Fatal(err)
	}

	got, err := receipt.Verify(signed+"\n", data, publicKeys(t, s))
	if err != nil {
		t.Fatal(err)
	}

	if got.Run != "run_1" || got.Caller != "ada" || got.Events != 5 || got.Answer != export.Digest([]byte("Ada.")) || got.Question != export.Digest([]byte("Who?")) {
		t.Errorf("statement = %+v, want the run, its caller, 5 events, and the hashes of question and answer", got)
	}
	if len(got.Calls) != 1 || got.Calls[0].Definition != doc.Tools[0].SHA256 || got.Calls[0].Arguments != export.Digest([]byte(`{"path":"a"}`)) {
		t.Errorf("calls = %+v, want one with the hashes of its definition and its arguments", got.Calls)
	}
	if len(got.Approvals) != 1 || !got.Approvals[0].Approved || got.Approvals[0].By != "ada" || got.Approvals[0].Version != "v" {
		t.Errorf("approvals = %+v, want that of ada", got.Approvals)
	}
	again, err := s.Sign(doc)
	if err != nil || again != signed {
		t.Errorf("the second receipt = %q, %v, want the same", again, err)
	}

	var indented bytes.Buffer
	if err := json.Indent(&indented, data, "", "  "); err != nil {
		t.Fatal(err)
	}
	if _, err := receipt.Verify(signed, indented.Bytes(), publicKeys(t, s)); err != nil {
		t.Errorf("an indented export: %v, want that only white space differs", err)
	}
}

// The log keeps the white space that a model writes in arguments, and an export has none. A receipt is about the export.
func TestReceiptHasTheHashesOfTheExportedEvents(t *testing.T) {
	doc, _ := newExport(t)
	for i, line := range doc.Events {
		doc.Events[i] = bytes.ReplaceAll(line, []byte(`{"path":"a"}`), []byte(`{"path": "a"}`))
	}
	data, err := doc.Encode()
	if err != nil {
		t.Fatal(err)
	}
	exported, err := export.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	s := newSigner(t, newKey(t))
	signed, err := s.Sign(doc)
	if err != nil {
		t.Fatal(err)
	}

	got, err := receipt.Verify(signed, data, publicKeys(t, s))
	if err != nil {
		t.Fatal(err)
	}
	if want := receipt.Chain(exported.Events); got.Chain != want {
		t.Errorf("chain = %s, want %s, that of the exported events", got.Chain, want)
	}
	if want := export.Digest(exported.Events[3]); got.Calls[0].Result != want {
		t.Errorf("result_sha256 = %s, want %s, that of the exported event", got.Calls[0].Result, want)
	}
	if want := export.Digest([]byte(`{"path":"a"}`)); got.Calls[0].Arguments != want || got.Approvals[0].Arguments != want {
		t.Errorf("arguments_sha256 = %s and %s, want %s", got.Calls[0].Arguments, got.Approvals[0].Arguments, want)
	}
	changed := bytes.Replace(data, []byte("thr_1"), []byte("thr_2"), 1)
	if _, err := receipt.Verify(signed, changed, publicKeys(t, s)); err == nil || !strings.Contains(err.Error(), "the events are the signed ones") {
		t.Errorf("an export with another thread_id: %v, want that the events are the signed ones", err)
	}
}

// Every byte of an export that is not white space between tokens is covered: 7 other values are tried for each
// byte of a short export.
func TestEveryChangedByteIsFound(t *testing.T) {
	doc, data := newExport(t)
	s := newSigner(t, newKey(t))
	signed, err := s.Sign(doc)
	if err != nil {
		t.Fatal(err)
	}
	keys := publicKeys(t, s)
	data = bytes.TrimSpace(data)

	for i := range data {
		changed := bytes.Clone(data)
		for flip := 1; flip < 256; flip += 37 {
			changed[i] = data[i] ^ byte(flip)
			if _, err := receipt.Verify(signed, changed, keys); !errors.Is(err, receipt.ErrChanged) {
				t.Fatalf("byte %d, %q instead of %q: %v, want %v", i, changed[i], data[i], err, receipt.ErrChanged)
			}
		}
	}

	for i := range signed {
		changed := []byte(signed)
		changed[i] ^= 1
		if _, err := receipt.Verify(string(changed), data, keys); err == nil && i < len(signed)-1 { // the last character has unused bits
			t.Fatalf("byte %d of the receipt changed: no error, want one", i)
		}
	}
}

func TestKeysAreRotated(t *testing.T) {
	doc, data := newExport(t)
	before, now := newKey(t), newKey(t)
	signed, err := newSigner(t, before).Sign(doc)
	if err != nil {
		t.Fatal(err)
	}
	both := newSigner(t, now, before)
	if _, err := receipt.Verify(signed, data, publicKeys(t, both)); err != nil {
		t.Errorf("a receipt of the key before: %v, want no error", err)
	}
	if _, err := receipt.Verify(signed, data, publicKeys(t, newSigner(t, now))); !errors.Is(err, receipt.ErrSignature) {
		t.Errorf("a receipt of a key that is not published: %v, want %v", err, receipt.ErrSignature)
	}
	if len(publicKeys(t, both)) != 2 {
		t.Errorf("keys = %d, want 2", len(publicKeys(t, both)))
	}
	jwk := `{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo","d":"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"}`

	// RFC 8037, appendix A.3, has this thumbprint.
	if keys := publicKeys(t, newSigner(t, []byte(jwk))); keys[0].ID != "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k" {
		t.Errorf("kid = %s, want the thumbprint of RFC 8037", keys[0].ID)
	}

	for _, bad := range []string{"", "{", "{}", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"} {
		if _, err := receipt.ParseKeys([]byte(bad)); err == nil {
			t.Errorf("ParseKeys(%q): no error, want one", bad)
		}
	}
}
