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
	"answerd/internal/tlsconfig"
	"answerd/internal/values"
)

// Options are the settings of a Client. The zero value works.
type Options struct {
	// Service is the source of the token for servers with auth type jwt. With nil, requests to
	// those servers carry no token.
	Service token.Source
	// Transport, if set, wraps the http.Transport of every server, such as with
	// otelhttp. Redirects are not followed.
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
	// StartWait bounds how long Tools waits for servers that have not been connected before; 0: 3
	// s.
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

	grants   *sharedGrants // shared by all servers; New sets it
	inMemory bool          // SignIns ends with the Client
	tls      *tlsSources   // the same
}

// ErrUnknownServer is returned by Refresh, Prompts and Prompt for a name that is not configured.
var ErrUnknownServer = errors.New("no such MCP server")

// Client connects to many MCP servers and calls their tools. New makes one.
type Client struct {
	opts    Options
	log     *slog.Logger
	catalog *catalog.Catalog
	names   storedNames

	life      context.Context // ends with Close
	cancel    context.CancelCauseFunc
	ready     chan struct{} // closed when the servers of New have been tried
	createdAt time.Time
	drains    sync.WaitGroup // removed servers

	reload sync.Mutex // held by Reload and Close; protects closed and lastID
	closed bool
	lastID int

	mu        sync.Mutex    // protects what follows
	servers   []*server     // in the configuration's order
	untried   int           // servers whose first attempt has not ended
	allTried  chan struct{} // closed when untried is 0
	waitUntil time.Time     // callers wait for them no longer than this
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
	// valid, or the list is too large.
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

// server is one configured server: its sessions, the limit on its calls, its state, and the supervisor
// goroutine. The supervisor connects, lists the tools, and retries with backoff while the server is
// down.
type server struct {
	c       *Client
	id      int           // in the catalog; never reused
	given   config.Server // as configured
	cfg     config.Server // with the defaults filled in
	log     *slog.Logger
	pool    *session.Pool // the sessions of the service itself
	callers *userSessions // nil unless each caller has sessions of their own
	dialer  dialer
	breaker breaker
	calls   *limiter.Limiter
	wake    chan struct{} // of capacity 1: wakes the supervisor
	gone    chan struct{} // closed when the supervisor has ended
	drain   *callDrain

	life context.Context // ends with the Client's, or when a removed server's calls have ended
	end  context.CancelCauseFunc

	mu      sync.Mutex // protects what follows
	state   State
	reason  string
	since   time.Time
	version string           // protocol version of the session listed last
	listed  *session.Session // the session listed last; nil while down
	renewal listExpiry       // when its tools are listed again
	// instructions are those of the session listed last; they stay while the server is down, as its
	// tools do.
	instructions string
	omitted      int             // tools that the latest list left out
	cut          bool            // the server has more tools, which were not requested
	waiters      []refreshWaiter // answered by the supervisor's next round

	away     bool // the latest attempt could not reach it
	tooLarge bool // the latest list of its tools was too large
	down     bool // the latest attempt to list its tools failed, and what was listed before may not work
}

// refreshWaiter waits for the supervisor to list the tools.
type refreshWaiter struct {
	done  chan error // of capacity 1
	fresh bool       // list again even if the list is up to date
}

// userSessions holds the sessions of a server that is used on behalf of its callers (AuthExchange).
// Such a server may bind a session to a user and refuse it to others (go-sdk servers do, by
// TokenInfo.UserID), and may keep a user's data in the session. So each principal has a pool of
// their own, and every request in it carries a token that was exchanged for the principal's token.
//
// The service itself has no token for such a server. The tools are listed with the first caller's
// token, and all callers share the list; the server refuses what a principal may not do. Nothing
// happens without a caller: neither listing nor reconnecting is retried in the background.
type userSessions struct {
	delegation
	s        *server
	turn     chan struct{} // of capacity 1: held while the tools are listed
	sessions *lru.Cache[userKey, *userSession]

	mu       sync.Mutex // protects what follows, and the identities in sessions
	work     sync.WaitGroup
	closed   bool
	known    bool      // the tools have been listed at least once
	failures int       // consecutive lists that failed because of the server
	next     time.Time // earliest time of the next attempt, except for Refresh
}

// userKey identifies a user with sessions of their own.
type userKey struct{ issuer, subject string }

// userSession holds the sessions of one user at one server.
type userSession struct {
	pool *session.Pool
	who  userKey
	now  auth.Identity // the latest identity; its token is for requests outside of calls
}

// dialer opens sessions with one server. dialers has a constructor for each transport type.
type dialer struct {
	connect func(context.Context) (*sdk.ClientSession, error)
	// useInitialize has later sessions begin with the last version that has requests of the server.
	useInitialize func()
	close         func()               // frees what sessions shared, after the last one
	time          time.Duration        // limit of one handshake; 0: session.HandshakeTimeout
	delegation    *delegation          // of servers that are used on behalf of their callers
	tls           *tlsconfig.Transport // of servers over HTTP and WebSocket, otherwise nil
}

// listExpiry says when a server's tools are listed again: when the server announces a change, when
// the list's time to live is over, and for pinned tools after a minute. Any other list is valid
// until Refresh is called or the session is replaced. It is protected by its server's mutex.
type listExpiry struct {
	listed  time.Time // time of the last list
	due     time.Time // zero: no expiry
	changes int       // change notifications so far
}

// storedNames has what is stored of the tools of the servers. The zero value works.
type storedNames struct {
	mu   sync.Mutex // protects what follows
	last map[string][]string
}

// callDrain counts the calls of a server. After the server has been removed from the configuration,
// calls in flight may finish, and no new one starts.
type callDrain struct {
	leaving chan struct{} // closed when no more calls may start
	empty   chan struct{} // closed when leaving is closed and no call is in flight

	mu    sync.Mutex // protects what follows
	calls int
	left  bool
}

func newCallDrain() *callDrain {
	return &callDrain{leaving: make(chan struct{}), empty: make(chan struct{})}
}

// markTried records that one server's first attempt to connect is over.
func (c *Client) markTried() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.untried--
	c.signalTriedLocked()
}

// signalTriedLocked wakes those who wait for first attempts if all are over.
func (c *Client) signalTriedLocked() {
	if c.untried > 0 {
		return
	}
	if !isClosed(c.ready) {
		close(c.ready) // first: those who wait for allTried may check ready next
	}
	close(c.allTried)
}

// isClosed reports whether a channel that carries no values is closed.
func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// allServers returns the servers in the configuration's order. The slice must not be changed.
func (c *Client) allServers() []*server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers
}

// serverByID returns the server with that id, or nil if it was removed.
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
