package auth

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// requestTimeout bounds one request to the IAM, from dialling to the last byte.
const requestTimeout = 5 * time.Second

// outboundClient is given, or a client of our own if it is nil, in both cases one
// that follows no redirect: 302, 307 and 308 would carry the Authorization header,
// and 307 and 308 the form too, to whatever host the reply names (F19).
func outboundClient(given *http.Client) *http.Client {
	client := http.Client{}
	if given != nil {
		client = *given
	} else if shared, ok := http.DefaultTransport.(*http.Transport); ok {
		own := shared.Clone()
		own.MaxIdleConnsPerHost = 8
		client.Transport = own
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &client
}

// Reply is an HTTP response read to its end.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// Get asks for the JSON at a URL, as Do does.
func Get(ctx context.Context, client *http.Client, at, whom string, limit int64) (Reply, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return Reply{}, &FetchError{Public: whom + " cannot be asked for"}
	}
	req.Header.Set("Accept", "application/json")
	return Do(client, req, whom, limit)
}

// Do sends req and reads at most limit bytes of the reply; more is an error,
// and so is a redirect. The limit counts after decompression. Whom names the other
// side in errors, which are *FetchError.
func Do(client *http.Client, req *http.Request, whom string, limit int64) (Reply, error) {
	resp, err := client.Do(req)
	if err != nil {
		return Reply{}, transportError(whom, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 == 3 {
		return Reply{}, &FetchError{Public: whom + " answered with a redirect, which is not followed", Status: resp.StatusCode}
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return Reply{}, transportError(whom, err)
	}
	if int64(len(body)) > limit {
		return Reply{}, &FetchError{Public: whom + " answered too much", Status: resp.StatusCode}
	}
	return Reply{resp.StatusCode, resp.Header, body}, nil
}

// CheckEndpoint refuses a URL that a secret must not be sent to, or keys taken from:
// plain http beyond this machine, and anything that is not a plain web address.
// Name is the setting, for the error.
func CheckEndpoint(name, raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return fmt.Errorf("%s is not a URL", name)
	}
	if u.User != nil || u.Fragment != "" {
		return fmt.Errorf("%s must not hold credentials or a fragment", name)
	}
	if u.Scheme == "https" || u.Scheme == "http" && isLoopback(u.Hostname()) {
		return nil
	}
	return fmt.Errorf("%s must be https, or http on the loopback address", name)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
