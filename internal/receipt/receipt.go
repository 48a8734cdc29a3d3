// Package receipt signs statements about runs, and checks them against exports.
//
//	signer, err := receipt.ParseKeys(pem)        // RECEIPT_KEY_FILE
//	jws, err := signer.Sign(doc)                 // GET /runs/{run_id}/receipt
//	keys, err := receipt.ParseJWKS(signer.JWKS()) // /.well-known/jwks.json
//	statement, err := receipt.Verify(jws, file, keys)
//
// A receipt is a JWS (RFC 7515) in compact form, signed with Ed25519 (RFC 8037). It covers every byte of the export
// except white space between JSON tokens. No function of the package blocks.
//
// The export's hash alone proves that nothing was changed. The statement also lists the calls, the approvals and the
// child runs, so that an auditor can compare single events, and can read what was done after the export was deleted. If
// the export's hash differs, the chain shows whether the events are the signed ones. A receipt proves that this service
// had this log, not that the log is true.
package receipt

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"answerd/internal/event"
	"answerd/internal/export"
)

// Statement is the content of a receipt. Hashes are SHA-256 in hex.
type Statement struct {
	jwt.RegisteredClaims

	Run      string `json:"run_id"`
	Thread   string `json:"thread_id"`
	Agent    string `json:"agent,omitempty"`
	Caller   string `json:"caller,omitempty"` // the caller's subject
	Status   string `json:"status"`
	Export   string `json:"export_sha256"` // hash of the export without white space between tokens
	Events   int    `json:"events"`
	Chain    string `json:"event_chain"` // see Chain
	Question string `json:"question_sha256"`
	Answer   string `json:"answer_sha256"` // hash of the answer, or of the partial answer if the run did not complete

	Calls     []Call     `json:"calls,omitempty"`
	Approvals []Approval `json:"approvals,omitempty"`
	Children  []Child    `json:"children,omitempty"`
}

// Call is a tool call that has ended.
type Call struct {
	ID         string `json:"call_id"`
	Tool       string `json:"tool"`
	Server     string `json:"server,omitempty"`
	Definition string `json:"definition_sha256,omitempty"` // from the export; "" if the export does not have the tool
	Arguments  string `json:"arguments_sha256"`
	Result     string `json:"result_sha256"`    // hash of the event that ended the call
	Failed     string `json:"failed,omitempty"` // kind of failure; "" if the call succeeded
}

// Approval is a decision whether a call may be made.
type Approval struct {
	Call      string `json:"call_id"`
	Tool      string `json:"tool"`
	Approved  bool   `json:"approved"`
	By        string `json:"by,omitempty"` // subject of the person who decided; "" if it was not a person
	Arguments string `json:"arguments_sha256"`
	Version   string `json:"tool_version,omitempty"` // version of the tool's definition when the person was asked
}

// Child is a child run that a call started.
type Child struct {
	Run   string `json:"run_id"`
	Chain string `json:"event_chain"`
}

// Chain returns the last link of a hash chain over events, in hex. Each link is the SHA-256 of the previous link
// followed by the event's JSON as in the export. The link before the first event is 32 zero bytes.
func Chain(events []json.RawMessage) string {
	var link [sha256.Size]byte
	for _, eventJSON := range events {
		link = sha256.Sum256(append(link[:], eventJSON...))
	}
	return hex.EncodeToString(link[:])
}

// newStatement returns the statement about doc, which was decoded from compact, its JSON as compactJSON returns it. The
// statement's time is that of the last event rather than the current time, so that the same export always has the same
// receipt.
func newStatement(doc *export.Document, compact []byte) (*Statement, error) {
	events, err := doc.DecodeEvents()
	if err != nil {
		return nil, fmt.Errorf("read the events of an export: %w", err)
	}

	last := events[len(events)-1]
	issuedAt := jwt.NewNumericDate(time.UnixMilli(last.Time))
	statement := &Statement{
		RegisteredClaims: jwt.RegisteredClaims{Issuer: "answerd", IssuedAt: issuedAt},
		Run:              doc.Run.ID,
		Thread:           doc.Run.ThreadID,
		Agent:            doc.Run.Agent,
		Caller:           doc.Run.Subject,
		Status:           doc.Run.Status,
		Export:           export.Digest(compact),
		Events:           len(events),
		Chain:            Chain(doc.Events),
		Question:         export.Digest([]byte(doc.Request.Question)),
		Answer:           export.Digest([]byte(answerOf(last))),
	}

	statement.addCallsAndApprovals(doc, events)
	for _, c := range doc.Children {
		statement.Children = append(statement.Children, Child{Run: c.Run.ID, Chain: Chain(c.Events)})
	}
	return statement, nil
}

// addCallsAndApprovals adds the calls that have ended and the approvals that were decided, in the order of the events.
// events are the decoded events of doc. A call's arguments are those at its end, which a person or a hook may have
// changed. An approval's arguments are those that the person was shown.
func (s *Statement) addCallsAndApprovals(doc *export.Document, events []event.Event) {
	definitions := make(map[string]string) // hashes by tool name
	for _, t := range doc.Tools {
		definitions[t.Name] = t.SHA256
	}
	addCall := func(call event.Call, args, result []byte, failed string) {
		s.Calls = append(s.Calls, Call{
			ID:         call.CallID,
			Tool:       call.Tool,
			Server:     call.Server,
			Definition: definitions[call.Tool],
			Arguments:  export.Digest(args),
			Result:     export.Digest(result),
			Failed:     failed,
		})
	}
	questions := make(map[string]event.ApprovalRequired) // by interrupt id
	for i, e := range events {
		switch body := e.Body.(type) {
		case event.ToolResult:
			const succeeded = ""
			addCall(body.Call, body.Args, doc.Events[i], succeeded)
		case event.ToolError:
			args := []byte(body.Args)
			if body.Args == nil {
				args = []byte(body.ArgsText)
			}
			addCall(body.Call, args, doc.Events[i], body.Kind)
		case event.ApprovalRequired:
			questions[body.InterruptID] = body
		case event.ApprovalResolved:
			question := questions[body.InterruptID]
			s.Approvals = append(s.Approvals, Approval{
				Call:      body.CallID,
				Tool:      body.Tool,
				Approved:  body.Approved,
				By:        body.By,
				Arguments: export.Digest(question.Args),
				Version:   question.ToolVersion,
			})
		}
	}
}

// answerOf returns the answer or partial answer in a run's terminal event. It returns "" for any other event.
func answerOf(e event.Event) string {
	switch body := e.Body.(type) {
	case event.FinalAnswer:
		return body.Answer
	case event.RunError:
		return body.PartialAnswer
	case event.Cancelled:
		return body.PartialAnswer
	}
	return ""
}

// Sign returns the receipt for an export, as a JWS in compact form. The same export always has the same receipt.
func (s *Signer) Sign(doc *export.Document) (string, error) {
	data, err := doc.Encode()
	if err != nil {
		return "", err
	}
	compact, err := compactJSON(data)
	if err != nil {
		return "", err
	}
	exported, err := export.Decode(compact) // unlike doc, it has no white space in the events
	if err != nil {
		return "", err
	}
	statement, err := newStatement(exported, compact)
	if err != nil {
		return "", err
	}
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, statement)
	token.Header["kid"] = s.keys[0].ID
	token.Header["typ"] = "answerd-receipt+jws"
	signed, err := token.SignedString(s.private)
	if err != nil {
		return "", fmt.Errorf("sign a receipt: %w", err)
	}
	return signed, nil
}

// compactJSON returns an export's JSON without white space between tokens.
func compactJSON(data []byte) ([]byte, error) {
	var out bytes.Buffer
	if err := json.Compact(&out, data); err != nil {
		return nil, fmt.Errorf("read an export: %w", err)
	}
	return out.Bytes(), nil
}

// Errors of Verify.
var (
	// ErrSignature means that the receipt is not signed by one of the keys.
	ErrSignature = errors.New("the receipt is not signed by one of the keys")
	// ErrChanged means that the receipt is about another export.
	ErrChanged = errors.New("the export is not the one that the receipt is about")
)

// Verify checks the signature of a receipt, and compares the export data with its statement. The error wraps
// ErrSignature or ErrChanged. With ErrChanged, Verify also returns the statement, whose signature is valid, to show
// what was signed. It accepts only the algorithm EdDSA, and only the key with the receipt's kid.
func Verify(jws string, data []byte, keys []Key) (*Statement, error) {
	var statement Statement
	keyOf := func(t *jwt.Token) (any, error) {
		for _, k := range keys {
			if k.ID == t.Header["kid"] {
				return k.Public, nil
			}
		}
		return nil, errors.New("its kid is not among the keys")
	}
	validMethods := jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()})
	if _, err := jwt.ParseWithClaims(strings.TrimSpace(jws), &statement, keyOf, validMethods); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSignature, err)
	}
	compact, err := compactJSON(data)
	if err != nil {
		return &statement, fmt.Errorf("%w: %w", ErrChanged, err)
	}
	if export.Digest(compact) != statement.Export {
		return &statement, statement.changedError(data)
	}
	return &statement, nil
}

// changedError returns an error that wraps ErrChanged and says how the export data, whose hash is not the one in s,
// differs.
func (s *Statement) changedError(data []byte) error {
	doc, err := export.Decode(data)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrChanged, err)
	case doc.Run.ID != s.Run:
		return fmt.Errorf("%w: it is about the run %s", ErrChanged, s.Run)
	case Chain(doc.Events) == s.Chain:
		return fmt.Errorf("%w: the events are the signed ones, and something else differs", ErrChanged)
	}
	return fmt.Errorf("%w: the events differ", ErrChanged)
}

// Key is a public key.
type Key struct {
	ID     string // the kid; a Signer uses the key's thumbprint (RFC 7638)
	Public ed25519.PublicKey
}

// Signer signs receipts with one key. It publishes this key and the keys that were used before, so that receipts can be
// verified after the key was replaced. Its methods may be called concurrently.
type Signer struct {
	private ed25519.PrivateKey // belongs to keys[0]
	keys    []Key
}

// jwk is a key as JSON (RFC 7517, RFC 8037).
type jwk struct {
	Type  string `json:"kty"`
	Curve string `json:"crv"`
	X     string `json:"x"`           // the public key, in base64url
	D     string `json:"d,omitempty"` // the private key, in base64url
	ID    string `json:"kid,omitempty"`
	Use   string `json:"use,omitempty"`
	Alg   string `json:"alg,omitempty"`
}

// ParseKeys returns the Signer for a file of private Ed25519 keys: PEM blocks of PKCS #8, a JWK, or a JWK Set. The
// first key signs, and the public keys of all of them are published. To replace the key, put the new one before the old
// one.
func ParseKeys(data []byte) (*Signer, error) {
	parse := parsePEMKeys
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		parse = parsePrivateJWKs
	}
	keys, err := parse(data)
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, errors.New("it has no private key: neither PEM (PKCS #8) nor a JWK")
	}
	s := &Signer{private: keys[0]}
	for _, private := range keys {
		public := private.Public().(ed25519.PublicKey) // Public is documented to return this type
		s.keys = append(s.keys, Key{ID: thumbprint(public), Public: public})
	}
	return s, nil
}

// parsePrivateJWKs returns the private keys in a JWK or a JWK Set. It returns an error if an Ed25519 key has no private
// part.
func parsePrivateJWKs(data []byte) (keys []ed25519.PrivateKey, _ error) {
	jwks, err := parseJWKs(data)
	if err != nil {
		return nil, err
	}
	for _, k := range jwks {
		seed, err := base64.RawURLEncoding.DecodeString(k.D)
		if err != nil || len(seed) != ed25519.SeedSize {
			return nil, errors.New("a JWK has no private key of Ed25519")
		}
		keys = append(keys, ed25519.NewKeyFromSeed(seed))
	}
	return keys, nil
}

// parsePEMKeys returns the Ed25519 private keys in the PEM blocks of data. It returns an error if a block is not such a
// key.
func parsePEMKeys(data []byte) (keys []ed25519.PrivateKey, _ error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		key, ok := parsed.(ed25519.PrivateKey)
		if err != nil || !ok {
			return nil, errors.New("a PEM block is not a PKCS #8 key of Ed25519")
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// parseJWKs parses a JWK or a JWK Set and returns its Ed25519 keys. It skips other keys, as RFC 7517 section 5
// recommends for types that the reader does not understand.
func parseJWKs(data []byte) ([]jwk, error) {
	var set struct {
		jwk
		Keys []jwk `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("read a JWK: %w", err)
	}
	if set.Keys == nil { // it is a single JWK
		set.Keys = []jwk{set.jwk}
	}
	isOtherKey := func(k jwk) bool { return k.Type != "OKP" || k.Curve != "Ed25519" }
	return slices.DeleteFunc(set.Keys, isOtherKey), nil
}

// thumbprint returns a key's thumbprint (RFC 7638).
func thumbprint(key ed25519.PublicKey) string {
	sum := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + base64.RawURLEncoding.EncodeToString(key) + `"}`))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// JWKS returns the public keys as a JWK Set.
func (s *Signer) JWKS() []byte {
	var set struct {
		Keys []jwk `json:"keys"`
	}
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
	data, _ := json.Marshal(set) // cannot fail for strings
	return data
}

// ParseJWKS returns the Ed25519 public keys in a JWK Set or a JWK. If a key has no kid, its ID is its thumbprint.
func ParseJWKS(data []byte) ([]Key, error) {
	jwks, err := parseJWKs(data)
	if err != nil {
		return nil, err
	}
	var keys []Key
	for _, k := range jwks {
		x, err := base64.RawURLEncoding.DecodeString(k.X)
		if err != nil || len(x) != ed25519.PublicKeySize {
			return nil, errors.New("a JWK has no public key of Ed25519")
		}
		keys = append(keys, Key{ID: cmp.Or(k.ID, thumbprint(x)), Public: x})
	}
	return keys, nil
}
