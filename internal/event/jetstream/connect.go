package jetstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	js "github.com/nats-io/nats.go/jetstream"

	"answerd/internal/event"
)

// connectTimeout bounds one attempt to reach one server.
const connectTimeout = 2 * time.Second

// maxCredentials bounds the file of credentials, in bytes.
const maxCredentials = 64 << 10

// credentials is how to log in with a file: the JWT and the seed that nsc writes (.creds),
// or the seed of an NKey alone. "" is no file. The file is read again at every connection.
func credentials(file string) (nats.Option, error) {
	if file == "" {
		return func(*nats.Options) error { return nil }, nil
	}
	info, err := os.Stat(file)
	if err == nil && info.Size() > maxCredentials {
		err = errors.New("it is too large")
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
	if err != nil { // which may quote the file
		return nil, errors.New("read the credentials: neither a .creds file nor the seed of an NKey")
	}
	return option, nil
}

// dial connects once one of the servers is there, or fails when ctx ends. The
// client's own errors may quote the URL, and with it a password.
func dial(ctx context.Context, servers string, options []nats.Option) (*nats.Conn, error) {
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

// Check reports whether a cluster can be reached, lets us in and has JetStream, and
// changes nothing there. It tries until ctx ends.
func Check(ctx context.Context, o Options) error {
	if err := CheckURL(o.URL); err != nil {
		return err
	}
	login, err := credentials(o.Credentials)
	if err != nil {
		return err
	}
	c, err := dial(ctx, o.URL, []nats.Option{nats.Name("answerd check"), nats.Timeout(connectTimeout), login})
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
