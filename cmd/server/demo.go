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

// demoClient is the OAuth client of answerd at the demo's IAM. demoQuestion needs two tools.
const (
	demoClient   = "answerd-demo"
	demoQuestion = "What time is it in Tokyo, and what is 12.5 * 8?"
)

// demoCommand runs `answerd demo`: all services, or with -only one of them.
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
	failed chan error // receives when server.Serve has returned; buffered, so that its goroutine ends anyway
	close  func()     // releases what the handler uses
}

// serviceBuilder creates a service's handler, and the function that releases it. It gets the
// service's base URL, which is known only when its listener is open.
type serviceBuilder func(url string) (http.Handler, func(), error)

// startDemoService serves the handler of build on a new listener.
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

// stopService ends the service and waits for its listener's goroutine.
func (p *demoService) stopService() {
	p.close()
	p.server.Close()
	<-p.failed
}

// noRelease releases nothing.
func noRelease() {}

// buildIAM returns the builder of the IAM. An empty issuer stands for the service's base URL.
func buildIAM(issuer, secret string, logger *slog.Logger) serviceBuilder {
	return func(url string) (http.Handler, func(), error) {
		h, err := demo.NewIAM(demo.IAMConfig{Issuer: cmp.Or(issuer, url), ClientID: demoClient, ClientSecret: secret, Logger: logger})
		return h, noRelease, err
	}
}

// buildMCPServer returns the builder of the MCP server, which accepts tokens of issuer. hasPage tells whether
// browsers reach its listener: then the server has a tool that sends people to a page of its own.
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

// buildModel builds the stand-in model.
func buildModel(string) (http.Handler, func(), error) {
	return demo.NewModel(demo.TokenDelay), noRelease, nil
}

// runDemoService runs one service until ctx ends. The compose file starts each service in a
// container.
func runDemoService(ctx context.Context, only, addr, iam string, environ environment, stdout io.Writer, logger *slog.Logger) error {
	var build serviceBuilder
	switch {
	case only == "iam":
		build = buildIAM(iam, cmp.Or(environ.get("IAM_CLIENT_SECRET"), "demo-secret"), logger)
	case only == "mcp" && iam != "":
		build = buildMCPServer(iam, false, logger) // it may be in a container
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

// runDemo starts the services on loopback, configures answerd to use them, and serves. The
// person's own settings stay, except for those that connect the services. A model endpoint of
// theirs is used instead of the stand-in.
func runDemo(ctx context.Context, environ environment, stdout, stderr io.Writer, logger *slog.Logger) error {
	secret := rand.Text()
	var services []*demoService
	defer func() {
		for _, p := range services {
			p.stopService()
		}
	}()

	start := func(build serviceBuilder) (url string, err error) {
		p, err := startDemoService("127.0.0.1:0", build)
		if err == nil {
			services = append(services, p)
			url = p.url
		}
		return url, err
	}

	iam, err := start(buildIAM("", secret, logger))
	if err != nil {
		return err
	}
	// Anonymous callers are allowed in order to be reached from elsewhere, for example in a container.
	anonymous, _ := parseBool(environ.get("AUTH_INSECURE_ALLOW_ANONYMOUS")) // loadConfig reports the error
	tools, err := start(buildMCPServer(iam, !anonymous, logger))
	if err != nil {
		return err
	}

	demoSettings := environment{
		"ENABLE_JWT_TOKEN": "true", "IAM_BASE_URL": iam, "IAM_TOKEN_URL": "", "SCOPE": demo.Scope,
		"IAM_CLIENT_ID": demoClient, "IAM_CLIENT_SECRET": secret, "IAM_CLIENT_SECRET_FILE": "", "SECRET_OCID": "",
		"MCP_URL": tools + demo.MCPPath, "MCP_APPROVAL": cmp.Or(environ.get("MCP_APPROVAL"), "destructive"),
		"TLS_CERT_FILE": "", "TLS_KEY_FILE": "", // it prints http addresses
		"LOG_LEVEL": cmp.Or(environ.get("LOG_LEVEL"), "warn"), "LLM_SHOW_ERRORS": "true",
	}
	port := environ.get("PORT")
	portOnLoopback := environ.get("ADDR") == "" && port != "" && !anonymous
	if portOnLoopback {
		demoSettings["ADDR"] = "127.0.0.1:" + port // the demo has no authentication
	}

	modelURL, isReal := environ.get("LLM_BASE_URL"), true
	if modelURL == "" && environ.get("OPENAI_API_KEY") == "" {
		if modelURL, err = start(buildModel); err != nil {
			return err
		}
		modelURL, isReal = modelURL+"/v1", false
		demoSettings["LLM_BASE_URL"], demoSettings["DEFAULT_MODEL_ID"] = modelURL, demo.ModelID
	}

	settings := maps.Clone(environ)
	maps.Copy(settings, demoSettings)
	c, err := loadConfig(settings)
	if bad, ok := errors.AsType[*configError](err); ok && bad.name == "DEFAULT_MODEL_ID" && c.usesOpenAI() {
		return &configError{bad.name, bad.reason + "; without OPENAI_API_KEY the demo uses its stand-in"}
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

// printIntroduction prints what is running and a command to try.
func printIntroduction(w io.Writer, addr, iam, tools, model string, isReal bool) {
	about := "a rule-based stand-in, not a language model"
	if isReal {
		about = "yours"
	}
	fmt.Fprintf(w, `answerd demo, all of it on this machine:
  IAM         %s   issues the JWT that answerd sends
  MCP server  %s   verifies it and runs the tools
  model       %s   %s

Console: http://%s/
Try:
  curl -N http://%s/answer/stream -H 'Content-Type: application/json' -d '{"question":"%s"}'
`, iam, tools, model, about, addr, addr, demoQuestion)
}
