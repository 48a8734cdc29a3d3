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

// demoCommand runs `answerd demo`: answerd and the services that it needs, or with -only one of these services.
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

// demoService is one service of the demo with its own listener.
type demoService struct {
	url    string
	server *http.Server
	failed chan error // receives the error of server.Serve; buffered, so that the goroutine ends without a receiver
	close  func()     // ends what the handler uses
}

// serviceBuilder creates the handler of a service, and the function that ends what the handler uses. url is the base
// URL of the service, which is known only when its listener is open.
type serviceBuilder func(url string) (handler http.Handler, release func(), _ error)

// startDemoService serves the handler of build on a new listener at addr, until the caller calls stopService.
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

// stopService ends the service, cuts its connections and waits for the goroutine of its listener.
func (p *demoService) stopService() {
	p.close()
	p.server.Close()
	<-p.failed
}

// noRelease is for handlers that use nothing that has to be ended.
func noRelease() {}

// buildIAM returns the builder of the IAM, which issues tokens to demoClient with this secret. An empty issuer stands
// for the service's base URL.
func buildIAM(issuer, secret string, logger *slog.Logger) serviceBuilder {
	return func(url string) (http.Handler, func(), error) {
		h, err := demo.NewIAM(demo.IAMConfig{Issuer: cmp.Or(issuer, url), ClientID: demoClient, ClientSecret: secret, Logger: logger})
		return h, noRelease, err
	}
}

// buildMCPServer returns the builder of the MCP server, which accepts tokens of issuer. hasPage says that browsers can
// reach its listener: then the server has a tool that sends people to a page of the server.
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

// buildModel is the serviceBuilder of the stand-in model.
func buildModel(string) (http.Handler, func(), error) {
	return demo.NewModel(demo.TokenDelay), noRelease, nil
}

// runDemoService runs one service of the demo at addr until ctx ends; only is iam, mcp or model. iam is the issuer of
// the IAM. The compose file starts each service in a container in this way.
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

// demoServices are the services that runDemo has started.
type demoServices []*demoService

// start starts a service on a free port of the loopback interface, and returns its URL.
func (s *demoServices) start(build serviceBuilder) (url string, err error) {
	service, err := startDemoService("127.0.0.1:0", build)
	if err != nil {
		return "", err
	}
	*s = append(*s, service)
	return service.url, nil
}

// stop stops all services.
func (s *demoServices) stop() {
	for _, service := range *s {
		service.stopService()
	}
}

// runDemo starts the services on loopback, configures answerd to use them, and serves until ctx ends. The settings of
// environ stay, except for those that connect the services. If environ has a model endpoint or OPENAI_API_KEY, the demo
// uses that and starts no stand-in.
func runDemo(ctx context.Context, environ environment, stdout, stderr io.Writer, logger *slog.Logger) error {
	secret := rand.Text()
	var services demoServices
	defer services.stop()
	iam, err := services.start(buildIAM("", secret, logger))
	if err != nil {
		return err
	}
	// People allow anonymous callers in order to reach the demo from elsewhere, for example in a container. Then their
	// browsers cannot reach a page of the MCP server on loopback.
	anonymous, _ := parseBool(environ.get("AUTH_INSECURE_ALLOW_ANONYMOUS")) // loadConfig reports the error
	mcpServer, err := services.start(buildMCPServer(iam, !anonymous, logger))
	if err != nil {
		return err
	}

	settings := withDemoServices(environ, iam, secret, mcpServer)
	port := environ.get("PORT")
	portOnLoopback := environ.get("ADDR") == "" && port != "" && !anonymous
	if portOnLoopback {
		settings["ADDR"] = "127.0.0.1:" + port // the demo has no authentication
	}

	isReal := environ.get("LLM_BASE_URL") != "" || environ.get("OPENAI_API_KEY") != ""
	if !isReal {
		model, err := services.start(buildModel)
		if err != nil {
			return err
		}
		settings["LLM_BASE_URL"], settings["DEFAULT_MODEL_ID"] = model+"/v1", demo.ModelID
	}

	c, err := loadConfig(settings)
	if settingErr, ok := errors.AsType[*configError](err); ok && settingErr.name == "DEFAULT_MODEL_ID" && c.usesOpenAI() {
		return &configError{settingErr.name, settingErr.reason + "; without OPENAI_API_KEY the demo uses its stand-in"}
	}
	if err != nil {
		return err
	}
	return serve(ctx, c, stderr, func(addr string) {
		printIntroduction(stdout, localAddr(addr), iam, settings["MCP_URL"], c.LLMBaseURL, isReal)
		if portOnLoopback {
			fmt.Fprintf(stdout, "Only this machine can reach it. If it runs in a container: docker run -e AUTH_INSECURE_ALLOW_ANONYMOUS=true -p 127.0.0.1:%s:%[1]s …\n", port)
		}
	})
}

// withDemoServices returns a copy of environ with the settings that connect answerd with the IAM and the MCP server of
// the demo, whose base URLs are iam and mcpServer.
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

// printIntroduction prints what is running and a command to try. addr is the address of answerd, and the next
// parameters are the URLs of the services. isReal says that the model is not the demo's stand-in.
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
