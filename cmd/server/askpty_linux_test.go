package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"
	"unsafe"

	"answerd/internal/llm/llmtest"
)

// openTerminal returns the two ends of a pseudo-terminal with so many columns: the person's, and the program's.
func openTerminal(t *testing.T, columns uint16) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip("there are no pseudo-terminals:", err)
	}
	t.Cleanup(func() { person.Close() })
	var number, unlock uint32
	size := [4]uint16{24, columns}
	for request, argument := range map[uintptr]unsafe.Pointer{syscall.TIOCGPTN: unsafe.Pointer(&number), syscall.TIOCSPTLCK: unsafe.Pointer(&unlock), syscall.TIOCSWINSZ: unsafe.Pointer(&size)} {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, person.Fd(), request, uintptr(argument)); errno != 0 {
			t.Fatalf("ioctl %#x: got %v, want no error", request, errno)
		}
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return person, program
}

// readUntil returns what a terminal shows, up to text.
func readUntil(t *testing.T, terminal *os.File, text string) string {
	t.Helper()
	var shown strings.Builder
	buffer := make([]byte, 4096)
	for !strings.Contains(shown.String(), text) {
		n, err := terminal.Read(buffer)
		if err != nil {
			t.Fatalf("got %q, %v, want %q", &shown, err, text)
		}
		shown.Write(buffer[:n])
	}
	return shown.String()
}

// Ctrl-C at a question about a run ends the run as it does elsewhere. It does not refuse the call and continue.
func TestAskIsInterruptedAtAQuestion(t *testing.T) {
	t.Parallel()
	url := startDemo(t)
	person, program := openTerminal(t, 40)
	p := newAskCommand(t.Context(), nil, "ask", "-url", url, "delete note 2")
	p.Stdin, p.Stderr = program, program
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	readUntil(t, person, "arguments: ")
	person.WriteString("0123456789")
	if shown := readUntil(t, person, "789"); !strings.Contains(shown, "01234\r\n56789") { // the question has 35 characters
		t.Errorf("got %q, want the line wrapped after 40 columns", shown)
	}
	person.WriteString("\x03")
	if err := p.Wait(); p.ProcessState.ExitCode() != 130 {
		t.Errorf("got %v, want exit code 130", err)
	}
	if _, runs := getBody(t, newClient(t), url+"/runs?limit=1"); !strings.Contains(runs, `"status":"cancelled"`) {
		t.Errorf("got %s, want the run cancelled", runs)
	}
}

// At the prompt of a conversation no run is in progress: Ctrl-C ends it as Ctrl-D does, and a signal as everywhere else.
func TestChatIsEndedAtItsPrompt(t *testing.T) {
	t.Parallel()
	url := startDemo(t)
	for _, c := range []struct {
		keys string
		code int
	}{{"\x03", 0}, {"\x04", 0}, {"", 130}} {
		person, program := openTerminal(t, 80)
		p := newAskCommand(t.Context(), nil, "chat", "-url", url)
		p.Stdin, p.Stderr = program, program
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		readUntil(t, person, "> ")
		if person.WriteString(c.keys); c.keys == "" {
			_ = p.Process.Signal(syscall.SIGINT) // the exit code is checked
		}
		if err := p.Wait(); p.ProcessState.ExitCode() != c.code {
			t.Errorf("%q: got %v, want exit code %d", c.keys, err, c.code)
		}
	}
}

// Without colours the text is not rendered, but what the model says must not control the terminal either.
func TestAskWithoutColorsWritesNoControlCharacters(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, llmtest.Turns(llmtest.Says("safe \x1b[2J\u009b2Jtext"), llmtest.Says("safe \x1b[2J\u009b2Jtext")))
	url := startAnswerd(t, w.environment()).url
	for _, flags := range [][]string{nil, {"-json"}} {
		person, program := openTerminal(t, 80)
		p := exec.CommandContext(t.Context(), os.Args[0], append([]string{"ask", "-url", url, "?"}, flags...)...)
		p.Env, p.Stdout = []string{"TEST_AS_ANSWERD=1", "NO_COLOR=1"}, program
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		if shown := readUntil(t, person, "text"); strings.ContainsAny(shown, "\x1b\u009b") {
			t.Errorf("%s: got %q, want no control characters", flags, shown)
		}
		if err := p.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// A terminal wraps a status line that is too long, and erasing the line then leaves its first row. With the spinner,
// that happened ten times a second.
func TestAskKeepsItsStatusLineOnOneRow(t *testing.T) {
	t.Parallel()
	url := startDemo(t)
	person, program := openTerminal(t, 8)
	p := newAskCommand(t.Context(), nil, "ask", "-url", url, demoQuestion)
	p.Stderr = program
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	shown := readUntil(t, person, "✓")
	for _, status := range strings.Split(shown, "\r\x1b[K")[1:] {
		if n := utf8.RuneCountInString(status); strings.Contains(status, " th") && n >= 8 {
			t.Errorf("got the status line %q of %d columns, want fewer than 8", status, n)
		}
	}
	if err := p.Wait(); err != nil || !strings.Contains(shown, " th") {
		t.Errorf("got %v and %q, want an answer after a status line", err, shown)
	}
}
