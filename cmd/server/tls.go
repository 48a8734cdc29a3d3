package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"answerd/internal/mcp"
	"answerd/internal/telemetry"
	"answerd/internal/tlsconfig"
)

// certificates holds the TLS certificates and roots that were read from files. A value has either those of the
// listener, LLM_BASE_URL and the IAM, or those of the models in MODELS_FILE. The zero value has none. The mcp.Client
// holds the certificates for MCP servers.
type certificates struct {
	server *tlsconfig.Source            // of TLS_*; nil if none is set
	llm    *tlsconfig.Source            // of LLM_TLS_*; nil if none is set
	models map[string]*tlsconfig.Source // by model id in MODELS_FILE
	iam    *tlsconfig.Source            // of IAM_TLS_*; nil if none is set
	client *http.Client                 // sends requests to the IAM with iam; nil if iam is nil
	named  []namedSource                // all sources above
	watch  *fileWatch                   // watches the files of all sources; created before they were read
}

// namedSource is a source of certificates, with its purpose and the setting that names its files.
type namedSource struct {
	*tlsconfig.Source
	connection string // listener, llm or iam
	model      string // id of the model in MODELS_FILE; "" if the files are named by settings
	setting    string // for errors: TLS, LLM_TLS or IAM_TLS; with a model, a JSON pointer such as /0/tls
}

// configError turns err, which comes from loading the source, into a *configError. For a *tlsconfig.FileError it names
// the setting, or the member of MODELS_FILE, that has the file's path.
func (n namedSource) configError(err error) error {
	fileErr, ok := errors.AsType[*tlsconfig.FileError](err)
	if !ok {
		return &configError{n.setting, err.Error()}
	}
	if n.model != "" {
		return &configError{"MODELS_FILE", fmt.Sprintf("%s/%s_file: %s", n.setting, fileErr.Field, err)}
	}
	return &configError{n.setting + "_" + strings.ToUpper(string(fileErr.Field)) + "_FILE", err.Error()}
}

// certificateFiles are the files of one source. loadCertificates reads them and sets Source.
type certificateFiles struct {
	files tlsconfig.Files
	namedSource
}

// readCertificates sets c.certificates from the TLS files that settings name. Every error is a *configError.
func (c *config) readCertificates() (err error) {
	c.certificates, err = loadCertificates([]certificateFiles{
		{tlsconfig.Files{CertFile: c.TLSCertFile, KeyFile: c.TLSKeyFile}, namedSource{connection: "listener", setting: "TLS"}},
		{tlsconfig.Files{CAFile: c.LLMTLSCAFile, CertFile: c.LLMTLSCertFile, KeyFile: c.LLMTLSKeyFile}, namedSource{connection: "llm", setting: "LLM_TLS"}},
		{tlsconfig.Files{CAFile: c.IAMTLSCAFile, CertFile: c.IAMTLSCertFile, KeyFile: c.IAMTLSKeyFile}, namedSource{connection: "iam", setting: "IAM_TLS"}},
	})
	return err
}

// readModelCertificates sets c.modelCertificates from the TLS files that MODELS_FILE names. Every error is a
// *configError.
func (c *config) readModelCertificates() (err error) {
	var entries []certificateFiles
	for i, p := range c.models {
		name := namedSource{connection: "llm", model: p.ID, setting: fmt.Sprintf("/%d/tls", i)}
		entries = append(entries, certificateFiles{tlsconfig.Files(p.TLS), name})
	}
	c.modelCertificates, err = loadCertificates(entries)
	return err
}

// loadCertificates reads the files of entries. It skips entries without files. Every error is a *configError
// (namedSource.configError).
func loadCertificates(entries []certificateFiles) (certificates, error) {
	var paths []string
	for _, e := range entries {
		paths = append(paths, e.files.Paths()...)
	}
	// Create the watch before the files are read, so that it notices a change in between.
	certs := certificates{models: map[string]*tlsconfig.Source{}, watch: newFileWatch(paths...)}
	for _, entry := range entries {
		if entry.files == (tlsconfig.Files{}) {
			continue
		}
		source, err := tlsconfig.Load(entry.files)
		if err != nil {
			return certificates{}, entry.configError(err)
		}
		entry.Source = source
		switch {
		case entry.model != "":
			certs.models[entry.model] = source
		case entry.connection == "iam":
			certs.iam, certs.client = source, source.Client()
		case entry.connection == "listener":
			certs.server = source
		case entry.connection == "llm":
			certs.llm = source
		}
		certs.named = append(certs.named, entry.namedSource)
	}
	return certs, nil
}

// startReloading reads all files again when one of them changes, and at SIGHUP, until ctx ends or end is called. New
// connections then use the new certificates. A source with unusable files keeps its current certificates. what names
// the files in the log.
func (k *certificates) startReloading(ctx context.Context, what string, logger *slog.Logger) (end func()) {
	if len(k.named) == 0 {
		return func() {}
	}
	return startFollowing(ctx, k.watch, what, logger, func() (slog.Attr, error) {
		var errs []error
		for _, n := range k.named { // continue after an error, so that one bad file does not block the other sources
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

// usedCertificate describes a certificate in use. All fields except expires are attributes of the expiry metric.
type usedCertificate struct {
	connection string // listener, mcp, llm or iam
	name       string // MCP server, or model in MODELS_FILE; "" if a setting names the certificate
	role       string // client or server
	expires    time.Time
}

// inUse returns the certificates in use. It skips sources that have only roots.
func (k *certificates) inUse() []usedCertificate {
	var used []usedCertificate
	for _, source := range k.named {
		expiry := source.Expiry()
		if expiry.IsZero() {
			continue
		}
		role := "client"
		if source.connection == "listener" {
			role = "server"
		}
		used = append(used, usedCertificate{source.connection, source.model, role, expiry})
	}
	return used
}

// usedByTools returns the certificates that connections to MCP servers use.
func usedByTools(tools *mcp.Client) []usedCertificate {
	var used []usedCertificate
	for _, c := range tools.Certificates() {
		used = append(used, usedCertificate{"mcp", c.Server, c.Role, c.Expires})
	}
	return used
}

const (
	expiryWarning  = 14 * 24 * time.Hour // time before the expiry of a certificate at which the warnings begin
	expiryInterval = time.Hour           // time between two checks of the certificates
	expiryRepeat   = 24 * time.Hour      // least time between two warnings about one certificate
)

// observeCertificates creates the metric of the time until certificates expire. In the background it logs certificates
// that expire soon, until ctx ends or end is called; end waits for the goroutine. inUse returns the certificates in use,
// and must be safe for concurrent calls.
func observeCertificates(ctx context.Context, tel *telemetry.Telemetry, logger *slog.Logger, inUse func() []usedCertificate) (end func(), err error) {
	if err := measureExpiry(tel.Meter("answerd/tls"), inUse); err != nil {
		return nil, fmt.Errorf("create the metric of certificates: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var warning sync.WaitGroup
	warning.Go(func() { warnOfExpiry(ctx, logger, inUse) })
	return func() {
		cancel()
		warning.Wait()
	}, nil
}

// measureExpiry creates the metric of the time until certificates expire. Each export calls inUse for the current
// certificates.
func measureExpiry(meter metric.Meter, inUse func() []usedCertificate) error {
	gauge, err := meter.Float64ObservableGauge("answerd.tls.certificate.expiry", metric.WithUnit("s"),
		metric.WithDescription("Time until a certificate of a connection expires; negative afterwards."))
	if err != nil {
		return err
	}
	_, err = meter.RegisterCallback(func(_ context.Context, observer metric.Observer) error {
		for _, certificate := range inUse() {
			observer.ObserveFloat64(gauge, time.Until(certificate.expires).Seconds(), metric.WithAttributes(
				attribute.String("connection", certificate.connection), attribute.String("name", certificate.name), attribute.String("role", certificate.role)))
		}
		return nil
	}, gauge)
	return err
}

// warnOfExpiry logs the certificates of inUse that expire within expiryWarning or have expired. It checks every
// expiryInterval until ctx ends, and repeats a warning after expiryRepeat.
func warnOfExpiry(ctx context.Context, logger *slog.Logger, inUse func() []usedCertificate) {
	tick := time.NewTicker(expiryInterval)
	defer tick.Stop()
	var warnedAt map[usedCertificate]time.Time // the times of the last warnings
	for {
		stillUsed := make(map[usedCertificate]time.Time) // replaces warnedAt, to forget certificates that were replaced
		for _, c := range inUse() {
			if time.Until(c.expires) > expiryWarning {
				continue
			}
			stillUsed[c] = warnedAt[c]
			if time.Since(warnedAt[c]) >= expiryRepeat {
				logExpiry(ctx, logger, c)
				stillUsed[c] = time.Now()
			}
		}
		warnedAt = stillUsed
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// logExpiry logs that c expires soon or has expired.
func logExpiry(ctx context.Context, logger *slog.Logger, c usedCertificate) {
	remaining := time.Until(c.expires)
	message := "TLS certificate expires soon"
	if remaining <= 0 {
		message = "TLS certificate has expired"
	}
	logger.WarnContext(ctx, message, "connection", c.connection, "name", c.name, "role", c.role,
		"expires", c.expires.UTC().Format(time.RFC3339), "days_left", int(math.Floor(remaining.Hours()/24)))
}
