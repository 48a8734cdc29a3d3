package ocivault_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"answerd/internal/auth/authtest"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/ocivault"
	"answerd/internal/auth/token"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secretOCID = "ocid1.vaultsecret.oc1.test"

// vault is OCI Vault's secret retrieval service on a loopback port.
type vault struct {
	*httptest.Server
	reads  atomic.Int64
	answer atomic.Pointer[http.HandlerFunc]
	keyID  atomic.Pointer[string] // who asked last
}

func newVault(t *testing.T) *vault {
	v := &vault{}
	v.storeSecret(authtest.SecretCanary)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /20190301/secretbundles/{id}", func(w http.ResponseWriter, r *http.Request) {
		v.reads.Add(1)
		_, keyID, _ := strings.Cut(r.Header.Get("Authorization"), `keyId="`)
		keyID, _, _ = strings.Cut(keyID, `"`)
		v.keyID.Store(&keyID)
		if r.PathValue("id") != secretOCID || !strings.HasPrefix(r.Header.Get("Authorization"), "Signature ") {
			t.Errorf(`request for %q, authorization %q, want PathValue("id") %q, Authorization starting with "Signature "`, r.PathValue("id"), r.Header.Get("Authorization"), secretOCID)
		}
		(*v.answer.Load())(w, r)
	})
	v.Server = httptest.NewServer(mux)
	t.Cleanup(v.Close)
	return v
}

func (v *vault) handle(h http.HandlerFunc) { v.answer.Store(&h) }

func (v *vault) respond(status int, body string) {
	v.handle(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
}

func (v *vault) storeSecret(secret string) {
	v.respond(http.StatusOK, fmt.Sprintf(`{"secretId":%q,"versionNumber":1,"stages":["CURRENT","LATEST"],
		"secretBundleContent":{"contentType":"BASE64","content":%q}}`, secretOCID, base64.StdEncoding.EncodeToString([]byte(secret))))
}

// config reads from v with a throw-away API key.
func (v *vault) config(t *testing.T) ocivault.Config {
	dir := t.TempDir()
	key := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(authtest.RSAKey())})
	file := filepath.Join(dir, "config")
	text := fmt.Sprintf("[DEFAULT]\nuser=ocid1.user.u\ntenancy=ocid1.tenancy.t\nfingerprint=aa:bb\nregion=eu-frankfurt-1\nkey_file=%s\n",
		filepath.Join(dir, "key.pem"))
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "key.pem"), key, 0o600), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	return ocivault.Config{SecretOCID: secretOCID, ConfigFile: file, Endpoint: v.URL}
}

// onlyLoopback refuses to ask anybody beyond this machine: an instance principal that
// is set up wrongly would ask the real metadata service.
func onlyLoopback(t *testing.T) *http.Client {
	real := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(real.CloseIdleConnections)
	return &http.Client{Transport: authtest.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
		if fetch.CheckEndpoint("", "http://"+r.URL.Host) != nil {
			t.Errorf("request to %s, want nil", r.URL.Host)
			return nil, errors.New("beyond loopback")
		}
		return real.RoundTrip(r)
	})}
}

// newClientCredentials returns a source of tokens of i with the secret in v, and its log.
func newClientCredentials(t *testing.T, i *authtest.IAM, v *vault) (*token.ClientCredentials, *authtest.LogBuffer) {
	t.Helper()
	logged := &authtest.LogBuffer{}
	c, err := token.NewClientCredentials(token.ClientCredentialsConfig{
		TokenURL: i.URL + "/token", ClientID: "me", Secret: ocivault.NewReader(v.config(t)), Logger: logged.Logger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, logged
}

// The client secret from OCI Vault by SECRET_OCID, read when it is needed.
func TestVaultSecretIsReadAtFirstUse(t *testing.T) {
	i, v := authtest.NewIAM(t), newVault(t)
	v.storeSecret(authtest.SecretCanary + "\n")
	c, logged := newClientCredentials(t, i, v)
	var sent atomic.Value
	i.HandleToken(func(w http.ResponseWriter, r *http.Request) {
		_, escaped, _ := r.BasicAuth() // RFC 6749 section 2.3.1
		secret, _ := url.QueryUnescape(escaped)
		sent.Store(secret)
		_, _ = io.WriteString(w, `{"access_token":"`+authtest.TokenCanary+`","expires_in":3600}`)
	})
	if v.reads.Load() != 0 {
		t.Errorf("read before it was needed: reads %d, want 0", v.reads.Load())
	}
	for range 3 {
		if tok, err := c.Token(t.Context()); err != nil || tok.Reveal() != authtest.TokenCanary {
			t.Fatalf("got %v, want %v", err, authtest.TokenCanary)
		}
	}
	if v.reads.Load() != 1 || *v.keyID.Load() != "ocid1.tenancy.t/ocid1.user.u/aa:bb" {
		t.Errorf("got %d reads by %s, want 1, %q", v.reads.Load(), *v.keyID.Load(), "ocid1.tenancy.t/ocid1.user.u/aa:bb")
	}
	if sent.Load() != authtest.SecretCanary {
		t.Errorf("sent the secret %q, want %q", sent.Load(), authtest.SecretCanary)
	}
	authtest.CheckNoCanary(t, logged.String())
}

// A rotated secret is read once more.
func TestVaultSecretIsReadAgainAfterRotation(t *testing.T) {
	i, v := authtest.NewIAM(t), newVault(t)
	v.storeSecret("old")
	c, _ := newClientCredentials(t, i, v)
	old, err := c.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	v.storeSecret("new")

	i.HandleToken(func(w http.ResponseWriter, r *http.Request) {
		if _, secret, _ := r.BasicAuth(); secret != "new" {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"error":"invalid_client"}`)
			return
		}
		_, _ = io.WriteString(w, `{"access_token":"fresh","expires_in":3600}`)
	})

	if tok, err := c.Renew(t.Context(), old); err != nil || tok.Reveal() != "fresh" || v.reads.Load() != 2 {
		t.Errorf("got %v after %d reads, want %q, 2", err, v.reads.Load(), "fresh")
	}
}

// For the vault: one typed error, one request, nothing repeated.
func TestVaultMisbehaviorIsATypedError(t *testing.T) {
	v, other := newVault(t), newVault(t)
	bundle := func(content string) string {
		return `{"secretId":"x","versionNumber":1,"secretBundleContent":` + content + `}`
	}
	for name, answer := range map[string]struct {
		status int
		body   string
	}{
		"404":        {404, `{"code":"NotAuthorizedOrNotFound","message":"` + authtest.BodyCanary + `"}`},
		"401":        {401, `{"code":"NotAuthenticated","message":"` + authtest.BodyCanary + `"}`},
		"500":        {500, authtest.BodyCanary},
		"503":        {503, authtest.BodyCanary},
		"302":        {302, ""},
		"HTML":       {200, "<html>" + authtest.BodyCanary},
		"empty":      {200, ""},
		"no content": {200, bundle(`null`)},
		"not base64": {200, bundle(`{"contentType":"BASE64","content":"!` + authtest.BodyCanary + `"}`)},
		"other type": {200, bundle(`{"contentType":"` + authtest.BodyCanary + `","content":"AA=="}`)},
		"1 MiB":      {200, bundle(`{"contentType":"BASE64","content":"` + strings.Repeat("QUFB", 1<<18) + `"}`)},
	} {
		v.respond(answer.status, answer.body)
		if answer.status == http.StatusFound {
			v.handle(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL+r.URL.Path, answer.status) })
		}
		before := v.reads.Load()
		_, err := ocivault.NewReader(v.config(t))(t.Context())
		var refusal *fetch.Error
		if !errors.As(err, &refusal) || answer.status != 200 && refusal.Status != answer.status {
			t.Errorf("%s: %v, want a fetch error of status %d", name, err, answer.status)
			continue
		}
		authtest.CheckNoCanary(t, fmt.Sprintf("%v %+v", err, refusal.Err))
		if n := v.reads.Load() - before; n != 1 {
			t.Errorf("%s: got %d requests, want 1", name, n)
		}
	}
	if other.reads.Load() != 0 {
		t.Errorf("a redirect was followed: reads %d, want 0", other.reads.Load())
	}
}

func TestVaultReadEndsWithItsContext(t *testing.T) {
	v := newVault(t)
	ctx, cancel := context.WithCancel(t.Context())
	v.handle(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	if _, err := ocivault.NewReader(v.config(t))(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestVaultConfigurationIsCheckedAtFirstUse(t *testing.T) {
	v := newVault(t)
	for name, change := range map[string]func(*ocivault.Config){
		"auth type": func(c *ocivault.Config) { c.AuthType = "magic" },
		"file":      func(c *ocivault.Config) { c.ConfigFile += ".missing" },
		"endpoint":  func(c *ocivault.Config) { c.Endpoint = "http://vault.example" },
		"resource":  func(c *ocivault.Config) { c.AuthType = "resource_principal" },
	} {
		cfg := v.config(t)
		change(&cfg)
		_, err := ocivault.NewReader(cfg)(t.Context())
		var refusal *fetch.Error
		if !errors.As(err, &refusal) || refusal.Err == nil {
			t.Errorf("%s: %v, want an Error, an error", name, err)
		}
	}
	if v.reads.Load() != 0 {
		t.Errorf("the vault was asked: reads %d, want 0", v.reads.Load())
	}
}

// Left alone, the SDK would sleep for two minutes here.
func TestVaultInstancePrincipalFailsAtOnceOutsideOCI(t *testing.T) {
	v := newVault(t)
	asked := atomic.Int64{}
	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(metadata.Close)
	t.Setenv("OCI_METADATA_BASE_URL", metadata.URL)
	_, err := ocivault.NewReader(ocivault.Config{SecretOCID: secretOCID, AuthType: "instance_principal", Endpoint: v.URL, HTTPClient: onlyLoopback(t)})(t.Context())
	var refusal *fetch.Error
	if !errors.As(err, &refusal) || refusal.Status != http.StatusNotFound || asked.Load() != 1 {
		t.Errorf("got %v after %d requests, want a *fetch.Error, %v, 1", err, asked.Load(), http.StatusNotFound)
	}
}

// The whole way of an instance: metadata, federation, vault.
func TestVaultInstancePrincipalReadsTheSecret(t *testing.T) {
	v := newVault(t)
	cert, key := instanceCertificate(t)
	mux := http.NewServeMux()
	file := func(path string, body []byte) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) })
	}
	file("/instance/region", []byte("eu-frankfurt-1"))
	file("/identity/cert.pem", cert)
	file("/identity/intermediate.pem", cert)
	file("/identity/key.pem", key)

	session := authtest.SignRS256(authtest.RSAKey(), authtest.HeaderJSON(nil), authtest.ClaimsOf("auth", nil))
	mux.HandleFunc("POST /v1/x509", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(authtest.JSON{"token": session})
	})

	oci := httptest.NewServer(mux)
	t.Cleanup(oci.Close)
	t.Setenv("OCI_METADATA_BASE_URL", oci.URL)
	t.Setenv("OCI_SDK_AUTH_CLIENT_REGION_URL", oci.URL)
	secret, err := ocivault.NewReader(ocivault.Config{SecretOCID: secretOCID, AuthType: "instance_principal", Endpoint: v.URL, HTTPClient: onlyLoopback(t)})(t.Context())
	if err != nil || secret.Reveal() != authtest.SecretCanary || *v.keyID.Load() != "ST$"+session {
		t.Errorf("got %v, want %v, %q", err, authtest.SecretCanary, "ST$"+session)
	}
}

func instanceCertificate(t *testing.T) (cert, key []byte) {
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		Subject: pkix.Name{CommonName: "instance", OrganizationalUnit: []string{"opc-tenant:ocid1.tenancy.t"}}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &authtest.RSAKey().PublicKey, authtest.RSAKey())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: der}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(authtest.RSAKey())})
}
