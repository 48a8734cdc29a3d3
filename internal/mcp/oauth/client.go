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
	server    *url.URL // the MCP server, without query and with a canonical host
	egress    *egress
	key       *proofKey // of all tokens that need no sign-in; nil without DPoP
	nonces    proofNonces
	store     *sealed.Store // Config.Store, or one in memory
	discovery *discovery

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	users *lru.Cache[userKey, *userTokens]

	mu           sync.Mutex // protects the fields below
	closed       bool
	callbacks    sync.WaitGroup // running calls of Callback
	storeErrorAt time.Time      // when an error of the store was logged last
}

// authServer is an authorization server as its metadata (RFC 8414) describes it, with the resource that tokens are
// requested for. It is not changed once discovery has returned it.
type authServer struct {
	issuer         string   // "" if only the token endpoint is configured
	configured     bool     // the configuration names the issuer or the token endpoint, and not the MCP server
	resource       string   // the resource of the tokens (RFC 8707): the MCP server
	resourceScopes []string // scopes_supported in the metadata of the resource (RFC 9728)

	tokenURL, authorizeURL, registerURL, revokeURL string // all but tokenURL may be ""

	authMethods     []string // token_endpoint_auth_methods_supported; nil: not stated
	scopes          []string // scopes_supported
	returnsIssuer   bool     // its authorization responses have an iss (RFC 9207)
	acceptsMetadata bool     // the client id may be the URL of our metadata document
}

// clientIdentity is our client at one authorization server. It is sent to no other authorization server.
type clientIdentity struct {
	id      string      // "" for a grant that needs no client, such as an assertion alone
	secret  auth.Secret // zero for a public client, and for one with a private key
	method  string      // of client authentication: methodBasic and so on
	expires time.Time   // when a registered client must be registered again; zero: the client was not registered
	scopes  []string    // that this process has registered it for
}

// resource has what we use of a server's protected resource metadata (RFC 9728 section 2).
type resource struct {
	name   string   // the resource of tokens (RFC 8707), exactly as published
	issuer string   // the first of authorization_servers
	scopes []string // scopes_supported
}

// discovery finds the authorization server of the MCP server (RFC 9728, RFC 8414) and our client there. It stores
// both for all users, and runs one search at a time. Its lock is a channel and not a mutex, because a search takes
// seconds, and a caller that waits must return when its context ends.
type discovery struct {
	c    *Client
	lock chan struct{} // of capacity 1: whoever has sent to it may use the fields below

	metadataURL string                    // the resource_metadata of the challenge that led to server
	server      *authServer               // the outcome of the last search; nil if it failed
	err         error                     // why the last search failed; nil if it succeeded
	searchedAt  time.Time                 // when the last search began
	boundIssuer string                    // the issuer that the configured credentials belong to; "" if not known
	registered  map[string]clientIdentity // by issuer
}

// userKey identifies the user of cached tokens. Where the user's own token is exchanged, the key includes the hash of
// that whole token: one person may come with tokens of different rights (CVE-2026-35030).
type userKey struct {
	issuer, subject string
	token           [sha256.Size]byte
}

// userTokens has the tokens of one user, and what the next token is requested with. It is an entry of
// Client.users: acquireUser and releaseUser count who uses it, and an entry in use is not dropped.
type userTokens struct {
	c             *Client
	id            auth.Identity // as principalOf returns it
	key           userKey       // in Client.users
	source        *token.CachedSource
	authorizeLock chan struct{} // of capacity 1: whoever has sent to it may start an authorization

	mu           sync.Mutex // protects the fields below
	challenge    challenge  // the MCP server's latest one
	challengedAt time.Time  // when challenge arrived; zero: there is none
	// grant is the latest grant. For AuthorizationCode it is a copy of the grant in the store, as of revision.
	grant        grant
	revision     uint64
	grantUnsaved bool      // grant is newer than the store at revision, because it could not be stored
	syncedAt     time.Time // when grant was last compared with the store; zero: never
}

// grant is the latest token of a user, and how it was requested.
type grant struct {
	server  *authServer    // that has issued the tokens; nil: no token was ever issued
	client  clientIdentity // that the tokens were issued to
	scopes  []string       // that were requested
	refresh auth.Secret    // the refresh token; zero: none
	token   token.Token
	key     *proofKey // that the tokens are bound to; nil for bearer tokens
}
