package mcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth"
	"answerd/internal/auth/sealed"
	"answerd/internal/auth/token"
	"answerd/internal/lru"
	"answerd/internal/mcp/catalog"
	"answerd/internal/mcp/config"
	"answerd/internal/mcp/limiter"
	"answerd/internal/mcp/session"
	"answerd/internal/mcp/transport"
	"answerd/internal/tlsconfig"
	"answerd/internal/values"
)

// Options are the settings of a Client. The zero value is valid.
type Options struct {
	// Service supplies the token for servers with auth type jwt. If it is nil, requests to those servers carry no
	// token.
	Service token.Source
	// Transport, if set, wraps each server's http.Transport, for example with otelhttp. Redirects are not followed.
	Transport func(http.RoundTripper) http.RoundTripper
	Logger    *slog.Logger // nil: slog.Default()
	// Timeout bounds how long a server may be silent during a call. It starts when the call gets its permit. 0 means
	// 60 s. A server's own Timeout takes precedence.
	Timeout time.Duration
	// MaxConcurrentCalls limits the calls in flight at one server; 0 means a limit that adapts to the server (package
	// limiter). A server's own MaxConcurrentCalls takes precedence.
	MaxConcurrentCalls int
	// MaxToolBytes limits the total size of one server's tool definitions, as received; 0 means 64 MiB. Tools beyond
	// the limit are left out.
	MaxToolBytes int
	// StartWait bounds how long Tools waits for servers that have not been connected before; 0 means 3 s.
	StartWait time.Duration
	// Version is the version that servers receive in the client info; "" means "dev".
	Version string
	// RedirectURL is the OAuth redirect URI for servers of AuthAuthorizationCode that do not configure their own. The
	// handler of that URL must call Client.Callback.
	RedirectURL string
	// SignIns stores the tokens of users who have signed in, and the sign-ins in progress, for all processes that
	// share it. If it is nil, they are kept in memory until the Client is closed.
	SignIns *sealed.Store
	// ToolNames stores the names of each server's tools, so that a server that is down at a restart keeps its names.
	// If it is nil, the names are reserved only until the Client is closed.
	ToolNames values.Store
	// Pins is the path of the file with the accepted tool definitions of servers with Pin. New and Reload read it, and
	// AcceptPins writes it.
	Pins string

	// TokenTLS has the root certificates and the client certificate for the token endpoints of servers with
	// AuthExchange that have no TLS settings of their own. If it is nil, the system's roots are used without a client
	// certificate.
	TokenTLS *tlsconfig.Source

	// New sets the fields below.
	oauthClients *sharedClients // shared by the servers, so that Reload can keep a client
	inMemory     bool           // SignIns was nil: sign-ins end with the Client
	tls          *tlsSources    // the certificates of all servers
}

// ErrUnknownServer is returned by Refresh, Prompts and Prompt for a name that is not configured, and by SignOut and
// SignInAt also for a server that needs no sign-in.
var ErrUnknownServer = errors.New("no such MCP server")

// Client connects to many MCP servers and calls their tools. New makes one.
type Client struct {
	opts    Options
	log     *slog.Logger
	catalog *catalog.Catalog

	life      context.Context // ends with Close
	cancel    context.CancelCauseFunc
	createdAt time.Time
	removals  sync.WaitGroup // goroutines that drain and close removed servers

	reload sync.Mutex // held by New, Reload, ReloadTLS and Close; protects closed and lastID
	closed bool
	lastID int // the id of the newest server

	mu             sync.Mutex    // protects the fields below
	servers        []*server     // in the configuration's order; replaced, never changed
	untriedServers int           // servers whose first attempt to connect has not ended
	everTried      bool          // the first attempts to connect to the servers of New have ended
	allTried       chan struct{} // closed when untriedServers is 0; a Reload replaces a closed one
	waitUntil      time.Time     // Tools stops waiting for first attempts then
}

// State says whether a server can be used.
type State string

// The states of a server.
const (
	Connecting State = "connecting"
	Connected  State = "connected"
	Degraded   State = "degraded" // connected before; fails now. Its last known tools are still offered
	Failed     State = "failed"
	Disabled   State = "disabled"
)

// ServerStatus describes one server for GET /servers.
type ServerStatus struct {
	Name     string    `json:"name"`
	Type     string    `json:"type"`
	State    State     `json:"state"`
	Reason   string    `json:"reason,omitempty"` // may be shown to users
	Since    time.Time `json:"since"`
	Protocol string    `json:"protocol_version,omitempty"`
	Tools    int       `json:"tools"`
	// DisabledTools has the tools whose definitions the operator has not accepted (pin), by the server's own names,
	// sorted.
	DisabledTools []string `json:"disabled_tools,omitempty"`
	// OmittedTools is how many of the server's tools were left out, or a lower bound of that: their definitions are
	// not valid, or the list is too large or repeats a cursor.
	OmittedTools int `json:"omitted_tools,omitempty"`
	// ConcurrencyLimit is how many calls to the server may be in flight at present.
	ConcurrencyLimit int `json:"concurrency_limit"`
}

// ServerError says why a server cannot be used now. Error returns a text that may be shown to users. Err is the cause,
// for the log only; it may be nil.
type ServerError struct {
	Server string
	Reason string
	Err    error
}

func (e *ServerError) Error() string { return fmt.Sprintf("MCP server %s: %s", e.Server, e.Reason) }

func (e *ServerError) Unwrap() error { return e.Err }

// server is one configured server. It has the sessions, the limit on calls, the state, and the supervisor goroutine,
// which connects, lists the tools, and retries with backoff while the server is down.
type server struct {
	client         *Client
	id             int           // in the catalog; never reused
	configured     config.Server // as configured: Reload compares it with the new configuration
	cfg            config.Server // with the defaults filled in
	log            *slog.Logger
	pool           *session.Pool // the session that all users share; nil if the server is not used (isLive)
	userSessions   *userSessions // nil unless the server uses per-user tokens
	dialer         dialer
	breaker        breaker
	callLimiter    *limiter.Limiter
	wake           chan struct{} // of capacity 1: wakes the supervisor
	supervisorDone chan struct{} // closed when the supervisor has ended
	storedNames    []string      // the tool names that were written last; used by storeToolNames only
	drain          *callDrain

	life    context.Context // ends when the Client's life ends, or when a removed server's last call has ended
	endLife context.CancelCauseFunc

	mu            sync.Mutex // protects the fields below
	state         State
	reason        string           // why the server is in this state; may be shown to users
	since         time.Time        // when the state began
	protocol      string           // of the session that listed the tools last; "" before the first list
	listedSession *session.Session // the shared session that listed the tools last; nil after a failure
	renewal       listExpiry       // when the tools are listed again
	// instructions come from the session that listed the tools last. They are kept while the server is down, as the
	// tools are.
	instructions string
	omittedTools int             // how many tools of the latest list were left out
	truncated    string          // toolList.truncated of the latest list
	resourcesCut string          // toolList.resourcesCut of the latest list
	waiters      []refreshWaiter // get the outcome of the supervisor's next round

	unreachable bool           // the latest failure was that the server could not be reached
	listFailure transport.Kind // why the latest attempt to list the tools failed; "" if it did not
}

// refreshWaiter is a goroutine that waits for the supervisor to list the tools.
type refreshWaiter struct {
	done chan error // of capacity 1
	when refreshWhen
}

// refreshWhen says when a request for the tools lists them again.
type refreshWhen bool

const (
	ifNeeded refreshWhen = false // if they are out of date; with per-user tokens, if they were never listed
	always   refreshWhen = true
)

// userSessions holds the sessions of a server with per-user tokens (config.AuthType.IsDelegated). Such a server may
// bind a session to a user and refuse it to other users (go-sdk servers do, by TokenInfo.UserID), and may keep a
// user's data in the session. So each user has a pool of their own, and every request in that pool carries a token of
// that user.
//
// answerd itself has no token for the server. It lists the tools with one user's token, and all users share the list;
// the server refuses what a user may not do. Between users' requests nothing happens: answerd neither lists the tools
// nor reconnects in the background.
type userSessions struct {
	delegation
	server   *server
	listLock chan struct{} // of capacity 1: sending acquires the right to list the tools, receiving releases it
	sessions *lru.Cache[userKey, *userSession]

	mu          sync.Mutex     // protects the fields below, and userSession.latest
	listings    sync.WaitGroup // goroutines that list the tools
	closed      bool
	everListed  bool      // the tools have been listed at least once
	failures    int       // consecutive lists that failed because of the server
	nextAttempt time.Time // earliest time for the next list, which Refresh ignores
}

// userKey identifies a user in userSessions.sessions.
type userKey struct{ issuer, subject string }

// userSession holds the sessions of one user at one server.
type userSession struct {
	pool   *session.Pool
	key    userKey       // in userSessions.sessions
	latest auth.Identity // identity from the user's latest call; its token is for requests outside of calls
}

// dialer opens sessions with one server. The map dialers has a constructor for each transport type.
type dialer struct {
	connect func(context.Context) (*sdk.ClientSession, error)
	// useInitialize makes later sessions begin with 2025-11-25, the last version in which a server may send requests.
	useInitialize    func()
	close            func()               // closes the connections; called after the last session has ended
	handshakeTimeout time.Duration        // 0: session.HandshakeTimeout
	delegation       *delegation          // nil unless the server uses per-user tokens
	tls              *tlsconfig.Transport // of servers over HTTP, HTTP+SSE and WebSocket, otherwise nil
}

// listExpiry says when a server's tools are listed again: when the server announces a change, when the list's time to
// live has passed, and for pinned tools after a minute. Any other list is valid until Refresh is called or the session
// is replaced. The server's mutex protects it.
type listExpiry struct {
	listedAt time.Time // when the latest list arrived
	dueAt    time.Time // when the tools are listed again; zero: not until a change
	changes  int       // change notifications so far
}

// callDrain counts a server's calls. When the server is removed from the configuration, calls in flight may finish,
// and no new ones start.
type callDrain struct {
	started chan struct{} // closed when no more calls may start
	ended   chan struct{} // closed when started is closed and no call is in flight

	mu       sync.Mutex // protects inFlight; held while the channels are closed
	inFlight int        // calls between beginCall and endCall
}

// newCallDrain returns a callDrain that admits calls until start is called.
func newCallDrain() *callDrain {
	return &callDrain{started: make(chan struct{}), ended: make(chan struct{})}
}

// markTried records that the first attempt to connect to one server has ended. Each live server's supervisor must call
// it exactly once.
func (c *Client) markTried() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.untriedServers--
	c.signalTriedLocked()
}

// signalTriedLocked sets everTried and closes allTried if every server's first attempt to connect has ended. c.mu must
// be held.
func (c *Client) signalTriedLocked() {
	if c.untriedServers > 0 {
		return
	}
	c.everTried = true
	close(c.allTried)
}

// allServers returns the servers in the configuration's order. The slice must not be changed.
func (c *Client) allServers() []*server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers
}

// serverByID returns the server with this id, or nil if a Reload has removed or replaced it.
func (c *Client) serverByID(id int) *server {
	for _, s := range c.allServers() {
		if s.id == id {
			return s
		}
	}
	return nil
}

// serverByName returns the configured server with this name, or nil.
func (c *Client) serverByName(name string) *server {
	for _, s := range c.allServers() {
		if s.cfg.Name == name {
			return s
		}
	}
	return nil
}
