package jetstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
)

// connectTimeout bounds one attempt to reach one server.
const connectTimeout = 2 * time.Second

// A server that loses the rest of its cluster keeps its clients, but can do nothing for them. Every
// leaderInterval a connection is checked, and after leaderFailures failed checks in a row it moves
// to another server.
const (
	leaderInterval = 2 * time.Second
	leaderFailures = 3
)

// maxCredentials bounds the credentials file, in bytes.
const maxCredentials = 64 << 10

// credentialsOption returns the option to log in with a file: the JWT and the seed that nsc
// writes (.creds), or the seed of an NKey alone; "" means no login. The client library reads
// the file again at every connection.
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

// connectUntilDone tries to connect until one of the servers answers, and returns ErrUnavailable when ctx
// ends. It does not wrap the client library's errors, because they may quote the URL and its
// password.
func connectUntilDone(ctx context.Context, servers string, options []nats.Option) (*nats.Conn, error) {
	for {
		c, err := nats.Connect(servers, options...)
		switch {
		case err == nil:
			return c, nil
		case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrSecureConnRequired), errors.Is(err, nats.ErrSecureConnWanted):
			return nil, fmt.Errorf("connect to the event log: %w", err)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to the event log: %w", event.ErrUnavailable)
		}
	}
}

// watchLeaderLoop makes a connection try another server while its server does not reach the leader
// of the events' stream. It also keeps the clock up to date.
func (l *Log) watchLeaderLoop(c *nats.Conn) {
	tick := time.NewTicker(leaderInterval)
	defer tick.Stop()
	for failures := 0; ; {
		select {
		case <-tick.C:
		case <-l.ctx.Done():
			return
		}
		switch {
		case !c.IsConnected() || l.hasLeader(c): // without a connection, the client library looks for a server
			failures = 0
		case failures+1 < leaderFailures || len(c.Servers()) < 2:
			failures++
		default:
			failures = 0
			l.logger.Warn("event log: this server of the cluster does not reach the leader, trying another")
			_ = c.ForceReconnect() // fails on a closed connection only
		}
	}
}

// hasLeader reports whether the leader of the events' stream answers on a connection.
func (l *Log) hasLeader(c *nats.Conn) bool {
	ctx, cancel := context.WithTimeout(l.ctx, readyTimeout)
	defer cancel()
	m, err := c.RequestWithContext(ctx, "$JS.API.STREAM.INFO."+runsName, nil)
	if err != nil {
		return false
	}
	var info struct {
		js.StreamInfo
		Error *js.APIError
	}
	if json.Unmarshal(m.Data, &info) != nil || info.Error != nil || isLeaderless(&info.StreamInfo) {
		return false
	}
	l.clock.set(info.TimeStamp)
	return true
}

// isLeaderless reports whether a stream has no leader: then any of its servers sends the state.
func isLeaderless(info *js.StreamInfo) bool {
	return info.Cluster != nil && info.Cluster.Leader == ""
}

// Check connects to a cluster and returns an error unless it can be reached, accepts the
// credentials and has JetStream. It changes nothing there, and tries until ctx ends.
func Check(ctx context.Context, o Options) error {
	if err := CheckURL(o.URL); err != nil {
		return err
	}
	login, err := credentialsOption(o.Credentials)
	if err != nil {
		return err
	}
	c, err := connectUntilDone(ctx, o.URL, []nats.Option{nats.Name("answerd check"), nats.Timeout(connectTimeout), login})
	if err != nil {
		return err
	}
	defer c.Close()
	streams, err := js.New(c)
	if err == nil {
		_, err = streams.AccountInfo(ctx)
	}
	if err != nil {
		return fmt.Errorf("use JetStream: %w", err)
	}
	return nil
}

// CheckURL returns an error if the URL of a log is malformed. The error does not quote the URL,
// which may contain a password.
func CheckURL(s string) error {
	if dir, ok := strings.CutPrefix(s, "file:"); ok {
		if strings.HasPrefix(dir, "//") || strings.TrimSpace(dir) == "" || filepath.Clean(dir) == string(filepath.Separator) {
			return errors.New("must be file: and a directory, such as file:/var/lib/answerd")
		}
		return nil
	}
	scheme := ""
	for _, server := range strings.Split(s, ",") {
		u, err := url.Parse(strings.TrimSpace(server))
		if err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
			return errors.New("must be file:DIR, or servers like nats://host:4222, comma separated")
		}
		if scheme != "" && scheme != u.Scheme {
			return errors.New("must have nats:// for all servers or tls:// for all")
		}
		scheme = u.Scheme
	}
	return nil
}
