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

// client has the connections to NATS, the streams, and the clock of the server. Its methods publish and read messages;
// they do not use the cached runs.
type client struct {
	instanceID string // identifies this Log among those that share the streams
	logger     *slog.Logger
	ctx        context.Context // ends with Close

	// write is for appends and jobs, and read for reading and live messages. Messages to many readers must not contend
	// with appends for the lock of a connection.
	write, read *nats.Conn
	js          js.JetStream // uses write
	runsStream  js.Stream
	indexStream js.Stream
	jobsStream  js.Stream
	headsStream js.Stream
	turnsStream js.Stream
	maxPart     int            // the largest payload of a message, in bytes; a longer one is split into parts
	clustered   bool           // the streams have replicas, which may lag behind their leader
	leaders     sync.Map       // by stream name: the time.Time until which confirmLeader need not ask again
	clock       clock          // the server's clock
	pullInboxes chan pullInbox // inboxes that no pull request uses

	embedded    *embedded.Server // nil on a cluster
	diskFull    atomic.Bool      // the disk of the embedded server accepts no writes (disk.go)
	accountFull atomic.Bool      // the account was full at an append; expireLoop resets it
	expireNow   chan struct{}    // signals to expireLoop that the log is full
}

// connectTimeout bounds one attempt to reach one server.
const connectTimeout = 2 * time.Second

// A server that loses the rest of its cluster keeps its clients, although it cannot serve them. watchLeaderLoop checks
// each connection every leaderInterval, and moves it to another server after leaderFailures failed checks in a row.
const (
	leaderInterval = 2 * time.Second
	leaderFailures = 3
)

// maxCredentials bounds the credentials file, in bytes.
const maxCredentials = 64 << 10

// credentialsOption returns the option to log in with a file: the JWT and the seed that nsc writes (.creds), or the
// seed of an NKey alone. For "" it returns an option that does nothing. The client library reads the file again at
// every connection.
func credentialsOption(file string) (nats.Option, error) {
	if file == "" {
		return func(*nats.Options) error { return nil }, nil
	}
	info, err := os.Stat(file)
	if err == nil && info.Size() > maxCredentials {
		err = errors.New("the file is too large")
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(file)
	}
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

// connectUntilDone tries to connect until one of the servers answers, and returns event.ErrUnavailable with the reason
// when ctx ends. It logs the first failure, since the service does not listen before the log is open. If a server
// refuses the login or TLS does not match, it returns at once. It wraps no other error of the client library, because
// an error may quote the URL and its password.
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

// connectFailure returns why no server could be connected to, as far as it can be said without the text of err.
func connectFailure(err error) string {
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return "the host name is not known"
	}
	if bad, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the certificate is not valid: " + bad.Err.Error()
	}
	if network, ok := errors.AsType[net.Error](err); ok && network.Timeout() || errors.Is(err, nats.ErrTimeout) {
		return "no server answers in time"
	}
	if errors.Is(err, nats.ErrNoServers) { // the client library's word for "connection refused"
		return "no server accepts connections there"
	}
	return "what answers there is no NATS server, or it closed the connection"
}

// watchLeaderLoop makes a connection try another server while its server does not reach the leader
// of the stream of runs, until Close. It also keeps the clock up to date.
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
		// A connection that is lost does not count: the client library itself tries all servers.
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

// hasLeader reports whether the leader of a stream answers on conn within readyTimeout, and sets the clock by its
// answer. An answer of a server that is cut off does not count (isLeaderless).
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

// A leader sends its replicas a heartbeat every second, which they answer. A leader that has heard nothing from most of
// its replicas for maxSilence does not count as the leader any more. The replicas elect another leader at least
// minElection after the last heartbeat (nats-server 2.15, minElectionTimeoutDefault).
const (
	maxSilence  = 3 * time.Second
	minElection = 4 * time.Second
)

// confirmLeader returns nil if the server that answers for a stream is its only leader, and event.ErrUnavailable
// otherwise. A confirmed leader stays the only one for minElection-maxSilence, in which confirmLeader does not ask
// again.
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

// isLeaderless reports whether info is not from the leader of a stream. If a stream has no leader, any of its servers
// sends the state. A server that is cut off from the rest of its cluster considers itself the leader for 10 to 20 s
// more, while the other servers elect another. So a leader that does not hear from more than half of its replicas does
// not count.
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

// CheckURL returns an error if the URL of a log is malformed. The error does not quote the URL,
// which may contain a password.
func CheckURL(address string) error {
	if dir, ok := strings.CutPrefix(address, "file:"); ok {
		if strings.HasPrefix(dir, "//") || strings.TrimSpace(dir) == "" || filepath.Clean(dir) == string(filepath.Separator) {
			return errors.New("must be file: and a directory, such as file:/var/lib/answerd")
		}
		return nil
	}
	scheme := ""
	for _, server := range strings.Split(address, ",") {
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

// diskFailed is called after a failed append, and reports whether the disk of an embedded log accepts no writes. The
// server does not answer an append that it could not write, so diskFailed asks the server for its health. It then sets
// diskFull: no append succeeds until recoverDisk has freed space.
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

// expireSoon makes expireLoop delete runs now, because err says that the log is full. It does not wait.
func (c *client) expireSoon(err error) {
	if isAccountFull(err) {
		c.accountFull.Store(true)
	}
	select {
	case c.expireNow <- struct{}{}:
	default: // a request is pending
	}
}

// clock is the clock of the server, which also gives messages their time. It is set from each state of a stream that
// the server sends. Before the first one it is the clock of this machine.
type clock struct {
	mu       sync.Mutex // guards the fields below
	server   time.Time  // the server's time in its last answer
	received time.Time  // when that answer arrived, with a monotonic clock reading
}

// set sets the clock to the time of the server, from an answer that has just arrived. It ignores the zero time.
func (c *clock) set(server time.Time) {
	if server.IsZero() {
		return // NATS servers before 2.10 do not send it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server, c.received = server, time.Now()
}

// now returns the time of the server's clock, or of this machine's clock if set was not called.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.received.IsZero() {
		return time.Now()
	}
	return c.server.Add(time.Since(c.received))
}

// Now implements event.Log. It returns the time of the server. Between two answers of the server it
// adds monotonic time, so a change of this machine's clock has no effect.
func (c *client) Now() time.Time { return c.clock.now() }

// streamInfo returns the state of a stream from its leader, and sets the log's clock by it. It returns errNoLeader if
// the stream has no leader.
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

// readyTimeout bounds a request that finds out whether the log can be used.
const readyTimeout = time.Second

// pause waits for d. It reports false if ctx or the log ended first.
func (c *client) pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
	case <-c.ctx.Done():
	}
	return false
}

// deleteMessage removes the message at pos from a stream. It returns event.ErrFenced if the stream does not have it any
// more.
func deleteMessage(ctx context.Context, stream js.Stream, pos uint64) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := stream.DeleteMsg(ctx, pos)
	var api *js.APIError
	switch {
	case errors.As(err, &api) && api.Code < 500, errors.Is(err, js.ErrMsgDeleteUnsuccessful):
		return event.ErrFenced
	case err != nil:
		return unavailableError("remove from the log", err)
	}
	return nil
}

// purgeSubject removes all messages of a subject, which may have wildcards, from a stream.
func purgeSubject(ctx context.Context, stream js.Stream, subject string) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := stream.Purge(ctx, js.WithPurgeSubject(subject)); err != nil {
		return unavailableError("remove from the log", err)
	}
	return nil
}
