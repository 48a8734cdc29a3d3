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
	key       *proofKey // key of all tokens that need no sign-in; nil without DPoP
	nonces    proofNonces
	store     *sealed.Store // Config.Store, or one in memory
	discovery *discovery

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	users *lru.Cache[userKey, *userTokens]

	mu           sync.Mutex // protects the fields below
	closed       bool
	callbacks    sync.WaitGroup // running calls of Callback
	storeErrorAt time.Time      // when an error of the store was last logged
}

// authServer is an authorization server as its metadata (RFC 8414) describes it, with the resource for which tokens
// are requested. It is not changed after discovery has returned it. It is stored as JSON with each sign-in (store.go):
// even if the MCP server names another authorization server later, a code or a refresh token must go to the endpoint of
// the one that has issued it.
type authServer struct {
	Issuer         string   `json:"issuer,omitempty"`   // "" if only the token endpoint is configured
	Configured     bool     `json:"trusted,omitempty"`  // the configuration names the issuer or token endpoint, not the MCP server
	Resource       string   `json:"resource,omitempty"` // the tokens' resource (RFC 8707): the MCP server
	ResourceScopes []string `json:"wanted,omitempty"`   // scopes_supported in the resource's metadata (RFC 9728)

	TokenURL     string `json:"token_url"`
	AuthorizeURL string `json:"authorize_url,omitempty"` // "" if it has no such endpoint, as for the two below
	RegisterURL  string `json:"register_url,omitempty"`
	RevokeURL    string `json:"revoke_url,omitempty"`

	AuthMethods     []string `json:"auth_methods,omitempty"`     // token_endpoint_auth_methods_supported; nil: not stated
	Scopes          []string `json:"scopes,omitempty"`           // scopes_supported
	ReturnsIssuer   bool     `json:"returns_issuer,omitempty"`   // its authorization responses have an iss (RFC 9207)
	AcceptsMetadata bool     `json:"accepts_metadata,omitempty"` // the client id may be the URL of our metadata document
}

// clientIdentity is answerd's OAuth client at one authorization server. It is sent to no other authorization server.
type clientIdentity struct {
	id      string      // "" for a grant that needs no client, such as an assertion alone
	secret  auth.Secret // zero for a public client, and for one with a private key
	method  string      // client authentication method: methodBasic and so on
	expires time.Time   // when a registered client must be registered again; zero if it was not registered
	scopes  []string    // the scopes that this process has registered it for
}

// resource has what answerd uses of a server's protected resource metadata (RFC 9728 section 2).
type resource struct {
	name   string   // the resource for tokens (RFC 8707), exactly as published
	issuer string   // the first of authorization_servers
	scopes []string // scopes_supported
}

// discovery finds the authorization server of the MCP server (RFC 9728, RFC 8414) and answerd's client there. It
// stores both for all users, and runs one search at a time.
type discovery struct {
	c    *Client
	lock contextLock // protects the fields below

	metadataURL string                    // challenge.metadata of the last search
	server      *authServer               // the result of the last search; nil if it failed
	err         error                     // why the last search failed; nil if it succeeded
	searchedAt  time.Time                 // when the last search began
	boundIssuer string                    // the issuer that the configured credentials belong to; "" if unknown
	registered  map[string]clientIdentity // by issuer
}

// contextLock is a lock that is held during requests, which take seconds. Unlike a mutex, it lets a goroutine that
// waits for it return when the goroutine's context ends. It is a channel of capacity 1: sending acquires the lock,
// receiving releases it.
type contextLock chan struct{}

// acquire waits until it has acquired the lock or ctx has ended. The error is the cause of that end.
func (l contextLock) acquire(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// release releases the lock, which the caller must hold.
func (l contextLock) release() { <-l }

// userKey identifies the user of cached tokens. If the user's own token is exchanged, the key includes a hash of that
// whole token, because one user may send tokens with different rights (CVE-2026-35030).
type userKey struct {
	issuer, subject string
	token           [sha256.Size]byte
}

// userTokens has one user's tokens, and what the next token is requested with. It is an entry of Client.users.
// acquireUser and releaseUser count the users of the entry, and an entry in use is not dropped.
type userTokens struct {
	c             *Client
	id            auth.Identity // as principalOf returns it
	key           userKey       // in Client.users
	source        *token.CachedSource
	authorizeLock contextLock // held while an authorization is started

	mu           sync.Mutex // protects the fields below
	challenge    challenge  // the MCP server's latest challenge
	challengedAt time.Time  // when challenge arrived; zero if none has
	// grant is the latest grant. For AuthorizationCode it is a copy of the grant that the store has at revision.
	grant        grant
	revision     uint64
	grantUnsaved bool      // grant is newer than the store's at revision, because it could not be stored
	syncedAt     time.Time // when grant was last compared with the store; zero: never
}

// grant is a user's tokens, and what they are requested with.
type grant struct {
	server  *authServer    // the server that issues the tokens; nil if no token was ever requested
	client  clientIdentity // the client that the tokens are issued to
	scopes  []string       // the scopes that are requested
	key     *proofKey      // the key that the tokens are bound to; nil for bearer tokens
	refresh auth.Secret    // the refresh token; zero if none
	token   token.Token    // the zero Token before it has been issued
}
