package mcp

import (
	"strings"
	"testing"

	"answerd/internal/mcp/config"
)

// Whoever makes the call: a call that needs an approval is not sent without one, nor with the
// approval of another definition.
func TestCallWithoutItsApprovalIsNotSent(t *testing.T) {
	s := newChangingServer(addV1, subTool)
	c := newClient(t, Options{}, config.Server{Name: "a", URL: serveHTTP(t, s).URL, Approval: config.ApproveDestructive})
	c.Tools(t.Context())
	add, _ := c.Tool("add")
	if free, _ := c.Tool("sub"); !add.NeedsApproval || free.NeedsApproval || len(add.Version()) != 64 || add.Version() == free.Version() {
		t.Fatalf("add %+v, sub %+v, want that only add needs approval, and two versions of 64 characters", add, free)
	}
	call := func(approved string) *CallError {
		_, err := c.Call(t.Context(), Call{Tool: "add", Approved: approved})
		return mustFail(t, err)
	}
	for _, approved := range []string{"", "x"} {
		if e := call(approved); e.Kind != Denied {
			t.Errorf("%q: %v, want Kind Denied", approved, e)
		}
	}
	res, err := c.Call(t.Context(), Call{Tool: "add", Approved: add.Version()})
	mustResult(t, res, err)

	s.setTools(addV1Again, subTool)
	if err := c.Refresh(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	res, err = c.Call(t.Context(), Call{Tool: "add", Approved: add.Version()}) // the same for every reader
	mustResult(t, res, err)
	s.setTools(addV2, subTool)
	if err := c.Refresh(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if e := call(add.Version()); e.Kind != Denied || !strings.Contains(e.Message, "changed") {
		t.Errorf("call error %v, want Kind Denied, Message containing changed", e)
	}
	if got := s.calls.Load(); got != 2 {
		t.Errorf("%d calls were sent, want 2", got)
	}
}

// The operator's file may come to ask for approval while tools are in use.
func TestApprovalAppliesAtOnceAfterAReload(t *testing.T) {
	s := newChangingServer(addV1)
	cfg := config.Server{Name: "a", URL: serveHTTP(t, s).URL}
	c := newClient(t, Options{}, cfg)
	c.Tools(t.Context())
	cfg.ApproveTools = []string{"add"}
	if err := c.Reload([]config.Server{cfg}); err != nil {
		t.Fatal(err)
	}
	_, err := c.Call(t.Context(), Call{Tool: "add"})
	if e := mustFail(t, err); e.Kind != Denied || s.calls.Load() != 0 {
		t.Errorf("call error %v, calls %d, want Kind Denied, calls 0", e, s.calls.Load())
	}
}
