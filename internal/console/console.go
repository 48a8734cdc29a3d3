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

// contentSecurityPolicy returns the value of the header Content-Security-Policy (CSP Level 3). It lets the page load
// its own files, and send requests to its own origin and to tokenOrigin if that is not "". It forbids inline scripts,
// inline styles and the submission of forms, and forbids other pages to show this one in a frame.
func contentSecurityPolicy(tokenOrigin string) string {
	connect := strings.TrimSpace("'self' " + tokenOrigin)
	return "default-src 'none'; script-src 'self'; style-src 'self'; connect-src " + connect + "; " +
		"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// Options holds settings that the page cannot get from the API.
type Options struct {
	// TraceURL is the URL of a page that shows a trace, with {trace_id} as a placeholder. With "" the console has no
	// links to traces.
	TraceURL string
	// SignIn returns where people sign in; nil means that they paste a token. The handler calls it for each request for
	// the page, because an issuer may change its endpoints, and may be down while the service starts.
	SignIn func(context.Context) (SignIn, error)
	// Authenticated means that callers are authenticated, so the page lists the caller's threads. Without
	// authentication the service cannot tell callers apart, and the page lists the threads that were started in the
	// same browser.
	Authenticated bool
}

// Handler returns a handler that serves the page at / and its files under /console/. For any other path it answers 404.
func Handler(opts Options) http.Handler {
	files, err := loadFiles(page, opts)
	if err != nil {
		panic(err) // cannot happen: the files are part of the program, and a test loads all of them
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", contentSecurityPolicy(""))
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		f, ok := files[r.URL.Path]
		if ok && r.URL.Path == "/" && opts.SignIn != nil {
			var tokenOrigin string
			f, tokenOrigin = withSignIn(r.Context(), opts.SignIn, f)
			header.Set("Content-Security-Policy", contentSecurityPolicy(tokenOrigin))
		}
		if !ok {
			header.Set("Cache-Control", "no-store")
			http.NotFound(w, r)
			return
		}
		header.Set("Content-Type", f.contentType)
		// A file has the same name in each version of answerd. So a browser may keep it, but must ask each time whether
		// it has changed (RFC 9111 section 5.2.2.4).
		header.Set("Cache-Control", "no-cache")
		header.Set("ETag", f.etag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.content))
	})
}

// loadFiles returns the files of fsys, with the values of opts in the page, by the URL paths at which they are served.
// The page itself is only at /, because its links are relative to that, so that it also works behind a proxy that adds
// a prefix. A file without a known content type is an error.
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

// setOptions returns the page with the values of opts. If people can sign in, the handler sets how for each request
// (withSignIn).
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
