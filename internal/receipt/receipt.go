// Package receipt signs statements about runs, and checks them against exports.
//
//	signer, err := receipt.ParseKeys(pem)        // RECEIPT_KEY_FILE
//	jws, err := signer.Sign(doc)                 // GET /runs/{run_id}/receipt
//	keys, err := receipt.ParseJWKS(signer.JWKS()) // /.well-known/jwks.json
//	statement, err := receipt.Verify(jws, file, keys)
//
// A receipt is a JWS (RFC 7515) in the compact form, signed with Ed25519 (RFC 8037). It covers every byte
// of the export that is not white space between JSON tokens. Nothing here blocks.
//
// The hash of the export alone proves that nothing was changed. The statement repeats the calls, the approvals and
// the children, so that an auditor can read what was done from the receipt when the export is no longer kept, and
// can compare single events. The chain of events tells, if the hash differs, whether the events are the signed
// ones. A receipt says that this service had this log, not that the log is true.
package receipt

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"answerd/internal/event"
	"answerd/internal/export"
)

// Statement is what a receipt says. Hashes are SHA-256 in hex.
type Statement struct {
	jwt.RegisteredClaims

	Run      string `json:"run_id"`
	Thread   string `json:"thread_id"`
	Agent    string `json:"agent,omitempty"`
	Caller   string `json:"caller,omitempty"` // the subject who asked
	Status   string `json:"status"`
	Export   string `json:"export_sha256"` // of the export without white space between tokens
	Events   int    `json:"events"`
	Chain    string `json:"event_chain"` // see Chain
	Question string `json:"question_sha256"`
	Answer   string `json:"answer_sha256"` // of the answer's text; of the partial one if the run did not complete

	Calls     []Call     `json:"calls,omitempty"`
	Approvals []Approval `json:"approvals,omitempty"`
	Children  []Child    `json:"children,omitempty"`
}

// Call is a tool call that ended.
type Call struct {
	ID         string `json:"call_id"`
	Tool       string `json:"tool"`
	Server     string `json:"server,omitempty"`
	Definition string `json:"definition_sha256,omitempty"` // as in the export; "" of an unknown tool
	Arguments  string `json:"arguments_sha256"`
	Result     string `json:"result_sha256"`    // of the event that ended the call
	Failed     string `json:"failed,omitempty"` // the kind of the failure; "" if the call succeeded
}

// Approval is a decision about a call.
type Approval struct {
	Call      string `json:"call_id"`
	Tool      string `json:"tool"`
	Approved  bool   `json:"approved"`
	By        string `json:"by,omitempty"` // the subject who decided; "" if nobody did
	Arguments string `json:"arguments_sha256"`
	Version   string `json:"tool_version,omitempty"` // of the tool's definition that the person was asked about
}

// Child is a run that a call started.
type Child struct {
	Run   string `json:"run_id"`
	Chain string `json:"event_chain"`
}

// Chain returns the last link of the hash chain over events: each link is the SHA-256 of the one before, which
// is 32 zero bytes at first, followed by the event's JSON as in the export.
func Chain(events []json.RawMessage) string {
	var link [sha256.Size]byte
	for _, e := range events {
		link = sha256.Sum256(append(link[:], e...))
	}
	return hex.EncodeToString(link[:])
}

// newStatement returns the statement about an export, which has the canonical form data. Its time is that of the
// last event and not the present, so that the same export always has the same receipt. The arguments of a call
// are those that it ended with, which a person or a hook may have changed; those of an approval are what was shown.
// The document has at least one event, as export.Decode and the recorder make sure.
func newStatement(doc *export.Document, data []byte) (*Statement, error) {
	events, err := doc.DecodeEvents()
	if err != nil {
		return nil, fmt.Errorf("read the events of an export: %w", err)
	}

	last := events[len(events)-1]
	statement := &Statement{
		RegisteredClaims: jwt.RegisteredClaims{Issuer: "answerd", IssuedAt: jwt.NewNumericDate(timeOf(last))},
		Run:              doc.Run.ID,
		Thread:           doc.Run.ThreadID,
		Agent:            doc.Run.Agent,
		Caller:           doc.Run.Subject,
		Status:           doc.Run.Status,
		Export:           export.Digest(data),
		Events:           len(events),
		Chain:            Chain(doc.Events),
		Question:         export.Digest([]byte(doc.Request.Question)),
		Answer:           export.Digest([]byte(answerOf(last))),
	}

	hashes := make(map[string]string)
	for _, t := range doc.Tools {
		hashes[t.Name] = t.SHA256
	}

	addCall := func(i int, call event.Call, args []byte, failed string) {
		statement.Calls = append(statement.Calls, Call{
			ID:         call.CallID,
			Tool:       call.Tool,
			Server:     call.Server,
			Definition: hashes[call.Tool],
			Arguments:  export.Digest(args),
			Result:     export.Digest(doc.Events[i]),
			Failed:     failed,
		})
	}
	asked := make(map[string]event.ApprovalRequired)
	for i, e := range events {
		switch body := e.Body.(type) {
		case event.ToolResult:
			addCall(i, body.Call, body.Args, "")
		case event.ToolError:
			args := []byte(body.Args)
			if body.Args == nil {
				args = []byte(body.ArgsText)
			}
			addCall(i, body.Call, args, body.Kind)
		case event.ApprovalRequired:
			asked[body.InterruptID] = body
		case event.ApprovalResolved:
			question := asked[body.InterruptID]
			statement.Approvals = append(statement.Approvals, Approval{
				Call:      body.CallID,
				Tool:      body.Tool,
				Approved:  body.Approved,
				By:        body.By,
				Arguments: export.Digest(question.Args),
				Version:   question.ToolVersion,
			})
		}
	}

	for _, c := range doc.Children {
		statement.Children = append(statement.Children, Child{c.Run.ID, Chain(c.Events)})
	}
	return statement, nil
}

// timeOf returns when the log stored an event.
func timeOf(e event.Event) time.Time { return time.UnixMilli(e.Time) }

// answerOf returns the text that a run ended with: its answer, or what there was of it.
func answerOf(e event.Event) string {
	switch b := e.Body.(type) {
	case event.FinalAnswer:
		return b.Answer
	case event.RunError:
		return b.PartialAnswer
	case event.Cancelled:
		return b.PartialAnswer
	}
	return ""
}

// Sign returns the receipt of an export. The same export has the same receipt.
func (s *Signer) Sign(doc *export.Document) (string, error) {
	data, err := doc.Encode()
	if err != nil {
		return "", err
	}
	if data, err = canonical(data); err != nil {
		return "", err
	}
	statement, err := newStatement(doc, data)
	if err != nil {
		return "", err
	}
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, statement)
	token.Header["kid"], token.Header["typ"] = s.keys[0].ID, "answerd-receipt+jws"
	signed, err := token.SignedString(s.private)
	if err != nil {
		return "", fmt.Errorf("sign a receipt: %w", err)
	}
	return signed, nil
}

// canonical returns JSON without white space between tokens.
func canonical(data []byte) ([]byte, error) {
	var out bytes.Buffer
	if err := json.Compact(&out, data); err != nil {
		return nil, fmt.Errorf("read an export: %w", err)
	}
	return out.Bytes(), nil
}

// Errors of Verify.
var (
	// ErrSignature: the receipt is not signed by one of the keys.
	ErrSignature = errors.New("the receipt is not signed by one of the keys")
	// ErrChanged: the export is not the one that the receipt is about.
	ErrChanged = errors.New("the export is not the one that the receipt is about")
)

// Verify checks a receipt, and an export against it. Errors: ErrSignature, ErrChanged. With ErrChanged it also
// returns the statement, whose signature is valid, so that it can be shown what was signed. Only the algorithm
// EdDSA is accepted, whatever the header of the receipt says, and only the key that its kid names is tried.
func Verify(jws string, data []byte, keys []Key) (*Statement, error) {
	var statement Statement
	_, err := jwt.ParseWithClaims(string(bytes.TrimSpace([]byte(jws))), &statement, func(t *jwt.Token) (any, error) {
		for _, k := range keys {
			if k.ID == t.Header["kid"] {
				return k.Public, nil
			}
		}
		return nil, errors.New("its kid is not among the keys")
	}, jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSignature, err)
	}
	compact, err := canonical(data)
	if err != nil {
		return &statement, fmt.Errorf("%w: %w", ErrChanged, err)
	}
	if export.Digest(compact) == statement.Export {
		return &statement, nil
	}
	doc, err := export.Decode(data)
	switch {
	case err != nil:
		return &statement, fmt.Errorf("%w: %w", ErrChanged, err)
	case doc.Run.ID != statement.Run:
		return &statement, fmt.Errorf("%w: it is about the run %s", ErrChanged, statement.Run)
	case Chain(doc.Events) == statement.Chain:
		return &statement, fmt.Errorf("%w: the events are the signed ones, and something else differs", ErrChanged)
	}
	return &statement, fmt.Errorf("%w: the events differ", ErrChanged)
}

// Key is a public key.
type Key struct {
	ID     string // its thumbprint (RFC 7638)
	Public ed25519.PublicKey
}

// Signer signs receipts with one key, and publishes others that it signed with before. So receipts stay valid when
// the key is replaced: the new one is put before the old one. Its methods may be called concurrently.
type Signer struct {
	private ed25519.PrivateKey
	keys    []Key // the first one signs
}

// jwk is a key as JSON (RFC 7517, RFC 8037).
type jwk struct {
	Type  string `json:"kty"`
	Curve string `json:"crv"`
	X     string `json:"x"`
	D     string `json:"d,omitempty"`
	ID    string `json:"kid,omitempty"`
	Use   string `json:"use,omitempty"`
	Alg   string `json:"alg,omitempty"`
}

// ParseKeys reads private keys: PEM blocks of PKCS #8, a JWK, or a JWK Set. The first key signs; the public
// keys of all are published.
func ParseKeys(data []byte) (*Signer, error) {
	var all []ed25519.PrivateKey
	if trimmed := bytes.TrimSpace(data); bytes.HasPrefix(trimmed, []byte("{")) {
		found, err := parseJWKs(trimmed)
		if err != nil {
			return nil, err
		}
		for _, k := range found {
			seed, err := base64.RawURLEncoding.DecodeString(k.D)
			if err != nil || len(seed) != ed25519.SeedSize {
				return nil, errors.New("a JWK has no private key of Ed25519")
			}
			all = append(all, ed25519.NewKeyFromSeed(seed))
		}
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		key, ok := parsed.(ed25519.PrivateKey)
		if err != nil || !ok {
			return nil, errors.New("a PEM block is not a PKCS #8 key of Ed25519")
		}
		all = append(all, key)
	}
	if len(all) == 0 {
		return nil, errors.New("it has no private key: neither PEM (PKCS #8) nor a JWK")
	}
	s := &Signer{private: all[0]}
	for _, k := range all {
		public := k.Public().(ed25519.PublicKey) // the type that its documentation promises
		s.keys = append(s.keys, Key{thumbprint(public), public})
	}
	return s, nil
}

// parseJWKs reads a JWK or a JWK Set, and returns the keys of Ed25519. Other keys are skipped, as RFC 7517, section 5,
// asks for keys of a type that the reader does not understand.
func parseJWKs(data []byte) ([]jwk, error) {
	var set struct {
		jwk
		Keys []jwk `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("read a JWK: %w", err)
	}
	if set.Keys == nil {
		set.Keys = []jwk{set.jwk}
	}
	var out []jwk
	for _, k := range set.Keys {
		if k.Type == "OKP" && k.Curve == "Ed25519" {
			out = append(out, k)
		}
	}
	return out, nil
}

// thumbprint returns the thumbprint of a key (RFC 7638).
func thumbprint(key ed25519.PublicKey) string {
	sum := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + base64.RawURLEncoding.EncodeToString(key) + `"}`))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// JWKS returns the public keys as a JWK Set.
func (s *Signer) JWKS() []byte {
	set := struct {
		Keys []jwk `json:"keys"`
	}{}
	for _, k := range s.keys {
		set.Keys = append(set.Keys, jwk{
			Type:  "OKP",
			Curve: "Ed25519",
			X:     base64.RawURLEncoding.EncodeToString(k.Public),
			ID:    k.ID,
			Use:   "sig",
			Alg:   "EdDSA",
		})
	}
	data, _ := json.Marshal(set) // strings always marshal
	return data
}

// ParseJWKS reads a JWK Set of public keys.
func ParseJWKS(data []byte) ([]Key, error) {
	found, err := parseJWKs(data)
	if err != nil {
		return nil, err
	}
	var out []Key
	for _, k := range found {
		x, err := base64.RawURLEncoding.DecodeString(k.X)
		if err != nil || len(x) != ed25519.PublicKeySize {
			return nil, errors.New("a JWK has no public key of Ed25519")
		}
		id := k.ID
		if id == "" {
			id = thumbprint(x)
		}
		out = append(out, Key{id, x})
	}
	return out, nil
}
