package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html"
)

// page has the files of the console.
//
//go:embed page/*.html page/*.css page/*.js page/*.svg
var page embed.FS

// contentTypes has the content types by the ending of a file's name. They are fixed here because the tables of package
// mime differ between machines, and a browser refuses a script that has another type.
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

// newFile returns a file with an ETag that is a hash of its content.
func newFile(content []byte, contentType string) file {
	sum := sha256.Sum256(content)
	etag := `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
	return file{content: content, contentType: contentType, etag: etag}
}

// setContent returns a copy of page with the attribute content="value", escaped, in place of placeholder.
func setContent(page, placeholder []byte, value string) []byte {
	return bytes.Replace(page, placeholder, fmt.Appendf(nil, `content="%s"`, html.EscapeString(value)), 1)
}
