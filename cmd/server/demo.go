package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"

	"answerd/internal/demo"
	"answerd/internal/telemetry"
)

const (
	demoClient   = "answerd-demo"                                    // OAuth client id of answerd at the demo's IAM
	demoQuestion = "What time is it in Tokyo, and what is 12.5 * 8?" // needs two tools
)

// demoCommand runs `answerd demo`, which starts answerd together with the services that it needs. With -only it runs
// just one of these services.
func demoCommand(ctx context.Context, args []string, environ environment, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	only := flags.String("only", "", "iam, mcp or model: run this part alone")
	addr := flags.String("addr", "127.0.0.1:0", "address of the part that runs alone")
	iam := flags.String("iam", "", "base URL of the IAM, for -only mcp; for -only iam its own, if that is not the address")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return &usageError{"usage: answerd demo [-only iam|mcp|model -addr host:port [-iam URL]]"}
	}
	logger, err := telemetry.NewLogger(stderr, cmp.Or(environ.get("LOG_LEVEL"), "warn"), false)
	if err != nil {
		return &configError{"LOG_LEVEL", "must be debug, info, warn or error"}
	}
	if *only != "" {
		return runDemoService(ctx, *only, *addr, *iam, environ, stdout, logger)
	}
	return runDemo(ctx, environ, stdout, stderr, logger)
}

// demoService is a running service of the demo. It has its own listener.
type demoService struct {
	url    string
	server *http.Server
	failed chan error // receives the error of server.Serve; buffered, so that its goroutine can end without a receiver
	close  func()     // releases what the handler uses
}

// serviceBuilder creates a service's handler, and the function that releases what the handler uses. url is the
// service's base URL, which is known only once its listener is open.
type serviceBuilder func(url string) (handler http.Handler, release func(), _ error)

// startDemoService listens at addr and serves the handler that build creates. The caller must call stopService.
func startDemoService(addr string, build serviceBuilder) (*demoService, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	service := &demoService{url: "http://" + listener.Addr().String(), failed: make(chan error, 1)}
	handler, release, err := build(service.url)
	if err != nil {
		listener.Close()
		return nil, err
	}
	service.server, service.close = newServer(handler), release
	go func() { service.failed <- service.server.Serve(listener) }()
	return service, nil
}

// stopService releases what the handler uses, closes the server with all connections, and waits for its goroutine.
func (p *demoService) stopService() {
	p.close()
	p.server.Close()
	<-p.failed
}

// noRelease is the release function of handlers that hold nothing.
func noRelease() {}

// buildIAM returns the builder of the IAM. The IAM issues tokens to the client demoClient, which authenticates with
// secret. If issuer is "", the issuer is the service's own base URL.
func buildIAM(issuer, secret string, logger *slog.Logger) serviceBuilder {
	return func(url string) (http.Handler, func(), error) {
		h, err := demo.NewIAM(demo.IAMConfig{Issuer: cmp.Or(issuer, url), ClientID: demoClient, ClientSecret: secret, Logger: logger})
		return h, noRelease, err
	}
}

// buildMCPServer returns the builder of the MCP server, which accepts tokens of issuer. hasPage says that browsers can
// reach the server. It then also offers a tool that sends people to one of its pages.
func buildMCPServer(issuer string, hasPage bool, logger *slog.Logger) serviceBuilder {
	return func(url string) (http.Handler, func(), error) {
		c := demo.MCPConfig{Issuer: issuer, JWKSURL: issuer + demo.JWKSPath, Logger: logger}
		if hasPage {
			c.URL = url
		}
		h, err := demo.NewMCPServer(c)
		if err != nil {
			return nil, nil, err
		}
		return h, h.Close, nil
	}
}

// buildModel is the serviceBuilder of the model stand-in.
func buildModel(string) (http.Handler, func(), error) {
	return demo.NewModel(demo.TokenDelay), noRelease, nil
}

// runDemoService runs one service of the demo at addr until ctx ends. only selects it: iam, mcp or model. iam is the
// issuer of the IAM. The compose file uses this to run each service in its own container.
func runDemoService(ctx context.Context, only, addr, iam string, environ environment, stdout io.Writer, logger *slog.Logger) error {
	var build serviceBuilder
	switch {
	case only == "iam":
		build = buildIAM(iam, cmp.Or(environ.get("IAM_CLIENT_SECRET"), "demo-secret"), logger)
	case only == "mcp" && iam != "":
		build = buildMCPServer(iam, false, logger) // no page: browsers may not reach a container at addr
	case only == "mcp":
		return &usageError{"answerd demo -only mcp needs -iam, the base URL of the IAM whose tokens it accepts"}
	case only == "model":
		build = buildModel
	default:
		return &usageError{"answerd demo -only takes iam, mcp or model"}
	}
	p, err := startDemoService(addr, build)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "answerd demo: %s at %s\n", only, p.url)
	select {
	case err := <-p.failed:
		return err
	case <-ctx.Done():
		p.stopService()
		return nil
	}
}

// runDemo starts the services on loopback, configures answerd to use them, and serves until ctx ends. It keeps the
// settings in environ, except those that connect the services. If environ has LLM_BASE_URL or OPENAI_API_KEY, the demo
// uses that model and starts no stand-in. The models in MODELS_FILE that have no base_url are at the stand-in too.
func runDemo(ctx context.Context, environ environment, stdout, stderr io.Writer, logger *slog.Logger) error {
	const freePort = "127.0.0.1:0"
	secret := rand.Text()
	iam, err := startDemoService(freePort, buildIAM("", secret, logger))
	if err != nil {
		return err
	}
	defer iam.stopService()
	// Users allow anonymous callers to reach the demo from another machine or from outside a container. Their browsers
	// then cannot reach the pages of the MCP server, which is on loopback.
	anonymous, _ := parseBool(environ.get("AUTH_INSECURE_ALLOW_ANONYMOUS")) // loadConfig reports the error
	hasPage := !anonymous
	// A tool's version contains the URL of its server, so an approval survives a restart only if the port is the same.
	mcpServer, err := startDemoService("127.0.0.1:8090", buildMCPServer(iam.url, hasPage, logger))
	if err != nil { // the port may be in use
		mcpServer, err = startDemoService(freePort, buildMCPServer(iam.url, hasPage, logger))
	}
	if err != nil {
		return err
	}
	defer mcpServer.stopService()

	settings := withDemoServices(environ, iam.url, secret, mcpServer.url)
	port := environ.get("PORT")
	portOnLoopback := environ.get("ADDR") == "" && port != "" && !anonymous
	if portOnLoopback {
		settings["ADDR"] = "127.0.0.1:" + port // the demo has no authentication
	}

	isReal := environ.get("LLM_BASE_URL") != "" || environ.get("OPENAI_API_KEY") != ""
	if !isReal {
		model, err := startDemoService(freePort, buildModel)
		if err != nil {
			return err
		}
		defer model.stopService()
		settings["LLM_BASE_URL"] = model.url + "/v1"
		if environ.get("MODELS_FILE") == "" { // otherwise the first model in the file is the default
			settings["DEFAULT_MODEL_ID"] = demo.ModelID
		}
	}

	c, err := loadConfig(settings)
	if settingErr, ok := errors.AsType[*configError](err); ok && settingErr.name == "DEFAULT_MODEL_ID" && c.usesOpenAI() {
		return &configError{settingErr.name, settingErr.reason + "; without OPENAI_API_KEY the demo uses its stand-in"}
	}
	if err != nil {
		return err
	}
	return serve(ctx, c, stderr, func(addr string) {
		printIntroduction(stdout, localAddr(addr), iam.url, settings["MCP_URL"], c.LLMBaseURL, isReal)
		if portOnLoopback {
			fmt.Fprintf(stdout, "Only this machine can reach it. If it runs in a container: docker run -e AUTH_INSECURE_ALLOW_ANONYMOUS=true -p 127.0.0.1:%s:%[1]s …\n", port)
		}
	})
}

// withDemoServices returns a copy of environ in which answerd uses the demo's IAM and MCP server. iam and mcpServer are
// their base URLs.
func withDemoServices(environ environment, iam, secret, mcpServer string) environment {
	settings := maps.Clone(environ)
	maps.Copy(settings, environment{
		"ENABLE_JWT_TOKEN": "true", "IAM_BASE_URL": iam, "IAM_TOKEN_URL": "", "SCOPE": demo.Scope,
		"IAM_CLIENT_ID": demoClient, "IAM_CLIENT_SECRET": secret, "IAM_CLIENT_SECRET_FILE": "", "SECRET_OCID": "",
		"MCP_URL": mcpServer + demo.MCPPath, "MCP_APPROVAL": cmp.Or(environ.get("MCP_APPROVAL"), "destructive"),
		"TLS_CERT_FILE": "", "TLS_KEY_FILE": "", // printIntroduction prints http addresses
		"LOG_LEVEL": cmp.Or(environ.get("LOG_LEVEL"), "warn"), "LLM_SHOW_ERRORS": "true",
	})
	return settings
}

// printIntroduction prints what is running and a command to try. addr is answerd's address; iam, mcpServer and model
// are URLs. isReal says that the model is not the demo's stand-in.
func printIntroduction(w io.Writer, addr, iam, mcpServer, model string, isReal bool) {
	kind := "a rule-based stand-in, not a language model"
	if isReal {
		kind = "yours"
	}
	fmt.Fprintf(w, `answerd demo, all of it on this machine:
  IAM         %s   issues the JWT that answerd sends
  MCP server  %s   verifies it and runs the tools
  model       %s   %s

Console: http://%s/
Try:
  curl -N http://%s/answer/stream -H 'Content-Type: application/json' -d '{"question":"%s"}'
`, iam, mcpServer, model, kind, addr, addr, demoQuestion)
}
