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

// Options are the settings of a Client. The zero value works.
type Options struct {
	// Service is the source of the token for servers with auth type jwt. With nil, requests to
	// those servers carry no token.
	Service token.Source
	// Transport, if set, wraps the http.Transport of every server, such as with otelhttp. Redirects are not followed.
	Transport func(http.RoundTripper) http.RoundTripper
	Logger    *slog.Logger // nil: slog.Default()
	// Timeout bounds how long a server may be silent during a call, counted from the moment when
	// the call has its permit; 0: 60 s. A server's own Timeout wins.
	Timeout time.Duration
	// MaxConcurrentCalls bounds the concurrent calls of one server; 0: the bound adapts to the server
	// (package limiter). A server's own MaxConcurrentCalls wins.
	MaxConcurrentCalls int
	// MaxToolBytes bounds the definitions of one server's tools together, as received; 0: 64 MiB. Tools
	// beyond that are left out.
	MaxToolBytes int
	// StartWait bounds how long Tools waits for servers that have not been connected before; 0: 3 s.
	StartWait time.Duration
	// Version is the version in the client info that servers receive; "": "dev".
	Version string
	// RedirectURL is the OAuth redirect URI for servers of AuthAuthorizationCode that configure
	// none of their own. The handler of that URL calls Client.Callback.
	RedirectURL string
	// SignIns keeps the tokens of users who have signed in, and the sign-ins that have not ended, for
	// all processes that share it; nil: in memory, until the Client is closed.
	SignIns *sealed.Store
	// ToolNames keeps the names of the servers' tools across restarts, so that a server that is down keeps
	// them; nil: until the Client is closed.
	ToolNames values.Store
	// Pins is the path of the file of accepted tool definitions, for servers with
	// Pin. It is read by New and Reload, and written by AcceptPins.
	Pins string

	// TokenTLS has the roots and the client certificate for the token endpoints of servers with
	// AuthExchange that have no TLS of their own; nil means the system's roots alone.
	TokenTLS *tlsconfig.Source

	// New sets the following.
	oauthClients *sharedClients // of the authorization servers of all servers
	inMemory     bool           // the caller gave no SignIns: they end with the Client
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
	names   storedNames

	life      context.Context // ends with Close
	cancel    context.CancelCauseFunc
	ready     chan struct{} // closed when the first attempts to connect to the servers of New have ended
	createdAt time.Time
	removals  sync.WaitGroup // goroutines that wait for the last calls of removed servers

	reload sync.Mutex // held by New, Reload, ReloadTLS and Close; protects closed and lastID
	closed bool
	lastID int // the id of the newest server

	mu             sync.Mutex    // protects the fields below
	servers        []*server     // in the configuration's order; replaced, never changed
	untriedServers int           // servers whose first attempt to connect has not ended
	allTried       chan struct{} // closed when untriedServers is 0; a Reload replaces a closed one
	waitUntil      time.Time     // callers wait for first attempts no longer than this
}

// State is the state of a server's connection.
type State string

// The states of a server.
const (
	Connecting State = "connecting"
	Connected  State = "connected"
	Degraded   State = "degraded" // connected before; now the connection or its calls fail. Its last tools are still offered
	Failed     State = "failed"
	Disabled   State = "disabled"
)

// ServerStatus describes one server for GET /servers.
type ServerStatus struct {
	Name     string    `json:"name"`
	Type     string    `json:"type"`
	State    State     `json:"state"`
	Reason   string    `json:"reason,omitempty"` // may be shown to the caller
	Since    time.Time `json:"since"`
	Protocol string    `json:"protocol_version,omitempty"`
	Tools    int       `json:"tools"`
	// DisabledTools holds the server's own names of the tools whose definitions the operator has
	// not accepted (pin), sorted.
	DisabledTools []string `json:"disabled_tools,omitempty"`
	// OmittedTools is how many of the server's tools were left out, at least: their definitions are not
	// valid, or the list is too large or repeats a cursor.
	OmittedTools int `json:"omitted_tools,omitempty"`
	// ConcurrencyLimit is how many calls of its tools may be in flight at present.
	ConcurrencyLimit int `json:"concurrency_limit"`
}

// ServerError says why a server cannot be used now. Its text may be shown to the caller. Err is the
// cause, for the log only; it may be nil.
type ServerError struct {
	Server string
	Reason string
	Err    error
}

func (e *ServerError) Error() string { return fmt.Sprintf("MCP server %s: %s", e.Server, e.Reason) }

func (e *ServerError) Unwrap() error { return e.Err }

// server is one configured server: its sessions, the limit on its calls, its state, and the supervisor goroutine. The
// supervisor connects, lists the tools, and retries with backoff while the server is down.
type server struct {
	client         *Client
	id             int           // in the catalog; never reused
	configured     config.Server // as configured: Reload compares it with the new configuration
	cfg            config.Server // with the defaults filled in
	log            *slog.Logger
	pool           *session.Pool // the sessions that all callers share; nil if the server is not used (isLive)
	userSessions   *userSessions // nil unless each caller has sessions of their own
	dialer         dialer
	breaker        breaker
	callLimiter    *limiter.Limiter
	wake           chan struct{} // of capacity 1: wakes the supervisor
	supervisorDone chan struct{} // closed when the supervisor has ended
	drain          *callDrain

	life    context.Context // ends with the Client's, or when a removed server's calls have ended
	endLife context.CancelCauseFunc

	mu            sync.Mutex // protects the fields below
	state         State
	reason        string           // for the state; may be shown to the caller
	since         time.Time        // when the state began
	protocol      string           // version in the session that was listed last; "" if the tools were never listed
	listedSession *session.Session // the shared session whose tools are known; nil after a failure
	renewal       listExpiry       // when its tools are listed again
	// instructions are those of the session listed last. They stay while the server is down, as its tools do.
	instructions string
	omittedTools int             // tools that the latest list left out
	truncated    string          // toolList.truncated of the latest list
	resourcesCut string          // toolList.resourcesCut of the latest list
	waiters      []refreshWaiter // answered by the supervisor's next round

	unreachable   bool // the latest failure was that the server could not be reached
	listTooLarge  bool // the latest list of its tools was too large
	listingFailed bool // the latest attempt to list the tools failed, but not because the list was too large
}

// refreshWaiter waits for the supervisor to list the tools.
type refreshWaiter struct {
	done  chan error // of capacity 1
	fresh bool       // list again even if the list is up to date
}

// userSessions holds the sessions of a server that is used on behalf of its callers (config.AuthType.IsDelegated).
// The server may bind a session to a user and refuse it to other users (go-sdk servers do, by TokenInfo.UserID), and
// may keep a user's data in the session. So each user has a pool of their own, and every request in it carries a
// token of that user.
//
// The service itself has no token for the server. The tools are listed with the token of one user, and all users
// share the list; the server refuses what a user may not do. Nothing happens without a caller: neither listing nor
// reconnecting is retried in the background.
type userSessions struct {
	delegation
	server   *server
	listLock chan struct{} // a lock, of capacity 1: whoever has sent to it may list the tools
	sessions *lru.Cache[userKey, *userSession]

	mu          sync.Mutex     // protects the fields below, and userSession.latest
	listings    sync.WaitGroup // goroutines that list the tools
	closed      bool
	everListed  bool      // the tools have been listed at least once
	failures    int       // consecutive lists that failed because of the server
	nextAttempt time.Time // earliest time to list the tools again, except for Refresh
}

// userKey identifies a user with sessions of their own.
type userKey struct{ issuer, subject string }

// userSession holds the sessions of one user at one server.
type userSession struct {
	pool   *session.Pool
	key    userKey       // in userSessions.sessions
	latest auth.Identity // as of the user's latest call; its token is for requests outside of calls
}

// dialer opens sessions with one server. dialers has a constructor for each transport type.
type dialer struct {
	connect func(context.Context) (*sdk.ClientSession, error)
	// useInitialize makes later sessions begin with 2025-11-25, the last version in which a server sends requests.
	useInitialize    func()
	close            func()               // closes the connections; called after the last session has ended
	handshakeTimeout time.Duration        // 0: session.HandshakeTimeout
	delegation       *delegation          // nil unless the server is used on behalf of its callers
	tls              *tlsconfig.Transport // of servers over HTTP, HTTP+SSE and WebSocket, otherwise nil
}

// listExpiry says when a server's tools are listed again: when the server announces a change, when
// the list's time to live is over, and for pinned tools after a minute. Any other list is valid
// until Refresh is called or the session is replaced. It is protected by its server's mutex.
type listExpiry struct {
	listedAt time.Time // when the latest list arrived
	dueAt    time.Time // when the tools are to be listed again; zero: not before something changes
	changes  int       // change notifications so far
}

// storedNames has the names of tools that this process has written to Options.ToolNames, so that equal lists are not
// written again. The zero value works.
type storedNames struct {
	mu   sync.Mutex          // protects last
	last map[string][]string // by server: its tools' own names, sorted
}

// callDrain counts the calls of a server. After the server has been removed from the configuration,
// calls in flight may finish, and no new one starts.
type callDrain struct {
	started chan struct{} // closed when no more calls may start
	ended   chan struct{} // closed when, after that, no call is in flight

	mu       sync.Mutex // protects the fields below
	inFlight int        // calls between beginCall and endCall
	draining bool       // started is closed
}

func newCallDrain() *callDrain {
	return &callDrain{started: make(chan struct{}), ended: make(chan struct{})}
}

// markTried records that the first attempt to connect to one server has ended. Each server must call it once.
func (c *Client) markTried() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.untriedServers--
	c.signalTriedLocked()
}

// signalTriedLocked closes ready and allTried if the first attempts to connect to all servers have ended.
func (c *Client) signalTriedLocked() {
	if c.untriedServers > 0 {
		return
	}
	if !transport.IsClosed(c.ready) {
		close(c.ready) // before allTried: who waits for that may call Ready next
	}
	close(c.allTried)
}

// allServers returns the servers in the configuration's order. The slice must not be changed.
func (c *Client) allServers() []*server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers
}

// serverByID returns the server with that id, or nil if a Reload has removed or replaced it.
func (c *Client) serverByID(id int) *server {
	for _, s := range c.allServers() {
		if s.id == id {
			return s
		}
	}
	return nil
}

// serverByName returns the configured server with that name, or nil.
func (c *Client) serverByName(name string) *server {
	for _, s := range c.allServers() {
		if s.cfg.Name == name {
			return s
		}
	}
	return nil
}
