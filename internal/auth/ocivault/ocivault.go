// Package ocivault reads secrets of OCI Vault, with the OCI SDK.
//
//	read := ocivault.NewReader(ocivault.Config{SecretOCID: "ocid1.vaultsecret.…", AuthType: "instance_principal"})
//	secret, err := read(ctx)
package ocivault

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
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
	maxBundle = 64 << 10 // bytes of any reply that is read for the secret
)

// Config describes which secret to read, and with which credentials.
type Config struct {
	SecretOCID string
	// AuthType is "api_key" (also ""), "instance_principal" or "resource_principal".
	AuthType string
	// ConfigFile is for api_key: an OCI configuration file, whose section DEFAULT is used. Without it the SDK
	// chooses: ~/.oci/config, or the file that OCI_CONFIG_FILE names.
	ConfigFile string
	// Endpoint replaces the address of the region's vault service: scheme and host,
	// https, or http on the loopback address.
	Endpoint string
	// HTTPClient sends the requests. Its redirects are not followed. nil means a new client.
	HTTPClient *http.Client
}

// NewReader returns a function for token.ClientCredentialsConfig.Secret that reads the current version
// of a secret in OCI Vault. Each call reads the secret again, and the credentials' files and
// certificates too: calls are rare, and without a cache nothing can be out of date. Nothing is
// read before the first call. Errors are *fetch.Error.
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
		case d.failed != nil: // more precise than the SDK's error
			return auth.Secret{}, d.failed
		case err != nil && d.sent: // err may quote a reply
			return auth.Secret{}, &fetch.Error{Public: service + " gave no readable secret"}
		case err != nil:
			return auth.Secret{}, &fetch.Error{Public: service + " cannot be used: its configuration is invalid", Err: err}
		}
		return secret, nil
	}
}

// readSecret reads the secret. The dispatcher sends its requests.
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
	once := common.NoRetryPolicy()

	// The SDK runs the request on a goroutine that outlives a canceled context. The
	// dispatcher cancels the request itself, under the context of the read.
	got, err := client.GetSecretBundle(context.WithoutCancel(d.ctx), secrets.GetSecretBundleRequest{
		SecretId:        &cfg.SecretOCID,
		RequestMetadata: common.RequestMetadata{RetryPolicy: &once},
	})
	if err != nil {
		return auth.Secret{}, err
	}
	content, ok := got.SecretBundleContent.(secrets.Base64SecretBundleContentDetails)
	if !ok || content.Content == nil {
		return auth.Secret{}, fmt.Errorf("the bundle has no base64 content")
	}
	text, err := base64.StdEncoding.DecodeString(*content.Content)
	if err != nil {
		return auth.Secret{}, err
	}
	// A secret that was created with echo ends with a line feed by mistake.
	return auth.NewSecret(strings.TrimRight(string(text), "\r\n")), nil
}

// configurationProvider returns the credentials for the vault.
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
	return nil, fmt.Errorf("the auth type must be api_key, instance_principal or resource_principal")
}

// dispatcher sends the SDK's requests for one read: under the context of that read, bounded in
// size, without redirects. Only the goroutine of the read uses it.
//
// After the first failure it answers all later requests itself. Otherwise the SDK would ask a
// missing metadata service eight times and sleep for two minutes in all, even after the context
// has ended, and the federation service three times. The answer 400 ends the loop at the
// federation service. The loop at the metadata service asks for the region and ends only with a
// 200; then the SDK asks for the certificate and gets the 400.
type dispatcher struct {
	ctx    context.Context
	client *http.Client
	sent   bool  // a request was sent
	failed error // the first failure, a *fetch.Error
}

// Do implements common.HTTPRequestDispatcher.
func (d *dispatcher) Do(req *http.Request) (*http.Response, error) {
	if d.failed == nil {
		d.sent = true
		reply, err := fetch.Do(d.client, req.WithContext(d.ctx), service, maxBundle)
		if err == nil && reply.Status == http.StatusOK {
			return httpResponse(req, reply), nil
		}
		d.failed = err
		if err == nil {
			d.failed = &fetch.Error{Public: service + " refused the request", Status: reply.Status}
		}
	}
	if strings.HasSuffix(req.URL.Path, "/instance/region") {
		return httpResponse(req, fetch.Reply{Status: http.StatusOK}), nil
	}
	return httpResponse(req, fetch.Reply{Status: http.StatusBadRequest}), nil
}

// httpResponse returns the reply as the response that the SDK expects.
func httpResponse(req *http.Request, r fetch.Reply) *http.Response {
	return &http.Response{
		Status: http.StatusText(r.Status), StatusCode: r.Status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: r.Header, ContentLength: int64(len(r.Body)), Body: io.NopCloser(bytes.NewReader(r.Body)), Request: req,
	}
}

// disableSDKLog replaces the SDK's logger, which is one per process. With OCI_GO_SDK_DEBUG, it
// would write replies to stderr, also the one with the secret.
var disableSDKLog = sync.OnceFunc(func() { common.SetSDKLogger(discardLogger{}) })

// discardLogger is a logger of the SDK that writes nothing.
type discardLogger struct{}

// LogLevel and Log implement the logger of the OCI SDK.
func (discardLogger) LogLevel() int                 { return 0 }
func (discardLogger) Log(int, string, ...any) error { return nil }
