package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html"
)

// page has the console's files.
//
//go:embed page/*.html page/*.css page/*.js page/*.svg
var page embed.FS

// contentTypes maps a file name's extension to its content type. It does not use package mime, whose tables differ
// between machines, because a browser rejects a script that has another type.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// The attributes of the page's meta tags that setContent replaces.
var (
	traceURLPlaceholder = []byte(`content="trace url"`)
	signInPlaceholder   = []byte(`content="sign in"`)
	threadsPlaceholder  = []byte(`content="threads"`)
)

// file is one embedded file, ready to be served.
type file struct {
	content     []byte
	contentType string
	etag        string
}

// newFile returns a file whose ETag is a hash of its content.
func newFile(content []byte, contentType string) file {
	sum := sha256.Sum256(content)
	etag := `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
	return file{content: content, contentType: contentType, etag: etag}
}

// setContent returns a copy of page in which the attribute content="value", with value escaped, replaces placeholder.
func setContent(page, placeholder []byte, value string) []byte {
	return bytes.Replace(page, placeholder, fmt.Appendf(nil, `content="%s"`, html.EscapeString(value)), 1)
}
