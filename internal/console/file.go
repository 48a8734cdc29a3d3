package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html"
)

// page has the files of the page.
//
//go:embed page/*.html page/*.css page/*.js page/*.svg
var page embed.FS

// contentTypes has the content types of the files. They are fixed here because the MIME tables of
// machines differ, and a browser refuses a script that has another type.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// The attributes of the page's meta tags that the options replace.
var (
	noTraceURL = []byte(`content="trace url"`)
	noSignIn   = []byte(`content="sign in"`)
	noThreads  = []byte(`content="threads"`)
)

// file is one embedded file, ready to be served.
type file struct {
	content     []byte
	contentType string
	etag        string
}

// newFile returns a file with the ETag of its content.
func newFile(content []byte, kind string) file {
	sum := sha256.Sum256(content)
	return file{content, kind, `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`}
}

// setContent replaces an attribute of the page by one with this value.
func setContent(page, attribute []byte, value string) []byte {
	return bytes.Replace(page, attribute, fmt.Appendf(nil, `content="%s"`, html.EscapeString(value)), 1)
}
