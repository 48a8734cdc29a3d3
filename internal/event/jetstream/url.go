package jetstream

import (
	"errors"
	"net/url"
	"path/filepath"
	"strings"
)

// CheckURL says what is wrong with the URL of a log, without quoting it: it may hold a
// password.
func CheckURL(s string) error {
	if dir, ok := strings.CutPrefix(s, "file:"); ok {
		if strings.HasPrefix(dir, "//") || strings.TrimSpace(dir) == "" || filepath.Clean(dir) == string(filepath.Separator) {
			return errors.New("must be file: and a directory, such as file:/var/lib/answerd")
		}
		return nil
	}
	scheme := ""
	for _, one := range strings.Split(s, ",") {
		u, err := url.Parse(strings.TrimSpace(one))
		if err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
			return errors.New("must be file:DIR, or servers like nats://host:4222, comma separated")
		}
		if scheme != "" && scheme != u.Scheme {
			return errors.New("must have nats:// for all servers or tls:// for all")
		}
		scheme = u.Scheme
	}
	return nil
}
