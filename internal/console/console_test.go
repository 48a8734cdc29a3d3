package console

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
)

// serveConsole starts the handler on loopback.
func serveConsole(t *testing.T) (url string, client *http.Client) {
	t.Helper()
	s := httptest.NewServer(Handler(Options{}))
	t.Cleanup(s.Close)
	return s.URL, s.Client()
}

func getBody(t *testing.T, client *http.Client, url string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

func embeddedFiles(t *testing.T) map[string]file {
	t.Helper()
	files, err := loadFiles(page, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestFilesAreServedWithTheirTypeAndPolicy(t *testing.T) {
	url, client := serveConsole(t)
	for at, f := range embeddedFiles(t) {
		res, body := getBody(t, client, url+at)
		if res.StatusCode != http.StatusOK || body != string(f.content) || body == "" {
			t.Errorf("GET %s: status %d, %d bytes, want 200 and the file's %d bytes", at, res.StatusCode, len(body), len(f.content))
		}
		want := contentTypes[path.Ext(at)]
		if at == "/" {
			want = contentTypes[".html"]
		}
		if got := res.Header.Get("Content-Type"); got != want {
			t.Errorf("GET %s: Content-Type %q, want %q", at, got, want)
		}
		checkHeader(t, at, res.Header)
	}
}

// checkHeader checks what goes out with everything, errors included. The policy is
// written out here, so that weakening it takes two hands.
func checkHeader(t *testing.T, at string, h http.Header) {
	t.Helper()
	want := map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		"X-Content-Type-Options":  "nosniff",
		"Referrer-Policy":         "no-referrer",
	}
	for name, value := range want {
		if got := h.Get(name); got != value {
			t.Errorf("GET %s: %s is %q, want %q", at, name, got, value)
		}
	}
}

func TestFileThatTheBrowserHasIsNotSentAgain(t *testing.T) {
	url, client := serveConsole(t)
	for at := range embeddedFiles(t) {
		res, _ := getBody(t, client, url+at)
		etag := res.Header.Get("ETag")
		if etag == "" || res.Header.Get("Cache-Control") != "no-cache" {
			t.Fatalf("GET %s: ETag %q, Cache-Control %q, want etag non-empty, Cache-Control no-cache", at, etag, res.Header.Get("Cache-Control"))
		}
		if res, body := getBody(t, client, url+at, "If-None-Match", etag); res.StatusCode != http.StatusNotModified || body != "" {
			t.Errorf("GET %s with its ETag: status %d, %d bytes, body %q, want 304 and empty", at, res.StatusCode, len(body), body)
		}
		if res, _ := getBody(t, client, url+at, "If-None-Match", `"another"`); res.StatusCode != http.StatusOK {
			t.Errorf("GET %s with another ETag: status %d, want 200", at, res.StatusCode)
		}
	}
}

func TestETagsFollowTheContent(t *testing.T) {
	tag := func(content string) string {
		files, err := loadFiles(fstest.MapFS{"page/a.js": {Data: []byte(content)}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		return files["/console/a.js"].etag
	}
	first, again, other := tag("one"), tag("one"), tag("two")
	if first != again || first == other {
		t.Errorf("ETags %s and %s of the same content, %s of another, want one for each content", first, again, other)
	}
}

// The page learns where traces are without asking anybody; what an operator wrote stays
// an attribute's value.
func TestPageKnowsWhereTracesAre(t *testing.T) {
	for trace, want := range map[string]string{
		"":                                       `<meta name="trace-url" content="">`,
		"https://t.example/?a=1&b={trace_id}":    `<meta name="trace-url" content="https://t.example/?a=1&amp;b={trace_id}">`,
		`https://t.example/"><script>{trace_id}`: `<meta name="trace-url" content="https://t.example/&#34;&gt;&lt;script&gt;{trace_id}">`,
	} {
		files, err := loadFiles(page, Options{TraceURL: trace})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(files["/"].content), want) {
			t.Errorf("%q: the page has no %s", trace, want)
		}
	}
}

// The page may send requests to the token endpoint and to nothing else beyond its own origin; what an
// issuer says about itself stays an attribute's value and part of no other directive.
func TestPagePolicyNamesTheTokenEndpointOnly(t *testing.T) {
	for endpoint, origin := range map[string]string{
		"https://iam.example/oauth2/token?a=b": " https://iam.example",
		"https://IAM.example:8443/t":           " https://iam.example:8443",
		"http://127.0.0.1:9/t":                 " http://127.0.0.1:9",
		"http://[::1]:9/t":                     " http://[::1]:9",
		"https://a;script-src/t":               "",
		"https://*/t":                          "",
		"https://a,b/t":                        "",
		"javascript:alert(1)":                  "",
		"":                                     "",
	} {
		s := httptest.NewServer(Handler(Options{SignIn: func(context.Context) (SignIn, error) {
			return SignIn{Issuer: `https://iam.example/"><script>`, ClientID: "c", TokenEndpoint: endpoint}, nil
		}}))
		t.Cleanup(s.Close)
		res, body := getBody(t, s.Client(), s.URL+"/")
		if got, want := res.Header.Get("Content-Security-Policy"), "; connect-src 'self'"+origin+"; "; !strings.Contains(got, want) {
			t.Errorf("%q: policy %q, want it to contain %q", endpoint, got, want)
		}
		if ok := strings.Contains(body, `&#34;client_id&#34;:&#34;c&#34;`); ok != (origin != "") || strings.Contains(body, `"><script>`) || strings.Contains(body, `content="sign in"`) {
			t.Errorf("%q: got page %.900s, want its configuration escaped, if the endpoint can be used", endpoint, body)
		}
		res, _ = getBody(t, s.Client(), s.URL+"/console/main.js")
		checkHeader(t, "/console/main.js", res.Header)
	}
}

// An issuer that is down costs the page its sign-in, and nothing else. The page changes with what is
// known, and so does its ETag.
func TestPageIsServedWithoutItsIssuer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := true
		h := Handler(Options{SignIn: func(ctx context.Context) (SignIn, error) {
			if fails {
				<-ctx.Done()
				return SignIn{}, ctx.Err()
			}
			return SignIn{TokenEndpoint: "https://iam.example/t"}, nil
		}})

		ask := func(etag string) *http.Response {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			r.Header.Set("If-None-Match", etag)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Result()
		}

		res := ask("")
		if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(body), "You cannot sign in at this time") {
			t.Errorf("got %s %.900s, %v, want the page, which says that nobody can sign in", res.Status, body, err)
		}
		checkHeader(t, "/", res.Header)
		fails = false
		if res := ask(res.Header.Get("ETag")); res.StatusCode != http.StatusOK || !strings.Contains(res.Header.Get("Content-Security-Policy"), "https://iam.example") {
			t.Errorf("got %s, policy %q, want the new page", res.Status, res.Header.Get("Content-Security-Policy"))
		}
	})
}

func TestFileOfAnUnknownKindIsRefused(t *testing.T) {
	if _, err := loadFiles(fstest.MapFS{"page/a.exe": {}}, Options{}); err == nil {
		t.Error("a file without content type was taken, want an error")
	}
}

func TestUnknownPathIs404(t *testing.T) {
	url, client := serveConsole(t)
	for _, at := range []string{
		"/console/", "/console", "/console/index.html", "/index.html", "/console/nothing.js", "/console.go",
		"/console/../console.go", "/console/%2e%2e/console.go", "/console/page/main.js", "/console/main.js/", "/console//main.js",
	} {
		res, body := getBody(t, client, url+at)
		if res.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s: status %d, want 404", at, res.StatusCode)
		}
		if strings.Contains(body, "package console") {
			t.Errorf(`GET %s gives source, body %q, want no "package console"`, at, body)
		}
		checkHeader(t, at, res.Header)
	}
}

// reference finds what one file says it needs: links and scripts of HTML, imports of
// modules. All of them are literal.
var reference = regexp.MustCompile(`(?:href|src)="([^"#]+)"|(?:from|import) "([^"]+)"|url\(([^)]+)\)`)

// TestPageNeedsEveryFileAndNoOther follows the references from / as a browser
// does: a name that is misspelt breaks the page, a file that nobody loads is dead.
func TestPageNeedsEveryFileAndNoOther(t *testing.T) {
	files := embeddedFiles(t)
	reached := map[string]bool{"/": true}
	for queue := []string{"/"}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, m := range reference.FindAllStringSubmatch(string(files[at].content), -1) {
			name := m[1] + m[2] + m[3]
			if strings.HasPrefix(name, "/") {
				t.Errorf("%s refers to %s, which does not work behind a prefix, want it not to start with /", at, name)
			}
			target := path.Join(path.Dir(at), name)
			if _, ok := files[target]; !ok {
				t.Errorf("%s refers to %s, want one of the console's files", at, name)
			} else if !reached[target] {
				reached[target] = true
				queue = append(queue, target)
			}
		}
	}
	if got, want := slices.Sorted(maps.Keys(reached)), slices.Sorted(maps.Keys(files)); !slices.Equal(got, want) {
		t.Errorf("the page reaches %v\nof %v", got, want)
	}
}

// forbidden is what no file may have: the addresses of other hosts, and the ways in
// which text becomes markup or code. The browser would refuse much of it, too late.
var forbidden = map[string]*regexp.Regexp{
	"an address of another host": regexp.MustCompile(`(?i)\b(?:https?|wss?|ftp)://[a-z0-9]|["'(]//[a-z]`),
	"a way from text to markup":  regexp.MustCompile(`(?i)innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|setHTML|srcdoc`),
	"a way from text to code":    regexp.MustCompile(`\beval\(|new Function|javascript:|setTimeout\(["'\x60]`),
	"an inline script or style":  regexp.MustCompile(`<style|<script[^>]*>[^<]|\sstyle=|\son[a-z]+="`),
}

func TestFilesNeitherReachOutNorMakeMarkup(t *testing.T) {
	for at, f := range embeddedFiles(t) {
		// A namespace is a name that looks like an address; nobody asks for it.
		content := strings.ReplaceAll(string(f.content), `xmlns="http://www.w3.org/2000/svg"`, "")
		for what, pattern := range forbidden {
			if found := pattern.FindString(content); found != "" {
				t.Errorf("%s has %s: %q, want empty", at, what, found)
			}
		}
	}
}

// TestForbiddenIsFound keeps the patterns of the test above honest.
func TestForbiddenIsFound(t *testing.T) {
	for text, what := range map[string]string{
		`fetch("https://a.example/")`:       "an address of another host",
		`<img src="//a.example/">`:          "an address of another host",
		`node.innerHTML = x`:                "a way from text to markup",
		`eval(x)`:                           "a way from text to code",
		`<script>alert(1)</script>`:         "an inline script or style",
		`<script type="module">x</script>`:  "an inline script or style",
		`<p style="color: red">`:            "an inline script or style",
		`<button onclick="go()">`:           "an inline script or style",
		`setTimeout("go()", 1)`:             "a way from text to code",
		`body.insertAdjacentHTML("a", "b")`: "a way from text to markup",
	} {
		if !forbidden[what].MatchString(text) {
			t.Errorf("%s is not found in %s, want it found", what, text)
		}
	}
}
