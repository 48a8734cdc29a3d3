package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"answerd/internal/mcp/config"
	"answerd/internal/mcp/transport"
)

// pins are the tool definitions that the operator has accepted. A tool of a server
// with Pin whose definition is another, or new, cannot be called: what a model was
// told about a tool, and what was judged harmless, is not to change behind the
// operator's back (F22; CVE-2025-54136). It is read-only once made.
type pins struct {
	servers map[string]map[string]pin // by server and the tool's own name
	problem string                    // why there are none; "" where they were read
}

// pin is one accepted definition. The digest decides; the definition beside it is
// for the difference that an operator is shown.
type pin struct {
	SHA256     string     `json:"sha256"`
	Definition definition `json:"definition"`
}

// pinsFile is the file of pins.
type pinsFile struct {
	Comment string                    `json:"_comment"`
	Version int                       `json:"version"`
	Servers map[string]map[string]pin `json:"servers"`
}

const (
	pinsVersion = 1
	maxPins     = 64 << 20 // bytes of the file

	nothingAccepted = "nothing has been accepted yet"
	pinsComment     = "Tool definitions that were accepted with: answerd check -accept"
)

// readPins reads the file at path. What is wrong with it is in problem: a service
// with an unreadable file of pins runs, without the tools that need one.
func readPins(path string) *pins {
	none := func(problem string) *pins { return &pins{problem: problem} }
	if path == "" {
		return none("there is no file of accepted definitions")
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return none(nothingAccepted)
	}
	if err != nil {
		return none("the file of accepted definitions cannot be read")
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxPins+1))
	var file pinsFile
	switch {
	case err != nil:
		return none("the file of accepted definitions cannot be read")
	case len(data) > maxPins:
		return none("the file of accepted definitions is too large")
	case json.Unmarshal(data, &file) != nil, file.Version != pinsVersion:
		return none("the file of accepted definitions is damaged")
	}
	return &pins{servers: file.Servers}
}

// write replaces the file at path whole: whoever reads it gets the old one or the new.
func (p *pins) write(path string) error {
	data, err := json.MarshalIndent(pinsFile{pinsComment, pinsVersion, p.servers}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the accepted definitions: %w", err)
	}
	// 0600, since what a tool says of itself may be confidential.
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write the accepted definitions: %w", err)
	}
	_, err = f.Write(append(data, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write the accepted definitions: %w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// barred is a tool that cannot be called until the operator accepts its definition.
type barred struct {
	Tool
	why      string // fit for the caller
	digest   string
	accepted string // the digest that was accepted; "" where there is none
}

func (b barred) same(other barred) bool {
	return b.Original == other.Original && b.digest == other.digest && b.why == other.why
}

// digests are those of a server's tools, by their own names.
func digests(cfg *config.Server, tools []Tool) map[string]string {
	out := make(map[string]string, len(tools))
	for _, t := range tools {
		out[t.Original] = define(cfg, t).digest()
	}
	return out
}

// sift splits a server's tools into those whose definitions are as accepted, and the
// others.
func (p *pins) sift(cfg *config.Server, tools []Tool, digests map[string]string) (kept []Tool, out []barred) {
	for _, t := range tools {
		digest := digests[t.Original]
		known, ok := p.servers[cfg.Name][t.Original]
		why := ""
		switch {
		case p.problem != "":
			why = "its definition is not accepted: " + p.problem
		case !ok:
			why = "it is new, and its definition has not been accepted by the operator"
		case known.SHA256 != digest:
			why = "its definition has changed since the operator accepted it"
		default:
			kept = append(kept, t)
			continue
		}
		out = append(out, barred{t, "the tool is disabled: " + why, digest, known.SHA256})
	}
	return kept, out
}

// unlisted is a call that was not sent, since the session is newer than the list of
// tools.
var unlisted = &transport.Failure{Kind: Unavailable, Public: "its tools are being listed again", NotRun: true, Lost: true}

// verify waits, where tools are pinned, until those of the current session are known:
// a server that came back may be another.
func (s *server) verify(ctx context.Context, deadline time.Time) *transport.Failure {
	if !s.cfg.Pin || s.settled() {
		return nil
	}
	ctx, stop := context.WithDeadlineCause(ctx, deadline, transport.ErrTimeout)
	defer stop()
	err := s.await(ctx, false)
	var down *ServerError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ended(ctx)
	case errors.As(err, &down):
		return &transport.Failure{Kind: Unavailable, Public: down.Reason, NotRun: true, Err: err}
	}
	return &transport.Failure{Kind: Cancelled, Public: "answerd is shutting down", NotRun: true, Err: err}
}

// lists reports whether the tools that are known are those of a session.
func (s *server) lists(used *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listed == used
}
