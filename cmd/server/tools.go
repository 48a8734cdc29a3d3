package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/auth/ocivault"
	"answerd/internal/auth/sealed"
	"answerd/internal/auth/token"
	"answerd/internal/event"
	"answerd/internal/help"
	"answerd/internal/mcp"
	mcpconfig "answerd/internal/mcp/config"
	"answerd/internal/telemetry"
	"answerd/internal/values"
)

// toolset holds the client of the MCP servers and the source of the service's own token.
type toolset struct {
	client *mcp.Client
	tokens *token.ClientCredentials // nil without ENABLE_JWT_TOKEN
	files  *fileWatch               // watches the configuration; created before it was read

	warnedAboutSignIns bool // warnAboutSignIns has logged its warning
}

// close ends the MCP sessions, and then closes the source of tokens, because ending a session may need a token.
func (t toolset) close() {
	t.client.Close()
	if t.tokens != nil {
		t.tokens.Close()
	}
}

// connectTools starts to connect to the servers of MCP_URL and MCP_CONFIG_PATH. It does not wait for them, so that a
// server that is down does not keep the service from starting. opts holds the options that depend on the command;
// connectTools adds those that come from settings. The caller must close the toolset. Every error is a *configError.
func connectTools(cfg config, opts mcp.Options) (toolset, error) {
	tools := toolset{files: newFileWatch(cfg.MCPConfigPath, cfg.pinsPath())}
	servers, warnings, err := mcpServers(cfg)
	if err != nil {
		return toolset{}, err
	}
	tools.watchFiles(cfg, servers) // before mcp.New reads the TLS files, so that a change in between is noticed
	logWarnings(warnings, opts.Logger)
	warnAboutCallers(cfg, servers, opts.Logger)
	tools.warnAboutSignIns(cfg, servers, opts.Logger)
	opts.Timeout = cfg.Timeout
	opts.Version = version
	opts.Pins = cfg.pinsPath()
	if cfg.MaxConcurrentCalls != nil {
		opts.MaxConcurrentCalls = *cfg.MaxConcurrentCalls
	}
	opts.MaxToolBytes = maxToolBytes()
	opts.RedirectURL, opts.TokenTLS = cfg.redirectURL(), cfg.certificates.iam

	if cfg.EnableJWTToken {
		if tools.tokens, err = newTokens(cfg, opts.Logger); err != nil {
			return toolset{}, err
		}
		opts.Service = tools.tokens
	}
	if tools.client, err = mcp.New(servers, opts); err != nil {
		if tools.tokens != nil {
			tools.tokens.Close()
		}
		setting := "MCP_CONFIG_PATH"
		if cfg.MCPConfigPath == "" {
			setting = "MCP_URL"
		}
		return toolset{}, &configError{setting, err.Error()}
	}
	return tools, nil
}

// signIns returns the store that keeps users' sign-ins in the event log. Without TOKENS_KEY_FILE it returns nil, which
// keeps them in memory.
func (c *config) signIns(log event.Log, logger *slog.Logger) *sealed.Store {
	if c.tokenKeys == nil {
		return nil
	}
	return sealed.New(c.tokenKeys, log, logger)
}

// toolNames returns the store that keeps tool names for the next process. It returns nil if log is in memory: then no
// run outlives this process, so nothing can refer to the names.
func (c *config) toolNames(log event.Log) values.Store {
	if c.EventsURL.IsZero() {
		return nil
	}
	return log
}

// watchFiles sets the files that cause a reload when they change: mcp.json, the pins, and the TLS files of enabled
// servers.
func (t *toolset) watchFiles(c config, servers []mcpconfig.Server) {
	paths := []string{c.MCPConfigPath, c.pinsPath()}
	for i := range servers {
		if !servers[i].Disabled {
			paths = append(paths, servers[i].TLS.Paths()...)
		}
	}
	t.files.setPaths(paths...)
}

// mcpServers returns the server of MCP_URL followed by those in the file at MCP_CONFIG_PATH. warnings are about unknown
// members of that file. Every error is a *configError.
func mcpServers(cfg config) (servers []mcpconfig.Server, warnings []string, err error) {
	if cfg.MCPURL != "" {
		single, err := mcpconfig.SingleServer(cfg.MCPURL)
		if err != nil {
			return nil, nil, &configError{"MCP_URL", err.Error()}
		}
		single.Approval = mcpconfig.Approval(cfg.MCPApproval)
		servers = append(servers, single)
	}
	if cfg.MCPConfigPath == "" {
		return servers, nil, nil
	}
	data, err := os.ReadFile(cfg.MCPConfigPath)
	if err != nil {
		return nil, nil, &configError{"MCP_CONFIG_PATH", "cannot be read: " + fileReason(err)}
	}
	fromFile, warnings, err := mcpconfig.Parse(data, cfg.lookup)
	if err != nil {
		return nil, nil, &configError{"MCP_CONFIG_PATH", err.Error()}
	}
	for _, s := range fromFile {
		if s.Auth == mcpconfig.AuthJWT && !s.Disabled && !cfg.EnableJWTToken {
			reason := fmt.Sprintf("server %q, auth: type jwt needs ENABLE_JWT_TOKEN=true, or its calls would have no token", s.Name)
			return nil, nil, &configError{"MCP_CONFIG_PATH", reason}
		}
	}
	return append(servers, fromFile...), warnings, nil
}

// logWarnings logs the warnings of mcpServers.
func logWarnings(warnings []string, logger *slog.Logger) {
	for _, w := range warnings {
		logger.Warn("mcp.json: "+w, "help", "docs/mcp-servers.md#members-of-a-server")
	}
}

// warnAboutCallers logs the problems that MCP servers have without inbound authentication. Some servers cannot be used
// at all, because they need a token from the caller. Others use the first person's sign-in for all callers. That is no
// problem on a loopback address, where usually only one person calls.
func warnAboutCallers(c config, servers []mcpconfig.Server, logger *slog.Logger) {
	if c.AuthIssuer != "" {
		return
	}
	host, _, _ := net.SplitHostPort(c.Addr)
	for _, s := range servers {
		switch {
		case s.Disabled:
		case s.Auth.NeedsCallerToken():
			logger.Warn("MCP server is used on behalf of callers, but they have no token: AUTH_ISSUER is not set", "mcp_server", s.Name, help.Delegation.Attr())
		case s.Auth.IsDelegated() && !fetch.IsLoopback(host):
			logger.Warn("the first sign-in to an MCP server is used for all callers: without AUTH_ISSUER they cannot be told apart", "mcp_server", s.Name, help.Delegation.Attr())
		}
	}
}

// warnAboutSignIns warns that users must sign in again after a restart although the event log is durable. It logs this
// once per toolset, as soon as an enabled server uses sign-ins.
func (t *toolset) warnAboutSignIns(c config, servers []mcpconfig.Server, logger *slog.Logger) {
	if t.warnedAboutSignIns || c.EventsURL.IsZero() || c.tokenKeys != nil {
		return
	}
	for i := range servers {
		if s := &servers[i]; !s.Disabled && s.Auth == mcpconfig.AuthAuthorizationCode {
			t.warnedAboutSignIns = true
			logger.Warn("users' sign-ins to MCP servers are in memory and end with the process: TOKENS_KEY_FILE is not set", "mcp_server", s.Name, help.StoredSignIns.Attr())
			return
		}
	}
}

// newTokens returns the source of the service's own JWT. It fetches no token. The client secret comes from the file or
// the value of IAM_CLIENT_SECRET, or else from OCI Vault. The caller must close the source. Every error is a
// *configError.
func newTokens(c config, logger *slog.Logger) (*token.ClientCredentials, error) {
	secret := token.FixedSecret(c.IAMClientSecret)
	if current := c.currentSecret("IAM_CLIENT_SECRET", c.IAMClientSecret, logger); current != nil {
		secret = func(context.Context) (auth.Secret, error) { return current(), nil }
	}
	if c.IAMClientSecret.IsZero() {
		secret = ocivault.NewReader(ocivault.Config{SecretOCID: c.SecretOCID, AuthType: c.OCIAuthType})
	}
	tokens, err := token.NewClientCredentials(token.ClientCredentialsConfig{
		TokenURL: c.tokenURL(), ClientID: c.IAMClientID, Secret: secret, Scope: c.Scope,
		HTTPClient: c.certificates.client, Logger: logger,
	})
	if err != nil {
		return nil, &configError{"IAM_BASE_URL", err.Error()}
	}
	return tokens, nil
}

// observeServers creates the metrics of MCP servers. Each export reads the current values from tools.
func observeServers(tel *telemetry.Telemetry, tools *mcp.Client) error {
	meter := tel.Meter("answerd/mcp")
	var errs []error
	newGauge := func(name, description string) metric.Int64ObservableGauge {
		gauge, err := meter.Int64ObservableGauge(name, metric.WithDescription(description))
		errs = append(errs, err)
		return gauge
	}
	state := newGauge("answerd.mcp.server.state", "1 for the state that an MCP server is in.")
	disabled := newGauge("answerd.mcp.server.tools.disabled", "Tools of an MCP server that are disabled until their definitions are accepted.")
	limit := newGauge("answerd.mcp.server.concurrency.limit", "Tool calls that may be in flight to an MCP server at present.")
	omitted := newGauge("answerd.mcp.server.tools.omitted", "Tools of an MCP server that are left out: not valid, or the list is too large.")
	_, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, s := range tools.Servers() {
			name := attribute.String("mcp.server.name", s.Name)
			o.ObserveInt64(state, 1, metric.WithAttributes(name, attribute.String("state", string(s.State))))
			o.ObserveInt64(disabled, int64(len(s.DisabledTools)), metric.WithAttributes(name))
			o.ObserveInt64(limit, int64(s.ConcurrencyLimit), metric.WithAttributes(name))
			o.ObserveInt64(omitted, int64(s.OmittedTools), metric.WithAttributes(name))
		}
		return nil
	}, state, disabled, limit, omitted)
	if err := errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("create the metrics of MCP servers: %w", err)
	}
	return nil
}

// startReloading reloads the configuration of the MCP servers when a file of watchFiles changes, and at SIGHUP, until
// end is called. It runs even without any file, so that SIGHUP never ends the process. If mcp.json cannot be used, all
// servers stay as they are. Otherwise servers with an unchanged configuration keep their sessions.
func (t *toolset) startReloading(ctx context.Context, cfg config, logger *slog.Logger) (end func()) {
	return startFollowing(ctx, t.files, "MCP configuration", logger, func() (slog.Attr, error) {
		t.client.ReloadTLS() // even if mcp.json is refused, the current servers need new certificates
		servers, warnings, err := mcpServers(cfg)
		if err != nil {
			return slog.Attr{}, err
		}
		t.watchFiles(cfg, servers)
		if err := t.client.Reload(servers); err != nil {
			return slog.Attr{}, err
		}
		logWarnings(warnings, logger)
		warnAboutCallers(cfg, servers, logger)
		t.warnAboutSignIns(cfg, servers, logger)
		return slog.Int("servers", len(servers)), nil
	})
}
