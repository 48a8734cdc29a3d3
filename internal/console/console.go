// Package console serves the page at /, where a person asks questions and watches their runs.
//
//	h := console.Handler(console.Options{TraceURL: "https://traces.example/trace/{trace_id}"})
//	r.Method(http.MethodGet, "/", h)
//	r.Method(http.MethodGet, "/console/*", h)
//
// The page is embedded as written: HTML, style sheets and ES modules, without a build step. It is a client of the API
// like any other. It sends requests only to its own origin and, if people can sign in, to their issuer's token
// endpoint. Its Content Security Policy makes the browser enforce that. Texts of models and tools are untrusted, so the
// page creates text nodes from them and never parses them as HTML.
//
// Handler reads and hashes all files once. The http.Handler that it returns has no other state and may be used
// concurrently.
package console

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

const noTokenOrigin = "" // for contentSecurityPolicy: the page sends requests only to its own origin

// contentSecurityPolicy returns the value of the header Content-Security-Policy (CSP Level 3). The policy lets the page
// load its own files, and send requests to its own origin and, unless it is noTokenOrigin, to tokenOrigin. It forbids
// inline scripts, inline styles and form submissions, and does not let other pages show this one in a frame.
func contentSecurityPolicy(tokenOrigin string) string {
	connect := strings.TrimSpace("'self' " + tokenOrigin)
	return "default-src 'none'; script-src 'self'; style-src 'self'; connect-src " + connect + "; " +
		"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// Options has the settings that the page cannot get from the API.
type Options struct {
	// TraceURL is the URL of a page that shows a trace, with {trace_id} as a placeholder. If it is "", the console has
	// no links to traces.
	TraceURL string
	// SignIn returns where people sign in. If it is nil, they paste a token instead. The handler calls SignIn whenever
	// the page is requested, because an issuer may change its endpoints, and may be down when the service starts.
	SignIn func(context.Context) (SignIn, error)
	// Authenticated means that callers are authenticated, so the page lists the caller's threads. Otherwise the service
	// cannot tell callers apart, and the page lists only the threads that were started in the same browser.
	Authenticated bool
}

// Handler returns a handler that serves the page at / and its files under /console/. It answers 404 for any other path.
func Handler(opts Options) http.Handler {
	files, err := loadFiles(page, opts)
	if err != nil {
		panic(err) // cannot happen: the files are part of the program, and a test loads all of them
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", contentSecurityPolicy(noTokenOrigin))
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		f, ok := files[r.URL.Path]
		if !ok {
			header.Set("Cache-Control", "no-store")
			http.NotFound(w, r)
			return
		}
		if r.URL.Path == "/" && opts.SignIn != nil {
			var tokenOrigin string
			f, tokenOrigin = withSignIn(r.Context(), opts.SignIn, f)
			header.Set("Content-Security-Policy", contentSecurityPolicy(tokenOrigin))
		}
		header.Set("Content-Type", f.contentType)
		// A file has the same name in every version of answerd, so a browser may keep it but must ask each time whether
		// it has changed (RFC 9111 section 5.2.2.4).
		header.Set("Cache-Control", "no-cache")
		header.Set("ETag", f.etag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.content))
	})
}

// loadFiles returns the files in fsys by the URL paths at which they are served, with the values of opts set in the
// page. The page itself is served only at /. Its links are relative to that path, so that it also works behind a proxy
// that adds a prefix. loadFiles returns an error for a file without a known content type.
func loadFiles(fsys fs.FS, opts Options) (map[string]file, error) {
	files := make(map[string]file)
	err := fs.WalkDir(fsys, "page", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		contentType, ok := contentTypes[path.Ext(name)]
		if !ok {
			return fmt.Errorf("%s has no content type", name)
		}
		urlPath := "/console/" + path.Base(name)
		if name == "page/index.html" {
			urlPath, content = "/", setOptions(content, opts)
		}
		files[urlPath] = newFile(content, contentType)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load the console: %w", err)
	}
	return files, nil
}

// setOptions returns the page with the values of opts. If people can sign in, it leaves the sign-in placeholder for
// withSignIn, which replaces it in each request.
func setOptions(page []byte, opts Options) []byte {
	threads := "browser"
	if opts.Authenticated {
		threads = "server"
	}
	page = setContent(page, traceURLPlaceholder, opts.TraceURL)
	page = setContent(page, threadsPlaceholder, threads)
	if opts.SignIn == nil {
		page = setContent(page, signInPlaceholder, "")
	}
	return page
}
