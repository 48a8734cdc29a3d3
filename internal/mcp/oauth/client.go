package oauth

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/sealed"
	"answerd/internal/auth/token"
	"answerd/internal/lru"
)

// Client requests and caches the tokens for one MCP server. It may be used concurrently.
type Client struct {
	cfg       Config
	log       *slog.Logger
	server    *url.URL // without query, with a canonical host
	egress    *egress
	key       *proofKey // of tokens that need no sign-in; nil without DPoP
	nonces    proofNonces
	store     *sealed.Store
	discovery *discovery

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	users *lru.Cache[userKey, *userTokens]

	mu           sync.Mutex // protects what follows
	closed       bool
	callbacks    sync.WaitGroup // running calls of Callback
	storeErrorAt time.Time      // when an error of the store was logged last
}

// authServer is an authorization server as its metadata (RFC 8414) describes it, and what
// tokens are requested for. It is not changed once discovery has returned it.
type authServer struct {
	issuer   string   // "" where only the token endpoint is configured
	trusted  bool     // the configuration names it
	resource string   // the server that tokens are for (RFC 8707)
	wanted   []string // scopes_supported of that server (RFC 9728)

	tokenURL, authorizeURL, registerURL, revokeURL string // all but the first may be ""

	authMethods     []string // token_endpoint_auth_methods_supported; nil: not stated
	scopes          []string // scopes_supported
	returnsIssuer   bool     // its authorization responses have an iss (RFC 9207)
	acceptsMetadata bool     // the client id may be the URL of our metadata document
}

// clientIdentity is our client at one authorization server. It is sent to that one only.
type clientIdentity struct {
	id      string      // "" for a grant that needs no client, such as an assertion alone
	secret  auth.Secret // zero for a public client, and for one with a private key
	method  string      // of client authentication: methodBasic and so on
	expires time.Time   // from then on it is registered again; zero: it is configured
	scopes  []string    // that it was registered for by this process
}

// resource has what we use of a server's protected resource metadata (RFC 9728 section 2).
type resource struct {
	name   string // the resource of tokens (RFC 8707), exactly as published
	issuer string
	scopes []string // scopes_supported
}

// discovery finds the authorization server of the MCP server (RFC 9728, RFC 8414) and our
// client there. It stores both for all users, and runs one search at a time. Its lock is a channel
// and not a mutex, because a search takes seconds and those who wait must be able to give up.
type discovery struct {
	c    *Client
	turn chan struct{} // semaphore of one; its owner may use what follows

	metadataURL string                    // the resource_metadata of the challenge that led to server
	server      *authServer               // the outcome of the last search
	err         error                     // why the last search failed
	searchedAt  time.Time                 // when the last search began
	boundIssuer string                    // the issuer that the configured credentials belong to
	registered  map[string]clientIdentity // by issuer
}

// userKey identifies the user of cached tokens. Where the user's own token is exchanged, the
// key includes the hash of that whole token: one person may come with tokens of different
// rights (CVE-2026-35030).
type userKey struct {
	issuer, subject string
	token           [sha256.Size]byte
}

// userTokens has the tokens of one user, and what the next token is requested with. It is an entry of
// Client.users: acquireUser and releaseUser count who uses it, and an entry in use is not dropped.
type userTokens struct {
	c      *Client
	id     auth.Identity
	key    userKey
	source *token.CachedSource
	turn   chan struct{} // semaphore of one: an authorization is being started

	mu           sync.Mutex // protects everything below
	challenge    challenge  // the latest one
	challengedAt time.Time  // when it came; zero: never
	grant        grant      // of a sign-in: a copy of the stored one
	revision     uint64     // of the stored grant that it is a copy of
	unsaved      bool       // it is newer than the stored grant of that revision
	comparedAt   time.Time  // when it was compared with the store; zero: never
}

// grant is the latest token of a user, and how it was requested.
type grant struct {
	server  *authServer // nil: none yet
	client  clientIdentity
	scopes  []string    // that were requested
	refresh auth.Secret // the refresh token, valid at that server for that client; zero: none
	token   token.Token
	key     *proofKey // that the tokens are bound to; nil for bearer tokens
}
