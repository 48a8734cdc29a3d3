package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/token"
	"answerd/internal/llm"
	"answerd/internal/tlsconfig"
)

const (
	modelListTimeout = 10 * time.Second // for one request for the list of models
	connectTimeout   = 10 * time.Second // for a connection to the hook service, including the TLS handshake
	maxModelList     = 4 << 20          // bytes of a list that are read
	maxListedModels  = 10               // model ids that a line of the report names
)

// modelEndpoint is an HTTP endpoint that serves models.
type modelEndpoint struct {
	urlSetting, keySetting string // the settings to correct if the URL or the key is wrong
	baseURL                string
	key                    auth.Secret
	headers, query         map[string]string // sent with every request
	tls                    *tlsconfig.Source // nil means the system's roots and no client certificate
	models                 []string          // ids of the configured models, as the endpoint knows them
}

// modelEndpoints returns the endpoints of all configured models: the one at LLM_BASE_URL if a model uses it, and one
// for each model that hasOwnEndpoint. It reads the API keys of models from their files.
func (c *config) modelEndpoints() []modelEndpoint {
	shared := modelEndpoint{urlSetting: "LLM_BASE_URL", keySetting: "LLM_API_KEY", baseURL: c.LLMBaseURL, key: c.LLMAPIKey, tls: c.certificates.llm}
	var own []modelEndpoint
	for _, profile := range c.servedModels() {
		if hasOwnEndpoint(profile) {
			own = append(own, c.ownEndpoint(profile, shared))
		} else {
			shared.models = append(shared.models, upstreamModel(profile))
		}
	}
	if len(shared.models) == 0 {
		return own // every model has an endpoint of its own
	}
	return append([]modelEndpoint{shared}, own...)
}

// ownEndpoint returns the endpoint of profile. What profile does not set comes from shared, the endpoint at
// LLM_BASE_URL, by the same rules as in endpointConfig.
func (c *config) ownEndpoint(profile llm.Profile, shared modelEndpoint) modelEndpoint {
	endpoint := shared
	endpoint.models = []string{upstreamModel(profile)}
	endpoint.headers, endpoint.query = profile.Headers, profile.Query
	if profile.BaseURL != "" {
		endpoint.baseURL, endpoint.urlSetting = profile.BaseURL, "MODELS_FILE, base_url of "+profile.ID
		endpoint.key, endpoint.tls = auth.Secret{}, nil
	}
	if certificate := c.modelCertificates.models[profile.ID]; certificate != nil {
		endpoint.tls = certificate
	}
	key := profile.APIKey
	if profile.APIKeyFile != "" {
		key, _ = readSecretText(profile.APIKeyFile) // if that fails, the endpoint's answer shows that the key is missing
	}
	hasOwnKey := key != "" || profile.APIKeyFile != ""
	if hasOwnKey || profile.BaseURL != "" { // LLM_API_KEY is never sent to another URL.
		endpoint.key, endpoint.keySetting = auth.NewSecret(key), "MODELS_FILE, api_key of "+profile.ID
	}
	return endpoint
}

// endpointState is the result of probing an endpoint.
type endpointState struct {
	state  string // reachable, remark (usable, but not as expected) or failed
	reason string // for the report
	step   string // what the operator can do; "" unless the state is failed
}

// checkModelEndpoints probes each model endpoint and prints its state. It returns the next step for each that failed.
func checkModelEndpoints(ctx context.Context, c config, stdout io.Writer) (nextSteps []string) {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MODEL ENDPOINT\tSTATE\tREASON")
	for _, e := range c.modelEndpoints() {
		result := e.probe(ctx)
		fmt.Fprintf(table, "%s\t%s\t%s\n", publicURL(e.baseURL), result.state, result.reason)
		if result.step != "" {
			nextSteps = append(nextSteps, result.step)
		}
	}
	table.Flush()
	fmt.Fprintln(stdout)
	return nextSteps
}

// probe asks the endpoint for its list of models and returns the endpoint's state. Some usable endpoints have no such
// list, so a missing list is a remark and not a failure.
func (e *modelEndpoint) probe(ctx context.Context) endpointState {
	failed := func(reason, setting, step string) endpointState {
		return endpointState{state: "failed", reason: reason, step: setting + ": " + step}
	}
	status, ids, err := e.listModels(ctx, "")
	switch {
	case err != nil:
		return failed("no connection: "+err.Error(), e.urlSetting,
			"start the endpoint at "+publicURL(e.baseURL)+", or correct the URL; HTTPS_PROXY and HTTP_PROXY apply")
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		why := "refuses the key"
		if e.key.IsZero() {
			why = "wants a key"
		}
		return failed(fmt.Sprintf("it %s (HTTP %d)", why, status), e.keySetting, "set the key of "+publicURL(e.baseURL))
	case status == http.StatusOK && ids != nil:
		return e.compareModels(ids)
	}
	if suggested, ok := e.suggestVersionedURL(ctx); ok {
		return failed("it has no models there; did you mean "+suggested+"?", e.urlSetting, "set it to "+suggested)
	}
	switch {
	case status >= 300 && status < 400:
		return failed(fmt.Sprintf("it redirects (HTTP %d), which answerd does not follow", status),
			e.urlSetting, "set it to the URL that the redirect leads to")
	case status >= 500 || status == http.StatusTooManyRequests:
		return failed(fmt.Sprintf("it answers HTTP %d", status), e.urlSetting, "look into the endpoint's own log, or try again later")
	case status == http.StatusOK:
		return failed("it sends something that is not a list of models",
			e.urlSetting, "set it to the URL of an OpenAI-compatible API, up to and including /v1")
	}
	return endpointState{"remark", fmt.Sprintf("it does not list its models (HTTP %d); answerd check -ask asks a question", status), ""}
}

// compareModels returns the state of an endpoint that lists the model ids in ids. The endpoint is reachable if all
// configured models are among them. Otherwise the state is a remark and not a failure, because some endpoints accept
// more models than they list.
func (e *modelEndpoint) compareModels(ids []string) endpointState {
	var missing []string
	for _, id := range e.models {
		if !slices.Contains(ids, id) {
			missing = append(missing, id)
		}
	}
	if len(missing) == 0 {
		return endpointState{"reachable", fmt.Sprintf("%d models", len(ids)), ""}
	}
	listed := strings.Join(ids[:min(len(ids), maxListedModels)], ", ")
	if len(ids) > maxListedModels {
		listed += ", …"
	}
	return endpointState{"remark", fmt.Sprintf("it does not list %s; it lists: %s", strings.Join(missing, ", "), cmp.Or(listed, "none")), ""}
}

// suggestVersionedURL looks for a list of models below the base URL with /v1 appended, because users often leave out
// /v1. If the endpoint lists its models there, or refuses only the key, it returns that URL without its secret parts,
// and true. Otherwise ok is false.
func (e *modelEndpoint) suggestVersionedURL(ctx context.Context) (suggested string, ok bool) {
	u, err := url.Parse(e.baseURL)
	if err != nil || strings.HasSuffix(strings.TrimSuffix(u.Path, "/"), "/v1") {
		return "", false
	}
	status, ids, err := e.listModels(ctx, "v1")
	refusesKey := status == http.StatusUnauthorized || status == http.StatusForbidden
	if err != nil || ids == nil && !refusesKey {
		return "", false
	}
	return publicURL(u.JoinPath("v1").String()), true
}

// listModels sends GET {base}/{path}/models. err means that no response arrived. ids is nil unless the response is 200
// with a list of models; an empty list gives a non-nil empty slice.
func (e *modelEndpoint) listModels(ctx context.Context, path string) (status int, ids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, modelListTimeout)
	defer cancel()
	req, err := e.newListRequest(ctx, path)
	if err != nil {
		return 0, nil, errors.New("not a URL")
	}

	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	var sender http.RoundTripper = transport
	if e.tls != nil {
		withCertificates := e.tls.Transport(transport)
		defer withCertificates.CloseIdleConnections()
		sender = withCertificates
	}
	resp, err := sender.RoundTrip(req) // not http.Client, which would follow a redirect and could send the key to another host
	if err != nil {
		return 0, nil, fetch.WithoutReply(err)
	}
	defer resp.Body.Close()

	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, nil, nil
	}
	return resp.StatusCode, decodeModelIDs(io.LimitReader(resp.Body, maxModelList)), nil
}

// decodeModelIDs returns the ids in body, a list of models. It returns nil if body is not such a list, and a non-nil
// empty slice if the list is empty.
func decodeModelIDs(body io.Reader) []string {
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if json.NewDecoder(body).Decode(&list) != nil || list.Data == nil {
		return nil
	}
	ids := []string{}
	for _, m := range list.Data {
		ids = append(ids, fmt.Sprintf("%.100s", m.ID)) // a long id would make the report unreadable
	}
	return ids
}

// newListRequest returns the request GET {base}/{path}/models, with the endpoint's key, headers and query parameters.
func (e *modelEndpoint) newListRequest(ctx context.Context, path string) (*http.Request, error) {
	base, err := url.Parse(e.baseURL)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath(path, "models").String(), nil)
	if err != nil {
		return nil, err
	}
	if password, ok := base.User.Password(); ok {
		req.SetBasicAuth(base.User.Username(), password)
	}
	if !e.key.IsZero() {
		req.Header.Set("Authorization", "Bearer "+e.key.Reveal())
	}
	for name, value := range e.headers {
		req.Header.Set(name, value)
	}
	query := req.URL.Query()
	for name, value := range e.query {
		query.Set(name, value)
	}
	req.URL.RawQuery = query.Encode()
	return req, nil
}

// publicURL returns the URL s without the parts that may be secret: user, password and query. If s is not a URL, it
// returns a text that says so.
func publicURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(not a URL)"
	}
	u.User, u.RawQuery = nil, ""
	return u.String()
}

// checkToken fetches the service's own JWT and prints the outcome. It returns the next step if that fails. If tokens is
// nil, the service has no such JWT, and checkToken does nothing.
func checkToken(ctx context.Context, cfg config, tokens *token.ClientCredentials, stdout io.Writer) (nextSteps []string) {
	if tokens == nil {
		return nil
	}
	_, err := tokens.Token(ctx)
	if err != nil {
		nextSteps = append(nextSteps, "IAM_BASE_URL: correct it, or IAM_CLIENT_ID, IAM_CLIENT_SECRET and SCOPE, so that the IAM issues a token")
	}
	fmt.Fprintf(stdout, "token from %s: %s\n\n", publicURL(cfg.tokenURL()), fetchResult(err))
	return nextSteps
}

// checkSigningKeys fetches the keys that verify callers' tokens and prints the outcome. If that fails, it returns the
// next step, because answerd refuses every token without the keys. Without AUTH_ISSUER it does nothing. An error means
// that the settings cannot be used.
func checkSigningKeys(ctx context.Context, cfg config, stdout io.Writer) (nextSteps []string, err error) {
	if cfg.AuthIssuer == "" {
		return nil, nil
	}
	verifier, err := newVerifier(cfg, slog.New(slog.DiscardHandler)) // the report says what the verifier would log
	if err != nil {
		return nil, err
	}
	defer verifier.Close()
	err = verifier.FetchKeys(ctx)
	fmt.Fprintf(stdout, "signing keys of %s: %s\n\n", publicURL(cfg.AuthIssuer), fetchResult(err))
	switch {
	case err == nil:
		return nil, nil
	case cfg.AuthJWKSURL == "":
		return []string{"AUTH_ISSUER: correct it, so that it is the issuer in its own metadata, or set AUTH_JWKS_URL"}, nil
	}
	return []string{"AUTH_JWKS_URL: correct it, or IAM_TLS_CA_FILE, so that it answers with the issuer's keys"}, nil
}

// checkHooks connects to the operator's hook service, with TLS for an https URL, and prints the outcome. It returns the
// next step if the connection fails. It sends no request, because the service might act on it. If requests would use a
// proxy, it does not connect, because the proxy would answer in the service's place. Without HOOKS_URL it does nothing.
func checkHooks(ctx context.Context, cfg config, stdout io.Writer) (nextSteps []string) {
	if cfg.HooksURL == "" {
		return nil
	}
	result := "connected"
	switch err := connectTo(ctx, cfg.HooksURL); {
	case errors.Is(err, errProxied):
		result = "not tried, because " + err.Error()
	case err != nil:
		result = "failed: " + err.Error()
		nextSteps = []string{"HOOKS_URL: start the service, or correct the URL or the service's certificate"}
	}
	fmt.Fprintf(stdout, "hooks at %s: %s\n\n", publicURL(cfg.HooksURL), result)
	return nextSteps
}

// errProxied is the error of connectTo if requests to the URL would use a proxy.
var errProxied = errors.New("HTTPS_PROXY or HTTP_PROXY applies")

// connectTo opens and closes a connection to the host of rawURL, an http or https URL. It returns errProxied without
// connecting if requests would use a proxy.
func connectTo(ctx context.Context, rawURL string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, rawURL, nil)
	if err != nil {
		return errors.New("not a URL")
	}
	if proxy, err := http.ProxyFromEnvironment(req); proxy != nil || err != nil { // err may contain the proxy's password
		return errProxied
	}
	dialer := &net.Dialer{Timeout: connectTimeout}
	dial, defaultPort := dialer.DialContext, "80"
	if req.URL.Scheme == "https" {
		dial, defaultPort = (&tls.Dialer{NetDialer: dialer}).DialContext, "443"
	}
	conn, err := dial(ctx, "tcp", net.JoinHostPort(req.URL.Hostname(), cmp.Or(req.URL.Port(), defaultPort)))
	if err != nil {
		return err
	}
	return conn.Close()
}
