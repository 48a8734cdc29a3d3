package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"answerd/internal/llm/llmtest"
)

// olderCommits is how many commits the older version is behind, unless OLD names a revision.
const olderCommits = "150"

// buildOlder builds answerd at an earlier revision. It skips the test where the history is missing,
// as in an archive or a shallow clone.
func buildOlder(t testing.TB) (path, revision string) {
	t.Helper()
	git := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = filepath.Join("..", "..")
		return cmd.Output()
	}
	revision = os.Getenv("OLD")
	if revision == "" {
		out, err := git("rev-list", "--first-parent", "--max-count=1", "--skip="+olderCommits, "HEAD")
		if revision = strings.TrimSpace(string(out)); err != nil || revision == "" {
			t.Skipf("git has no older revision: %v", err)
		}
	}
	dir := t.TempDir()
	archive := filepath.Join(dir, "archive.tar")
	if _, err := git("archive", "--output="+archive, revision); err != nil {
		t.Skipf("git has no revision %s: %v", revision, err)
	}
	if out, err := exec.CommandContext(t.Context(), "tar", "-xf", archive, "-C", dir).CombinedOutput(); err != nil {
		t.Skipf("no tar: %v %s", err, out)
	}
	path = filepath.Join(dir, "older-answerd")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./cmd/server")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build revision %s: %v %s, want a binary", revision, err, out)
	}
	return path, revision[:min(8, len(revision))]
}

// startVersion starts a replica with the binary at path.
func (f *fleet) startVersion(t testing.TB, path string) {
	t.Helper()
	f.mu.Lock()
	f.replicas = append(f.replicas, nil)
	last := len(f.replicas) - 1
	f.mu.Unlock()
	f.replaceBy(t, last, path)
}

// replaceBy starts a process of the binary at path in the place of a replica that has ended.
func (f *fleet) replaceBy(t testing.TB, i int, path string) {
	t.Helper()
	s := startProcess(t, exec.Command(path), f.env...)
	s.waitUntilListening(t)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replicas[i] = s
}

// startUntilApproval starts a run whose call needs an approval, and returns when it waits for that.
func (f *fleet) startUntilApproval(t testing.TB, name string) (run, interrupt string) {
	t.Helper()
	resp, err := f.replica(0).send(t.Context(), "POST", "/answer/stream", fmt.Sprintf(`{"question":%q}`, name), "Idempotency-Key", name)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := readEvents(resp.Body, func(e streamEvent) bool { return e.Type != "suspended" })
	if err != nil || got.last().Type != "suspended" {
		t.Fatalf("%s: got %+v, %v, want a suspended run", name, got, err)
	}
	return got.last().RunID, got.ofType("approval_required").last().InterruptID
}

// approvingModel calls the tool "careful" once for questions that begin with "approve", and is
// fleetModel for the others.
func approvingModel(q llmtest.Request) llmtest.Answer {
	name, called := "", false
	for _, m := range q.Messages {
		if m.Role == "user" {
			name = m.Content
		}
		called = called || len(m.ToolCalls) > 0
	}
	switch {
	case !strings.HasPrefix(name, "approve"):
		return fleetModel(q)
	case called:
		return llmtest.Says("Done.")
	}
	return llmtest.Calls(llmtest.Call{Name: "careful", Args: fmt.Sprintf(`{"do":%q}`, name)})
}

// askForApprovals gives the fleet a second tool, "careful", whose calls a person must approve.
func (f *fleet) askForApprovals(t testing.TB) {
	t.Helper()
	model := llmtest.New(t, approvingModel)
	model.Forget()
	careful := newPeer(t, f.countCall)
	careful.list = resultReply(`{"tools":[{"name":"careful","inputSchema":{"type":"object"}}]}`)
	setting, _ := mcpConfig(t, fmt.Sprintf(`{"mcpServers":{"careful":{"url":%q,"tools":{"approve":["careful"]}}}}`, careful.url))
	f.env = append(slices.DeleteFunc(f.env, func(s string) bool { return strings.HasPrefix(s, "LLM_BASE_URL=") }), "LLM_BASE_URL="+model.URL, setting)
}

// wantAnswers checks that all runs of the load have ended with their answer.
func (f *fleet) wantAnswers(t testing.TB, where string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ends["final_answer"] == 0 {
		t.Errorf("%s: no run ended with its answer, want some", where)
	}
	for end, n := range f.ends {
		if end != "final_answer" {
			t.Errorf("%s: %d runs ended with %s, want all to end with their answer", where, n, end)
		}
	}
}

func TestF46VersionsShareALog(t *testing.T) {
	r := beginFault(t, "an older version and this one share a log: an upgrade replica by replica under load, and a rollback; with file: one process after the other; runs wait for an approval meanwhile",
		"no event is lost or doubled, no call is made twice, every run ends with its answer, every version reads the runs of the other")
	older, revision := buildOlder(t)
	for _, where := range []string{"NATS", "file:"} {
		replicas, events := 2, "file:"+filepath.Join(t.TempDir(), "log")
		if where == "NATS" {
			events = startNATS(t).ClientURL()
		} else {
			replicas = 1
		}

		f := newFleet(t, events)
		f.askForApprovals(t)
		f.env = append(f.env, "EVENTS_BATCH=false") // docs/upgrading.md

		for range replicas {
			f.startVersion(t, older)
		}

		f.waitUntilAllAnswer(t)
		load := f.startLoad(t, 4, where)

		for step, version := range []string{binary, older} {
			run, interrupt := f.startUntilApproval(t, fmt.Sprintf("approve-%s-%d", where, step))
			for i := range replicas {
				if code := f.replica(i).stop(t); code != 0 {
					t.Errorf("%s: replica %d ended with %d, want 0", where, i, code)
				}
				f.replaceBy(t, i, version)
				f.waitUntilAllAnswer(t)
			}
			f.approve(t, run, interrupt)
		}

		load.stop(t)
		f.wantAnswers(t, where)
		r.record("%s, with revision %s: %s", where, revision, f.report(t))
	}
}

// approve answers the question of a suspended run, and waits for the run's answer.
func (f *fleet) approve(t testing.TB, run, interrupt string) {
	t.Helper()
	s := f.replica(0)
	if a := s.request(t, "POST", "/runs/"+run+"/input", fmt.Sprintf(`{"id":%q,"approved":true}`, interrupt)); a.status != 200 {
		t.Errorf("the approval of %s got %d %s, want 200", run, a.status, a.body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	resp, err := s.send(ctx, "GET", "/runs/"+run+"/events", "")
	if err != nil {
		t.Errorf("read %s: %v", run, err)
		return
	}
	defer resp.Body.Close()
	got, err := readEvents(resp.Body, func(e streamEvent) bool { return !e.terminal() })
	if err != nil || got.last().Answer != "Done." || len(got.ofType("tool_result")) != 1 {
		text, _ := json.Marshal(got.last())
		t.Errorf("%s ended with %s after its approval, %v, want a result and the answer", run, text, err)
	}
}
