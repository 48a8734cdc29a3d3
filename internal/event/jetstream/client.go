package jetstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
	"answerd/internal/event/jetstream/embedded"
	"answerd/internal/help"
)

// client holds the connections to NATS, the streams, and the server's clock. Its methods publish and read messages.
// They do not use the cached runs.
type client struct {
	instanceID string // identifies this Log among those that share the streams
	logger     *slog.Logger
	ctx        context.Context // ends with Close

	// write carries appends and jobs. read carries reads and live messages. They are separate connections, so that
	// messages to many readers do not contend with appends for the lock of a connection.
	write, read *nats.Conn
	js          js.JetStream // uses write
	runsStream  js.Stream
	indexStream js.Stream
	jobsStream  js.Stream
	headsStream js.Stream
	turnsStream js.Stream
	maxPart     int            // the largest payload of one message, in bytes; longer ones are split into parts
	clustered   bool           // the streams have replicas, which may lag behind their leader
	leaders     sync.Map       // by stream name: a time.Time until which confirmLeader need not ask again
	clock       clock          // the server's clock
	pullInboxes chan pullInbox // inboxes that no pull request uses

	embedded    *embedded.Server // nil on a cluster
	diskFull    atomic.Bool      // the disk of the embedded server accepts no writes (see disk.go)
	accountFull atomic.Bool      // an append failed because the account was full; expireLoop resets it
	expireNow   chan struct{}    // tells expireLoop that the log is full
}

// connectTimeout bounds one attempt to connect to one server.
const connectTimeout = 2 * time.Second

// A server that is cut off from its cluster keeps its clients, although it cannot serve them. watchLeaderLoop checks
// each connection every leaderInterval. It moves a connection to another server after leaderFailures failed checks in a
// row.
const (
	leaderInterval = 2 * time.Second
	leaderFailures = 3
)

// maxCredentials is the largest size of a credentials file, in bytes.
const maxCredentials = 64 << 10

// credentialsOption returns the option to log in with a file. The file holds the JWT and seed that nsc writes (.creds),
// or only the seed of an NKey. If file is "", the option does nothing. The NATS client library reads the file again
// each time it connects.
func credentialsOption(file string) (nats.Option, error) {
	if file == "" {
		return func(*nats.Options) error { return nil }, nil
	}
	text, err := readCredentials(file)
	if err != nil {
		return nil, fmt.Errorf("read the credentials: %w", err)
	}
	if bytes.Contains(text, []byte("-----BEGIN NATS USER JWT-----")) {
		return nats.UserCredentials(file), nil
	}
	option, err := nats.NkeyOptionFromSeed(file)
	if err != nil { // err may quote the file
		return nil, errors.New("read the credentials: neither a .creds file nor the seed of an NKey")
	}
	return option, nil
}

// readCredentials returns the content of a file of at most maxCredentials bytes.
func readCredentials(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxCredentials {
		return nil, errors.New("the file is too large")
	}
	return os.ReadFile(file)
}

// connectUntilDone tries to connect until one of the servers answers. When ctx ends, it returns event.ErrUnavailable
// with the reason. If a server refuses the login, or the TLS settings do not match, it returns at once. It logs the
// first failure, because answerd does not listen before the log is open and an operator would see nothing. It wraps no
// other error of the client library, because such an error may quote the URL with its password.
func connectUntilDone(ctx context.Context, servers string, options []nats.Option, logger *slog.Logger) (*nats.Conn, error) {
	for attempt := 1; ; attempt++ {
		c, err := nats.Connect(servers, options...)
		switch {
		case err == nil:
			return c, nil
		case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired),
			errors.Is(err, nats.ErrSecureConnRequired), errors.Is(err, nats.ErrSecureConnWanted):
			return nil, fmt.Errorf("connect to the event log: %w", err)
		}
		if attempt == 1 {
			logger.Warn("event log cannot be reached yet", "reason", connectFailure(err), help.Events.Attr())
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to the event log: %w: %s", event.ErrUnavailable, connectFailure(err))
		}
	}
}

// connectFailure describes why no server could be connected to, without quoting err (see connectUntilDone).
func connectFailure(err error) string {
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return "the host name is not known"
	}
	if certificate, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the certificate is not valid: " + certificate.Err.Error()
	}
	if network, ok := errors.AsType[net.Error](err); ok && network.Timeout() || errors.Is(err, nats.ErrTimeout) {
		return "no server answers in time"
	}
	if errors.Is(err, nats.ErrNoServers) { // the client library's word for "connection refused"
		return "no server accepts connections there"
	}
	return "what answers there is no NATS server, or it closed the connection"
}

// watchLeaderLoop makes conn try another server of the cluster while its current server does not reach the leader of
// the stream of runs. It also keeps the clock up to date. It returns after Close.
func (c *client) watchLeaderLoop(conn *nats.Conn) {
	tick := time.NewTicker(leaderInterval)
	defer tick.Stop()
	for failures := 0; ; {
		select {
		case <-tick.C:
		case <-c.ctx.Done():
			return
		}
		switch {
		// A lost connection does not count, because the client library itself tries all servers.
		case !conn.IsConnected(), c.hasLeader(c.ctx, conn, runsName):
			failures = 0
		case failures+1 < leaderFailures || len(conn.Servers()) < 2:
			failures++
		default:
			failures = 0
			c.logger.Warn("event log: this server of the cluster does not reach the leader, trying another")
			_ = conn.ForceReconnect() // fails on a closed connection only
		}
	}
}

// hasLeader reports whether the stream's leader answers on conn within readyTimeout, and sets the clock from the
// answer. It ignores an answer from a server that is cut off from its cluster (isLeaderless).
func (c *client) hasLeader(ctx context.Context, conn *nats.Conn, stream string) bool {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	msg, err := conn.RequestWithContext(ctx, "$JS.API.STREAM.INFO."+stream, nil)
	if err != nil {
		return false
	}
	var info struct {
		js.StreamInfo
		Error *js.APIError
	}
	if json.Unmarshal(msg.Data, &info) != nil || info.Error != nil || isLeaderless(&info.StreamInfo) {
		return false
	}
	c.clock.set(info.TimeStamp)
	return true
}

// A leader sends its replicas a heartbeat every second, and they answer. A leader that has heard nothing from most of
// its replicas for maxSilence is no longer treated as the leader. The replicas elect another leader minElection after
// the last heartbeat at the earliest (nats-server 2.15, minElectionTimeoutDefault).
const (
	maxSilence  = 3 * time.Second
	minElection = 4 * time.Second
)

// confirmLeader returns nil if the server that answers for a stream is its only leader, and event.ErrUnavailable
// otherwise. A confirmed leader remains the only one for minElection-maxSilence, which is one second. During that time
// confirmLeader returns nil without asking.
func (c *client) confirmLeader(ctx context.Context, stream string) error {
	if !c.clustered {
		return nil
	}
	began := time.Now()
	if until, ok := c.leaders.Load(stream); ok && began.Before(until.(time.Time)) {
		return nil
	}
	if !c.hasLeader(ctx, c.read, stream) {
		return unavailableError("read the log", errNoLeader)
	}
	c.leaders.Store(stream, began.Add(minElection-maxSilence))
	return nil
}

// isLeaderless reports whether info was not sent by the stream's leader. If a stream has no leader, any of its servers
// answers. A server that is cut off from its cluster considers itself the leader for another 10 to 20 s, while the
// other servers elect a new one. So a leader that does not hear from more than half of its replicas does not count.
func isLeaderless(info *js.StreamInfo) bool {
	if info.Cluster == nil {
		return false
	}
	silent := 0
	for _, replica := range info.Cluster.Replicas {
		if replica.Active > maxSilence {
			silent++
		}
	}
	return info.Cluster.Leader == "" || silent > len(info.Cluster.Replicas)/2
}

// CheckURL returns an error if the URL of a log is malformed. The error does not quote the URL, which may contain a
// password.
func CheckURL(address string) error {
	if dir, ok := strings.CutPrefix(address, "file:"); ok {
		isRoot := filepath.Clean(dir) == string(filepath.Separator)
		if isRoot || strings.HasPrefix(dir, "//") || strings.TrimSpace(dir) == "" {
			return errors.New("must be file: and a directory, such as file:/var/lib/answerd")
		}
		return nil
	}
	scheme := ""
	for server := range strings.SplitSeq(address, ",") {
		u, err := url.Parse(strings.TrimSpace(server))
		if err != nil || !isServerURL(u) {
			return errors.New("must be file:DIR, or servers like nats://host:4222, comma separated")
		}
		if scheme != "" && scheme != u.Scheme {
			return errors.New("must have nats:// for all servers or tls:// for all")
		}
		scheme = u.Scheme
	}
	return nil
}

// isServerURL reports whether u is nats:// or tls:// with a host, and without a path, query or fragment.
func isServerURL(u *url.URL) bool {
	hasScheme := u.Scheme == "nats" || u.Scheme == "tls"
	hasMore := u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != ""
	return hasScheme && u.Hostname() != "" && !hasMore
}

// diskFailed reports whether the disk of an embedded log accepts no writes. It is called after a failed append. The
// server does not answer an append that it could not write, so diskFailed checks the server's health. If the disk has
// failed, it sets diskFull, and no append succeeds until recoverDisk has freed space.
func (c *client) diskFailed() bool {
	if c.embedded == nil {
		return false
	}
	if c.diskFull.Load() {
		return true
	}
	err := c.embedded.Health()
	if err == nil || c.ctx.Err() != nil {
		return false
	}
	if !c.diskFull.Swap(true) {
		c.logger.Error("event log disk not writable, refusing new runs", "error", err, help.EventLogSpace.Attr())
	}
	return true
}

// expireSoon makes expireLoop delete runs soon, because an append failed with err, which says that the log is full. It
// does not block.
func (c *client) expireSoon(err error) {
	if isAccountFull(err) {
		c.accountFull.Store(true)
	}
	select {
	case c.expireNow <- struct{}{}:
	default: // a request is pending
	}
}

// clock follows the server's clock, which also gives messages their time. It is set whenever the server sends the state
// of a stream. Until then it follows the clock of this machine.
type clock struct {
	mu       sync.Mutex // guards the fields below
	server   time.Time  // the server's time in its last answer
	received time.Time  // when that answer arrived, with a monotonic clock reading
}

// set sets the clock to server, the server's time in an answer that has just arrived. It ignores the zero time.
func (c *clock) set(server time.Time) {
	if server.IsZero() {
		return // NATS servers before 2.10 do not send it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server, c.received = server, time.Now()
}

// now returns the server's time, or this machine's time if set was never called.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.received.IsZero() {
		return time.Now()
	}
	return c.server.Add(time.Since(c.received))
}

// Now implements event.Log. It returns the server's time. Between two answers of the server it adds monotonic time, so
// that changes to this machine's clock have no effect.
func (c *client) Now() time.Time { return c.clock.now() }

// streamInfo asks a stream's leader for the state of the stream, and sets the clock from the answer. It returns
// errNoLeader if the answer is not from the leader.
func (c *client) streamInfo(ctx context.Context, stream js.Stream) (*js.StreamInfo, error) {
	info, err := stream.Info(ctx)
	switch {
	case err != nil:
		return nil, err
	case isLeaderless(info):
		return nil, errNoLeader
	}
	c.clock.set(info.TimeStamp)
	return info, nil
}

// readyTimeout bounds a request that checks whether the log can be used.
const readyTimeout = time.Second

// pause waits for d and returns true. It returns false if ctx or the log ended first.
func (c *client) pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
	return false
}

// deleteMessage removes the message at pos from a stream. It returns event.ErrFenced if the message is no longer there.
func deleteMessage(ctx context.Context, stream js.Stream, pos uint64) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := stream.DeleteMsg(ctx, pos)
	api, isAPIError := errors.AsType[*js.APIError](err)
	switch {
	case isAPIError && api.Code < 500, errors.Is(err, js.ErrMsgDeleteUnsuccessful):
		return event.ErrFenced
	case err != nil:
		return unavailableError("remove from the log", err)
	}
	return nil
}

// purgeSubject removes all messages of a subject from a stream. The subject may have wildcards.
func purgeSubject(ctx context.Context, stream js.Stream, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := stream.Purge(ctx, js.WithPurgeSubject(subject)); err != nil {
		return unavailableError("remove from the log", err)
	}
	return nil
}
