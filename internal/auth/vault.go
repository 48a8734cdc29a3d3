package auth

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/oracle/oci-go-sdk/v65/common"
	principal "github.com/oracle/oci-go-sdk/v65/common/auth"
	"github.com/oracle/oci-go-sdk/v65/secrets"
)

const (
	vaultService = "OCI Vault"
	maxBundle    = 64 << 10 // bytes of any reply on the way to the secret
)

// VaultConfig says where OCI Vault keeps a secret, and as whom to read it.
type VaultConfig struct {
	SecretOCID string
	// AuthType is "api_key" (also ""), "instance_principal" or "resource_principal".
	AuthType string
	// ConfigFile and Profile are for api_key: an OCI configuration file and the
	// section in it, "" for DEFAULT. Without a file it is the SDK's own choice:
	// ~/.oci/config, or what OCI_CONFIG_FILE names.
	ConfigFile, Profile string
	// Endpoint replaces the address of the region's vault service: scheme and host,
	// https, or http on the loopback address.
	Endpoint string
	// HTTPClient is used with its redirects off; nil means one of our own.
	HTTPClient *http.Client
}

// VaultSecret gives the current version of a secret that OCI Vault keeps, for
// ClientCredentialsConfig.Secret. Every call reads it anew, with the principal's files
// and certificates: calls are rare, and what is kept nowhere is never out of date.
// Nothing is read before the first call. Errors are *FetchError.
func VaultSecret(cfg VaultConfig) func(context.Context) (Secret, error) {
	silenceSDK()
	return func(ctx context.Context) (Secret, error) {
		client := outboundClient(cfg.HTTPClient)
		if cfg.HTTPClient == nil {
			defer client.CloseIdleConnections()
		}
		d := &dispatcher{ctx: ctx, client: client}
		secret, err := cfg.read(d)
		switch {
		case d.failed != nil: // says more than what the SDK made of it
			return Secret{}, d.failed
		case err != nil && d.sent: // may quote a reply
			return Secret{}, &FetchError{Public: vaultService + " gave no secret that can be read"}
		case err != nil:
			return Secret{}, &FetchError{Public: vaultService + " cannot be asked, its configuration is not usable", Err: err}
		}
		return secret, nil
	}
}

func (cfg VaultConfig) read(d *dispatcher) (Secret, error) {
	if cfg.Endpoint != "" {
		if err := CheckEndpoint("the vault endpoint", cfg.Endpoint); err != nil {
			return Secret{}, err
		}
	}
	provider, err := cfg.principal(d)
	if err != nil {
		return Secret{}, err
	}
	client, err := secrets.NewSecretsClientWithConfigurationProvider(provider)
	if err != nil {
		return Secret{}, err
	}
	client.HTTPClient = d
	if cfg.Endpoint != "" {
		client.Host = cfg.Endpoint
	}
	once := common.NoRetryPolicy()
	// The SDK runs the request on a goroutine that it leaves behind when its
	// context ends. Ours ends the request itself, in the dispatcher.
	got, err := client.GetSecretBundle(context.WithoutCancel(d.ctx), secrets.GetSecretBundleRequest{
		SecretId:        &cfg.SecretOCID,
		RequestMetadata: common.RequestMetadata{RetryPolicy: &once},
	})
	if err != nil {
		return Secret{}, err
	}
	content, ok := got.SecretBundleContent.(secrets.Base64SecretBundleContentDetails)
	if !ok || content.Content == nil {
		return Secret{}, fmt.Errorf("the bundle has no base64 content")
	}
	text, err := base64.StdEncoding.DecodeString(*content.Content)
	if err != nil {
		return Secret{}, err
	}
	// A secret made with echo ends in a line feed that nobody meant.
	return NewSecret(strings.TrimRight(string(text), "\r\n")), nil
}

// principal is whom the vault sees asking.
func (cfg VaultConfig) principal(d *dispatcher) (common.ConfigurationProvider, error) {
	switch cfg.AuthType {
	case "", "api_key":
		if cfg.ConfigFile == "" {
			return common.DefaultConfigProvider(), nil
		}
		profile := cfg.Profile
		if profile == "" {
			profile = "DEFAULT"
		}
		return common.ConfigurationProviderFromFileWithProfile(cfg.ConfigFile, profile, "")
	case "instance_principal":
		return principal.InstancePrincipalConfigurationProviderWithCustomClient(
			func(common.HTTPRequestDispatcher) (common.HTTPRequestDispatcher, error) { return d, nil })
	case "resource_principal":
		return principal.ResourcePrincipalConfigurationProvider()
	}
	return nil, fmt.Errorf("the auth type is none of api_key, instance_principal, resource_principal")
}

// dispatcher sends the SDK's requests of one read: under the context of that read,
// bounded, following no redirect. Only the goroutine that reads uses it.
//
// The first failure is kept, and every later request is answered here. Left alone, the
// SDK asks a metadata service that isn't there eight times, sleeping two minutes in all
// whatever the context says, and the federation service three times. A 400 ends the
// second kind of loop; the first, which asks for the region, ends only with a 200, and
// then the certificate is asked for and gets the 400.
type dispatcher struct {
	ctx    context.Context
	client *http.Client
	sent   bool  // a request was made
	failed error // a *FetchError; what the first failure was
}

// Do implements common.HTTPRequestDispatcher.
func (d *dispatcher) Do(req *http.Request) (*http.Response, error) {
	if d.failed == nil {
		d.sent = true
		got, err := Do(d.client, req.WithContext(d.ctx), vaultService, maxBundle)
		if err == nil && got.Status == http.StatusOK {
			return answer(req, got), nil
		}
		if d.failed = err; err == nil {
			d.failed = &FetchError{Public: vaultService + " refused the request", Status: got.Status}
		}
	}
	if strings.HasSuffix(req.URL.Path, "/instance/region") {
		return answer(req, Reply{Status: http.StatusOK}), nil
	}
	return answer(req, Reply{Status: http.StatusBadRequest}), nil
}

// answer makes a response of a reply that was read.
func answer(req *http.Request, r Reply) *http.Response {
	return &http.Response{
		Status: http.StatusText(r.Status), StatusCode: r.Status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: r.Header, ContentLength: int64(len(r.Body)), Body: io.NopCloser(bytes.NewReader(r.Body)), Request: req,
	}
}

// silenceSDK keeps the SDK from writing replies, the secret among them, to stderr
// when OCI_GO_SDK_DEBUG is set. The SDK has one logger per process.
var silenceSDK = sync.OnceFunc(func() { common.SetSDKLogger(silent{}) })

type silent struct{}

func (silent) LogLevel() int                 { return 0 }
func (silent) Log(int, string, ...any) error { return nil }
