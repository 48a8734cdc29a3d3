// Package ocivault reads secrets from OCI Vault, with the OCI SDK.
//
//	read := ocivault.NewReader(ocivault.Config{SecretOCID: "ocid1.vaultsecret.…", AuthType: "instance_principal"})
//	secret, err := read(ctx)
package ocivault

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"

	"github.com/oracle/oci-go-sdk/v65/common"
	ociauth "github.com/oracle/oci-go-sdk/v65/common/auth"
	"github.com/oracle/oci-go-sdk/v65/secrets"
)

const (
	service   = "OCI Vault"
	maxBundle = 64 << 10 // maximum size in bytes of each reply
)

// Config says which secret to read, and with which credentials.
type Config struct {
	SecretOCID string
	// AuthType is "api_key" (also ""), "instance_principal" or "resource_principal".
	AuthType string
	// ConfigFile is an OCI configuration file for api_key, whose section DEFAULT is used. If it is "", the SDK reads
	// ~/.oci/config or the file that OCI_CONFIG_FILE names.
	ConfigFile string
	// Endpoint, unless it is "", replaces the address of the region's vault service. It has a scheme and a host: https,
	// or http on the loopback address.
	Endpoint string
	// HTTPClient sends the requests. Redirects are not followed. nil means a new client for each read.
	HTTPClient *http.Client
}

// NewReader returns a function for token.ClientCredentialsConfig.Secret that reads the current version of a secret in
// OCI Vault. Each call reads the secret, the credentials' files and the certificates again. Calls are rare, and without
// a cache nothing can be out of date. Nothing is read before the first call. Errors are *fetch.Error.
func NewReader(cfg Config) func(context.Context) (auth.Secret, error) {
	disableSDKLog()
	return func(ctx context.Context) (auth.Secret, error) {
		client := fetch.NewClient(cfg.HTTPClient)
		if cfg.HTTPClient == nil {
			defer client.CloseIdleConnections()
		}
		d := &dispatcher{ctx: ctx, client: client}
		secret, err := cfg.readSecret(d)
		switch {
		case d.failed != nil: // it is more precise than the SDK's error
			return auth.Secret{}, d.failed
		case err != nil && d.sent: // err may quote a reply
			return auth.Secret{}, &fetch.Error{Public: service + " gave no readable secret"}
		case err != nil:
			return auth.Secret{}, &fetch.Error{Public: service + " cannot be used: its configuration is invalid", Err: err}
		}
		return secret, nil
	}
}

// readSecret reads the secret. d sends its requests.
func (cfg Config) readSecret(d *dispatcher) (auth.Secret, error) {
	if cfg.Endpoint != "" {
		if err := fetch.CheckEndpoint("the vault endpoint", cfg.Endpoint); err != nil {
			return auth.Secret{}, err
		}
	}

	provider, err := cfg.configurationProvider(d)
	if err != nil {
		return auth.Secret{}, err
	}
	client, err := secrets.NewSecretsClientWithConfigurationProvider(provider)
	if err != nil {
		return auth.Secret{}, err
	}
	client.HTTPClient = d
	if cfg.Endpoint != "" {
		client.Host = cfg.Endpoint
	}
	noRetry := common.NoRetryPolicy()

	// Do not pass the read's context to the SDK: when it ended, the SDK would return while its goroutine continues. The
	// dispatcher cancels the request instead.
	bundle, err := client.GetSecretBundle(context.WithoutCancel(d.ctx), secrets.GetSecretBundleRequest{
		SecretId:        &cfg.SecretOCID,
		RequestMetadata: common.RequestMetadata{RetryPolicy: &noRetry},
	})
	if err != nil {
		return auth.Secret{}, err
	}
	return decodeSecret(bundle)
}

// decodeSecret returns the secret in the vault's reply.
func decodeSecret(bundle secrets.GetSecretBundleResponse) (auth.Secret, error) {
	content, ok := bundle.SecretBundleContent.(secrets.Base64SecretBundleContentDetails)
	if !ok || content.Content == nil {
		return auth.Secret{}, errors.New("the bundle has no base64 content")
	}
	text, err := base64.StdEncoding.DecodeString(*content.Content)
	if err != nil {
		return auth.Secret{}, err
	}
	// A secret that was created with echo has a line feed at its end, which does not belong to it.
	return auth.NewSecret(strings.TrimRight(string(text), "\r\n")), nil
}

// configurationProvider returns the credentials for the vault. d sends the requests to get them, if any are needed.
func (cfg Config) configurationProvider(d *dispatcher) (common.ConfigurationProvider, error) {
	switch cfg.AuthType {
	case "", "api_key":
		if cfg.ConfigFile == "" {
			return common.DefaultConfigProvider(), nil
		}
		return common.ConfigurationProviderFromFile(cfg.ConfigFile, "")
	case "instance_principal":
		return ociauth.InstancePrincipalConfigurationProviderWithCustomClient(
			func(common.HTTPRequestDispatcher) (common.HTTPRequestDispatcher, error) { return d, nil })
	case "resource_principal":
		return ociauth.ResourcePrincipalConfigurationProvider()
	}
	return nil, errors.New("the auth type must be api_key, instance_principal or resource_principal")
}

// dispatcher sends the SDK's requests for one read, with the read's context, a limited reply size, and without
// following redirects. Only the read's goroutine uses it.
//
// After the first failure, it answers all further requests itself. Otherwise the SDK would ask a missing metadata
// service eight times, sleeping for two minutes in total even after the context has ended, and the federation service
// three times. The answer 400 ends the SDK's loop at the federation service. Its loop at the metadata service, which
// asks for the region, ends only with a 200. The SDK then asks for the certificate, and gets the 400.
type dispatcher struct {
	ctx    context.Context
	client *http.Client
	sent   bool  // a request was sent
	failed error // the first failure, a *fetch.Error
}

// Do implements common.HTTPRequestDispatcher.
func (d *dispatcher) Do(req *http.Request) (*http.Response, error) {
	if d.failed == nil {
		reply, err := d.send(req)
		if err == nil {
			return httpResponse(req, reply), nil
		}
		d.failed = err
	}
	if strings.HasSuffix(req.URL.Path, "/instance/region") {
		return httpResponse(req, fetch.Reply{Status: http.StatusOK}), nil
	}
	return httpResponse(req, fetch.Reply{Status: http.StatusBadRequest}), nil
}

// send sends one of the SDK's requests. A status other than 200 is an error.
func (d *dispatcher) send(req *http.Request) (fetch.Reply, error) {
	d.sent = true
	reply, err := fetch.Do(d.client, req.WithContext(d.ctx), service, maxBundle)
	if err != nil {
		return fetch.Reply{}, err
	}
	if reply.Status != http.StatusOK {
		return fetch.Reply{}, &fetch.Error{Public: service + " refused the request", Status: reply.Status}
	}
	return reply, nil
}

// httpResponse converts r to the response type that the SDK expects.
func httpResponse(req *http.Request, r fetch.Reply) *http.Response {
	return &http.Response{
		Status: http.StatusText(r.Status), StatusCode: r.Status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: r.Header, Body: io.NopCloser(bytes.NewReader(r.Body)), ContentLength: int64(len(r.Body)), Request: req,
	}
}

// disableSDKLog replaces the SDK's logger, which is global to the process. With OCI_GO_SDK_DEBUG, the SDK's logger
// would write replies to stderr, including the one with the secret.
var disableSDKLog = sync.OnceFunc(func() { common.SetSDKLogger(discardLogger{}) })

// discardLogger is an SDK logger that writes nothing.
type discardLogger struct{}

// LogLevel and Log implement the OCI SDK's logger interface.
func (discardLogger) LogLevel() int                 { return 0 }
func (discardLogger) Log(int, string, ...any) error { return nil }
