package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"answerd/internal/mcp"
	"answerd/internal/telemetry"
	"answerd/internal/tlsconfig"
)

// certificates holds the certificate of the listener, and the roots and the client certificates for
// LLM_BASE_URL and the IAM; or those of the models of a MODELS_FILE. The zero value has none. Those
// for MCP servers belong to the mcp.Client.
type certificates struct {
	server *tlsconfig.Source            // of TLS_*; nil if none is set
	llm    *tlsconfig.Source            // of LLM_TLS_*; nil if none is set
	models map[string]*tlsconfig.Source // by the id of a model of MODELS_FILE
	iam    *tlsconfig.Source            // of IAM_TLS_*; nil if none is set
	client *http.Client                 // sends requests to the IAM with iam; nil if iam is nil
	named  []namedSource                // all sources
	watch  *fileWatch                   // of all files, with their state before they were read
}

// namedSource is a source with the setting that it comes from.
type namedSource struct {
	*tlsconfig.Source
	connection string // listener, llm or iam
	model      string // of MODELS_FILE; "" for a setting
	setting    string // in errors: TLS, LLM_TLS, IAM_TLS or MODELS_FILE: /0/tls
}

// configError returns err, a *tlsconfig.FileError, as an error that names the setting or the
// member of MODELS_FILE.
func (n namedSource) configError(err error) error {
	e, ok := errors.AsType[*tlsconfig.FileError](err)
	if !ok {
		return &configError{n.setting, err.Error()}
	}
	if n.model != "" {
		return &configError{"MODELS_FILE", fmt.Sprintf("%s/%s_file: %s", n.setting, e.Field, err)}
	}
	return &configError{n.setting + "_" + strings.ToUpper(string(e.Field)) + "_FILE", err.Error()}
}

// certificateFiles are the files of one source.
type certificateFiles struct {
	files tlsconfig.Files
	namedSource
}

// readCertificates reads the TLS files of the settings.
func (c *config) readCertificates() (err error) {
	c.certificates, err = loadCertificates([]certificateFiles{
		{tlsconfig.Files{CertFile: c.TLSCertFile, KeyFile: c.TLSKeyFile}, namedSource{connection: "listener", setting: "TLS"}},
		{tlsconfig.Files{CAFile: c.LLMTLSCAFile, CertFile: c.LLMTLSCertFile, KeyFile: c.LLMTLSKeyFile}, namedSource{connection: "llm", setting: "LLM_TLS"}},
		{tlsconfig.Files{CAFile: c.IAMTLSCAFile, CertFile: c.IAMTLSCertFile, KeyFile: c.IAMTLSKeyFile}, namedSource{connection: "iam", setting: "IAM_TLS"}},
	})
	return err
}

// readModelCertificates reads the TLS files of the models of MODELS_FILE.
func (c *config) readModelCertificates() (err error) {
	var entries []certificateFiles
	for i, p := range c.models {
		entries = append(entries, certificateFiles{tlsconfig.Files(p.TLS), namedSource{connection: "llm", model: p.ID, setting: fmt.Sprintf("/%d/tls", i)}})
	}
	c.modelCertificates, err = loadCertificates(entries)
	return err
}

// loadCertificates reads the files of entries. The watch is created before that, so that a change in
// between is noticed.
func loadCertificates(entries []certificateFiles) (certificates, error) {
	var paths []string
	for _, e := range entries {
		paths = append(paths, e.files.Paths()...)
	}
	certs := certificates{models: map[string]*tlsconfig.Source{}, watch: newFileWatch(paths...)}
	for _, files := range entries {
		if files.files == (tlsconfig.Files{}) {
			continue
		}
		source, err := tlsconfig.Load(files.files)
		if err != nil {
			return certificates{}, files.configError(err)
		}
		files.Source = source
		switch {
		case files.model != "":
			certs.models[files.model] = source
		case files.connection == "iam":
			certs.iam, certs.client = source, source.Client()
		case files.connection == "listener":
			certs.server = source
		default:
			certs.llm = source
		}
		certs.named = append(certs.named, files.namedSource)
	}
	return certs, nil
}

// startReloading reads the files again when they change, until end is called. New connections then
// use the new certificates. what names the files in the log.
func (k *certificates) startReloading(ctx context.Context, what string, logger *slog.Logger) (end func()) {
	if len(k.named) == 0 {
		return func() {}
	}
	return startFollowing(ctx, k.watch, what, logger, func() (slog.Attr, error) {
		var errs []error
		for _, n := range k.named { // an invalid file must not keep the others from being read
			if err := n.Reload(); err != nil {
				errs = append(errs, n.configError(err))
			}
		}
		return slog.Int("sources", len(k.named)), errors.Join(errs...)
	})
}

// close closes the idle connections to the IAM.
func (k *certificates) close() {
	if k.client != nil {
		k.client.CloseIdleConnections()
	}
}

// usedCertificate is a certificate of a connection.
type usedCertificate struct {
	connection string // listener, mcp, llm or iam
	name       string // of the MCP server, or the model of MODELS_FILE; "" for a setting
	role       string // client or server
	expires    time.Time
}

// inUse returns the certificates in use whose expiry is known.
func (k *certificates) inUse() []usedCertificate {
	var out []usedCertificate
	for _, certificate := range k.named {
		expiry := certificate.Expiry()
		if expiry.IsZero() {
			continue
		}
		role := "client"
		if certificate.connection == "listener" {
			role = "server"
		}
		out = append(out, usedCertificate{certificate.connection, certificate.model, role, expiry})
	}
	return out
}

// usedByTools returns the certificates of the connections to MCP servers.
func usedByTools(tools *mcp.Client) []usedCertificate {
	var out []usedCertificate
	for _, c := range tools.Certificates() {
		out = append(out, usedCertificate{"mcp", c.Server, c.Role, c.Expires})
	}
	return out
}

const (
	expiryWarning  = 14 * 24 * time.Hour // before a certificate expires
	expiryInterval = time.Hour           // between two checks of the certificates
	expiryRepeat   = 24 * time.Hour      // between two warnings about one certificate
)

// observeCertificates creates the metric of the certificates, and logs those that expire soon until
// end is called.
func observeCertificates(ctx context.Context, tel *telemetry.Telemetry, logger *slog.Logger, used func() []usedCertificate) (end func(), err error) {
	if err := measureExpiry(tel.Meter("answerd/tls"), used); err != nil {
		return nil, fmt.Errorf("create the metric of certificates: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		warnOfExpiry(ctx, logger, used)
	}()
	return func() {
		cancel()
		<-ended
	}, nil
}

// measureExpiry creates the metric of the time until certificates expire.
func measureExpiry(meter metric.Meter, used func() []usedCertificate) error {
	gauge, err := meter.Float64ObservableGauge("answerd.tls.certificate.expiry", metric.WithUnit("s"),
		metric.WithDescription("Time until a certificate of a connection expires; negative afterwards."))
	if err != nil {
		return err
	}
	_, err = meter.RegisterCallback(func(_ context.Context, observer metric.Observer) error {
		for _, certificate := range used() {
			observer.ObserveFloat64(gauge, time.Until(certificate.expires).Seconds(), metric.WithAttributes(
				attribute.String("connection", certificate.connection), attribute.String("name", certificate.name), attribute.String("role", certificate.role)))
		}
		return nil
	}, gauge)
	return err
}

// warnOfExpiry logs certificates that expire within expiryWarning, each once a day, until ctx ends.
func warnOfExpiry(ctx context.Context, logger *slog.Logger, used func() []usedCertificate) {
	tick := time.NewTicker(expiryInterval)
	defer tick.Stop()
	warned := map[usedCertificate]time.Time{}
	for {
		seen := map[usedCertificate]time.Time{} // a new map, to forget certificates that were replaced
		for _, c := range used() {
			remaining := time.Until(c.expires)
			if remaining > expiryWarning {
				continue
			}
			seen[c] = warned[c]
			if time.Since(seen[c]) < expiryRepeat {
				continue
			}
			seen[c] = time.Now()
			what := "TLS certificate expires soon"
			if remaining <= 0 {
				what = "TLS certificate has expired"
			}
			logger.WarnContext(ctx, what, "connection", c.connection, "name", c.name, "role", c.role,
				"expires", c.expires.UTC().Format(time.RFC3339), "days_left", int(math.Floor(remaining.Hours()/24)))
		}
		warned = seen
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
