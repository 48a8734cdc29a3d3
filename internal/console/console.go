// Package console is the page at /: ask, watch the run, read the answer.
//
//	h := console.Handler(console.Options{TraceURL: "https://traces.example/trace/{trace_id}"})
//	r.Method(http.MethodGet, "/", h)
//	r.Method(http.MethodGet, "/console/*", h)
//
// The page is embedded as it was written: HTML, style sheets and ES modules, with
// no build step. It is a client of the API like any other, asks nothing of another
// host, and its policy makes the browser hold it to that. What a model or a tool
// says is hostile text: the page builds nodes from it and never markup.
//
// All files are read and hashed once, in Handler; serving them shares nothing that
// changes, so the handler may be used concurrently.
package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html"
	"io/fs"
	"net/http"
	"path"
	"time"
)

//go:embed page/*.html page/*.css page/*.js page/*.svg
var page embed.FS

// policy lets the page load its own files and talk to its own origin, and nothing
// else: no inline script or style, no frame around it, no form that leaves it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
	"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// contentTypes are fixed here and not asked of the machine's MIME tables, which
// differ: a script of another type is refused by the browser.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// noTraceURL is the attribute of the page's meta tag that Options.TraceURL takes the place of.
var noTraceURL = []byte(`content="trace url"`)

// file is one embedded file, ready to be served.
type file struct {
	content     []byte
	contentType string
	etag        string
}

// Options say what the page cannot learn from the API.
type Options struct {
	TraceURL string // where a trace can be looked at, with {trace_id} in its place; "" is nowhere
}

// Handler serves the page at / and its parts under /console/. Any other path is 404.
func Handler(o Options) http.Handler {
	files, err := load(page, o)
	if err != nil {
		panic(err) // the files are part of the program: a test has read them all
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		f, ok := files[r.URL.Path]
		if !ok {
			h.Set("Cache-Control", "no-store")
			http.NotFound(w, r)
			return
		}
		h.Set("Content-Type", f.contentType)
		// The names stay the same from version to version, so a browser keeps the
		// files but asks each time whether they are still these.
		h.Set("Cache-Control", "no-cache")
		h.Set("ETag", f.etag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.content))
	})
}

// load reads the embedded files by the path that they are served at. The page
// itself is only at /: its links are relative to that, so that it also works behind
// a proxy that adds a prefix.
func load(fsys fs.FS, o Options) (map[string]file, error) {
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
			content = bytes.Replace(content, noTraceURL, fmt.Appendf(nil, `content="%s"`, html.EscapeString(o.TraceURL)), 1)
		}
		sum := sha256.Sum256(content)
		files[at] = file{content, kind, `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("load the console: %w", err)
	}
	return files, nil
}
