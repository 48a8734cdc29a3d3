package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
)

// runners run the code blocks of documents, by language. Blocks in other languages are
// settings or excerpts. A runner that is not installed skips its blocks with a reason.
var runners = map[string]func(t *testing.T, code string) *exec.Cmd{
	"sh":     runShell,
	"go":     runGo,
	"js":     runNode,
	"mjs":    runRuntime,
	"jsx":    runPage,
	"ts":     runTypeScript,
	"python": runPython,
	"java":   runJava,
	"csharp": runCSharp,
}

// exampleBlock matches a heading (1), or a code block with its language (2) and its code (3).
var exampleBlock = regexp.MustCompile("(?ms)^## ([^\n]+)$|^```([a-z]+)\n(.*?)^```$")

// TestDocumentExamplesRun runs the code blocks of documents against the demo, and looks for the answer.
func TestDocumentExamplesRun(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	t.Parallel()
	p := spawnAnswerd(t, []string{"ADDR=127.0.0.1:0"}, "demo")

	url := p.demoURL(t)
	for page, atLeast := range map[string]int{
		"README.md": 2, "docs/http-api.md": 5, "docs/quickstart.md": 1,
		"docs/clients/ag-ui.md": 1, "docs/clients/ai-sdk.md": 2, "docs/clients/copilotkit.md": 1, "docs/clients/csharp.md": 2, "docs/clients/curl.md": 2,
		"docs/clients/eventsource.md": 1, "docs/clients/fetch.md": 1, "docs/clients/go.md": 2, "docs/clients/java.md": 2, "docs/clients/langchain.md": 1,
		"docs/clients/mcp-hosts.md": 1, "docs/clients/openai-node.md": 2, "docs/clients/openai-python.md": 2,
		"docs/tasks/structured-output.md": 2, "docs/tasks/conversations.md": 4, "docs/tasks/attachments.md": 1,
	} {
		t.Run(page, func(t *testing.T) {
			t.Parallel() // beside other pages; the examples of a page may belong to one thread
			runExamples(t, page, atLeast, url)
		})
	}
}

// runExamples runs the code blocks of a page, in order, against the demo at url.
func runExamples(t *testing.T, page string, atLeast int, url string) {
	t.Helper()
	doc, err := os.ReadFile("../../" + page)
	if err != nil {
		t.Fatal(err)
	}

	title, ran := "", 0
	for _, part := range exampleBlock.FindAllStringSubmatch(string(doc), -1) {
		if part[1] != "" {
			title = part[1]
			continue
		}
		run := runners[part[2]]
		if run == nil {
			continue
		}
		ran++
		t.Run(title, func(t *testing.T) {
			if part[2] != "sh" && part[2] != "go" && os.Getenv("ANSWERD_TEST_LONG") == "" {
				t.Skip("another language than Go's: make clients runs it")
			}
			code := strings.ReplaceAll(part[3], "http://127.0.0.1:8080", url)
			if code == part[3] {
				t.Errorf("the example does not ask the demo: got code %q, want the address http://127.0.0.1:8080 in it", code)
			}
			out := combinedOutput(t, run(t, code))
			if !strings.Contains(out, "100") && !strings.Contains(out, "May I? delete_note") {
				t.Errorf("got output %s, want it to contain 100 or \"May I? delete_note\"", out)
			}
		})
	}
	if ran < atLeast {
		t.Errorf("%s: got %d examples, want at least %d", page, ran, atLeast)
	}
}

// The settings for MCP hosts are true: the host that reads them here is answerd itself.
func TestHostConfigurationsConnect(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/clients/mcp-hosts.md")
	if err != nil {
		t.Fatal(err)
	}
	settings := regexp.MustCompile("(?s)## Settings.*?```json\n(.*?)```").FindStringSubmatch(string(doc))
	if settings == nil {
		t.Fatal("the page has no settings of MCP hosts, want a JSON block")
	}
	p := spawnAnswerd(t, []string{"ADDR=127.0.0.1:0"}, "demo")
	url := p.demoURL(t)
	config := writeCodeFile(t, t.TempDir(), "mcp.json", strings.ReplaceAll(settings[1], "http://127.0.0.1:8080", url))
	environ := environment{"MCP_CONFIG_PATH": config, "LLM_BASE_URL": llmtest.New(t, newTwoCallScript()).URL}
	var out strings.Builder
	if err := run(t.Context(), []string{"check"}, environ, &out, &out); err != nil || !strings.Contains(out.String(), "answerd") {
		t.Errorf("%v: %s, want out containing answerd, no error", err, out.String())
	}
}

// combinedOutput returns what cmd prints.
func combinedOutput(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	bounded := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	bounded.Dir = cmd.Dir
	out, err := bounded.CombinedOutput()
	if err != nil {
		t.Fatalf("error %v\n%s, want no error", err, out)
	}
	return string(out)
}

// newCommand returns the program of that name, or skips the test where it is missing.
func newCommand(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip(name + " is missing")
	}
	return exec.Command(path, args...)
}

// writeCodeFile writes code to a file of that name and returns its path.
func writeCodeFile(t *testing.T, dir, name, code string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func runShell(t *testing.T, code string) *exec.Cmd {
	newCommand(t, "curl")
	return newCommand(t, "sh", "-ec", code)
}

func runGo(t *testing.T, code string) *exec.Cmd {
	return newCommand(t, "go", "run", writeCodeFile(t, t.TempDir(), "main.go", code))
}

// runNode runs code as a program.
func runNode(t *testing.T, code string) *exec.Cmd {
	return newCommand(t, "node", writeTypeScript(t, clients, "example.mjs", code))
}

// runRuntime runs a runtime of CopilotKit's, and asks by CopilotKit's client.
func runRuntime(t *testing.T, code string) *exec.Cmd {
	return newCommand(t, "node", clients+"/copilotkit/drive.js", writeTypeScript(t, clients+"/copilotkit", "example.mjs", code), "What is 12.5 * 8?")
}

// runPage runs a component in a page, and asks by its form.
func runPage(t *testing.T, code string) *exec.Cmd {
	return newCommand(t, "node", clients+"/page.js", writeTypeScript(t, clients, "example.jsx", code), "What is 12.5 * 8?", "= 100")
}

// clients is where the packages are that run.sh there has installed.
const clients = "../../internal/api/clients"

// writeTypeScript writes code to a file among the packages of dir.
func writeTypeScript(t *testing.T, dir, name, code string) string {
	t.Helper()
	modules, err := filepath.Abs(dir + "/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := os.ReadFile(filepath.Join(filepath.Dir(modules), "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	// Those of an older lock file are not all that the examples need.
	if got, _ := os.ReadFile(filepath.Join(modules, ".installed")); string(got) != string(wanted) {
		t.Skip("the packages are not installed: make clients does that")
	}
	own, err := os.MkdirTemp(modules, ".example-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(own) })
	return writeCodeFile(t, own, name, code)
}

// runTypeScript strips the types that this document uses: Node 20 does not.
func runTypeScript(t *testing.T, code string) *exec.Cmd {
	plain := regexp.MustCompile(`([\w)\]])!([.;])`).ReplaceAllString(code, "$1$2")
	return newCommand(t, "node", writeCodeFile(t, t.TempDir(), "example.mjs", plain))
}

// pythonImport matches the package that a line imports.
var pythonImport = regexp.MustCompile(`(?m)^(?:from|import) (\w+)`)

func runPython(t *testing.T, code string) *exec.Cmd {
	python := os.Getenv("ANSWERD_PYTHON")
	if python == "" {
		python = "python3"
	}
	for _, m := range pythonImport.FindAllStringSubmatch(code, -1) {
		if err := newCommand(t, python, "-c", "import "+m[1]).Run(); err != nil {
			t.Skip("Python's " + m[1] + " is missing: make clients installs openai where it can")
		}
	}
	return newCommand(t, python, "-c", code)
}

// runJava compiles a class and runs it.
func runJava(t *testing.T, code string) *exec.Cmd {
	newCommand(t, "javac") // java alone cannot run a source file
	return newCommand(t, "java", "-XX:TieredStopAtLevel=1", writeCodeFile(t, t.TempDir(), "Example.java", code))
}

// csharpProject is the project of a C# program.
const csharpProject = `<Project Sdk="Microsoft.NET.Sdk"><PropertyGroup><OutputType>Exe</OutputType><TargetFramework>net8.0</TargetFramework>` +
	`<RollForward>Major</RollForward><ImplicitUsings>enable</ImplicitUsings><Nullable>enable</Nullable></PropertyGroup></Project>`

func runCSharp(t *testing.T, code string) *exec.Cmd {
	newCommand(t, "dotnet")
	dir := t.TempDir()
	writeCodeFile(t, dir, "Program.cs", code)
	return newCommand(t, "dotnet", "run", "--project", writeCodeFile(t, dir, "Example.csproj", csharpProject))
}
