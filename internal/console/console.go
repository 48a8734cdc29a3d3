// Package console serves the page at /, where a person asks questions and watches their runs.
//
//	h := console.Handler(console.Options{TraceURL: "https://traces.example/trace/{trace_id}"})
//	r.Method(http.MethodGet, "/", h)
//	r.Method(http.MethodGet, "/console/*", h)
//
// The page is embedded as it was written: HTML, style sheets and ES modules, without a build step. It
// is a client of the API like any other. It sends requests only to its own origin and, if people can
// sign in, to the token endpoint of their issuer. Its Content Security Policy makes the browser enforce
// that. Texts of models and tools are untrusted: the page creates nodes from them and never parses them
// as HTML.
//
// Handler reads and hashes all files once. The http.Handler that it returns has no other state, so it
// may be used concurrently.
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

// policy returns the Content Security Policy (CSP Level 3). It lets the page load its own files and send
// requests to its own origin, and to tokenOrigin if that is not "". It forbids inline scripts and styles,
// to show the page in a frame, and forms that are sent elsewhere.
func policy(tokenOrigin string) string {
	return "default-src 'none'; script-src 'self'; style-src 'self'; connect-src " + strings.TrimSpace("'self' "+tokenOrigin) + "; " +
		"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// Options holds settings that the page cannot get from the API.
type Options struct {
	// TraceURL is the URL of a page that shows a trace, with {trace_id} as a placeholder. "" shows no
	// link.
	TraceURL string
	// SignIn returns where people sign in. It is called for each request for the page, because an issuer
	// may change its endpoints, and may be down while the service starts. nil means that they paste a
	// token.
	SignIn func(context.Context) (SignIn, error)
	// Authenticated means that callers are: the page then lists the caller's threads. Without
	// authentication all callers are one, and the page lists the threads that were started in its browser.
	Authenticated bool
}

// Handler returns a handler that serves the page at / and its files under /console/. Any other path
// is 404.
func Handler(opts Options) http.Handler {
	files, err := loadFiles(page, opts)
	if err != nil {
		panic(err) // cannot happen: the files are part of the program, and a test loads them all
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy(""))
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		f, ok := files[r.URL.Path]
		if ok && r.URL.Path == "/" && opts.SignIn != nil {
			var tokenOrigin string
			f, tokenOrigin = withSignIn(r.Context(), opts.SignIn, f)
			header.Set("Content-Security-Policy", policy(tokenOrigin))
		}
		if !ok {
			header.Set("Cache-Control", "no-store")
			http.NotFound(w, r)
			return
		}
		header.Set("Content-Type", f.contentType)
		// The names do not change from version to version. So a browser may keep the files, but must
		// ask each time whether they have changed (RFC 9111 section 5.2.2.4).
		header.Set("Cache-Control", "no-cache")
		header.Set("ETag", f.etag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.content))
	})
}

// loadFiles returns the embedded files by the paths that they are served at. The page itself is only
// at /: its links are relative to that, so that it also works behind a proxy that adds a prefix.
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
		kind, ok := contentTypes[path.Ext(name)]
		if !ok {
			return fmt.Errorf("%s has no content type", name)
		}
		at := "/console/" + path.Base(name)
		if name == "page/index.html" {
			at = "/"
			content = setContent(content, noTraceURL, opts.TraceURL)
			threads := "browser"
			if opts.Authenticated {
				threads = "server"
			}
			content = setContent(content, noThreads, threads)
			if opts.SignIn == nil {
				content = setContent(content, noSignIn, "")
			}
		}
		files[at] = newFile(content, kind)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load the console: %w", err)
	}
	return files, nil
}
