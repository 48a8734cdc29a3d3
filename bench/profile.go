package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

//go:embed testdata/pprof.go.txt
var pprofSource []byte

// buildService builds answerd in dir and returns the path of the binary. answerd does not serve profiles, so with
// -profiles an overlay (go help build) adds a source file that serves net/http/pprof.
func (o options) buildService(ctx context.Context, dir string) (binary string, err error) {
	binary = filepath.Join(dir, "answerd")
	args := []string{"build", "-o", binary}
	if o.profiles == "" {
		args = append(args, "-tags", "grpcnotrace", "-trimpath", "-ldflags", "-s -w") // as it is shipped
	} else {
		source, overlay := filepath.Join(dir, "pprof.go"), filepath.Join(dir, "overlay.json")
		top, err := os.Getwd()
		if err != nil {
			return "", err
		}
		replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(top, "cmd/server/benchpprof.go"): source}})
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(source, pprofSource, 0o600); err != nil {
			return "", err
		}
		if err := os.WriteFile(overlay, replace, 0o600); err != nil {
			return "", err
		}
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/server")...)
	cmd.Env, cmd.Stderr = append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build answerd, from the repository's top: %w", err)
	}
	return binary, nil
}

// profileTime is the length of a CPU profile.
const profileTime = 4 * time.Second

// profileRow saves CPU and allocation profiles of the service under a row's load.
func (fx *fixture) profileRow(ctx context.Context, r row, l *load, addrFile string) error {
	name := strings.NewReplacer(" ", "-", ",", "").Replace(r.name)
	done := make(chan error, 1)
	go func() {
		done <- fx.saveProfile(addrFile, fmt.Sprintf("profile?seconds=%d", int(profileTime.Seconds())), name+".cpu")
	}()
	if _, err := l.askRepeatedly(ctx, r.callers, profileTime+200*time.Millisecond); err != nil {
		return err
	}
	if err := <-done; err != nil {
		return err
	}
	return fx.saveProfile(addrFile, "allocs", name+".allocs")
}

// saveProfile downloads a profile from the pprof server whose address is in addrFile. It writes the profile to file in
// the directory of -profiles.
func (fx *fixture) saveProfile(addrFile, profile, file string) error {
	addr, err := os.ReadFile(addrFile)
	if err != nil {
		return err
	}
	resp, err := http.Get("http://" + string(addr) + "/debug/pprof/" + profile)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	f, err := os.Create(filepath.Join(fx.profiles, file))
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, resp.Body); err != nil {
		return err
	}
	return f.Close()
}
