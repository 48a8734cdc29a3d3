// The console and answers that the demo never gives: hostile, broken, refused.
import { after, before, beforeEach, describe, it } from "node:test";
import assert from "node:assert/strict";
import { accessible, answered, ask, finalAnswer, fits, missing, openPage, problem, says, script, sse, start, startBrowser, startDemo } from "./stage.js";

const call = { call_id: "c1", tool: "lookup", server: "crm" };

describe("the console and scripted answers", { skip: missing }, () => {
  let demo, browser, page, faults, close;
  before(async () => {
    [demo, browser] = await Promise.all([startDemo(), startBrowser()]);
  });
  beforeEach(async () => {
    await close?.();
    ({ page, faults, close } = await openPage(browser, demo.url));
  });
  after(async () => {
    await browser?.close();
    await demo?.stop();
  });

  it("never makes markup of what a model or a tool says", async () => {
    const evil = '<img src=x onerror=alert(1)><script>alert(2)</script>';
    await script(page, sse([
      start,
      { type: "step_start", step: 1 },
      { type: "reasoning_start", part_id: "r" }, { type: "reasoning_delta", part_id: "r", delta: evil }, { type: "reasoning_end", part_id: "r" },
      { type: "tool_call_start", ...call, tool: evil, server: evil },
      { type: "tool_call", ...call, tool: evil, args: { [evil]: evil } },
      { type: "tool_error", ...call, tool: evil, payload: evil, kind: evil },
      { type: "text_start", part_id: "t" },
      { type: "text_delta", part_id: "t", delta: `${evil}\n\n[a](javascript:alert(3)) [b](data:text/html,x) **${evil}** \`${evil}\`\n\n- ${evil}\n\n[c](https://user:pw@a.example/) [d](HTTPS://b.example/x_y_z) https://c.example/q?a=1.` },
      { type: "run_error", code: evil, message: evil, retryable: false, partial_answer: "" },
    ]));
    await ask(page, evil);
    await answered(page);
    assert.equal(await page.locator(".conversation :is(img, script, style, iframe, form, object)").count(), 0);
    const links = await page.locator(".conversation a").evaluateAll((all) => all.map((a) => [a.getAttribute("href"), a.rel]));
    assert.deepEqual(links, [
      ["https://b.example/x_y_z", "noopener noreferrer nofollow"],
      ["https://c.example/q?a=1", "noopener noreferrer nofollow"],
    ]);
    assert.deepEqual(faults, []);
  });

  it("shows the pictures of a result, and nothing else as one", async () => {
    const png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    const content = [
      { type: "text", text: "Look:" },
      { type: "image", mimeType: "image/png", data: png },
      { type: "resource", resource: { uri: "file:///a.png", mimeType: "image/png", blob: png } },
      { type: "image", mimeType: "image/svg+xml", data: "PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciLz4=" },
      { type: "image", mimeType: 'image/png,"><script>alert(1)</script>', data: png },
      { type: "image", mimeType: "image/png", data: '" onerror="alert(1)' },
      { type: "image", mimeType: "image/png" }, { type: "image" }, null, 7,
    ];
    await script(page, sse([
      start, { type: "step_start", step: 1 },
      { type: "tool_call_start", ...call }, { type: "tool_call", ...call, args: {} },
      { type: "tool_result", ...call, args: {}, payload: content, content, duration_ms: 1 },
      { type: "step_end", step: 1 }, finalAnswer("seen"),
    ]));
    await ask(page, "?");
    await answered(page);
    await page.locator(".call > summary").click();
    const images = page.locator(".conversation img");
    assert.deepEqual(await images.evaluateAll((all) => all.map((i) => [i.alt, i.src.slice(0, 26), i.naturalWidth])), [
      ["Result of lookup, image 1", "data:image/png;base64,iVBO", 1],
      ["Result of lookup, image 2", "data:image/png;base64,iVBO", 1],
    ]);
    assert.match(await page.getByRole("group", { name: "Result of lookup" }).innerText(), /Look:[^]*shown below/);
    await accessible(page);
    assert.deepEqual(faults, []);
  });

  it("shows all of a result that its event has a part of", async () => {
    const url = "/runs/run_script/results/c1";
    const asked = [];
    await page.route("**/runs/**", (route) => {
      asked.push(new URL(route.request().url()).pathname);
      if (asked.length === 1) return route.fulfill(problem(410, "gone", "This part of the run is no longer kept."));
      return route.fulfill({ json: { call_id: "c1", payload: "x".repeat(300_000) + "end", content: [] } });
    });
    await script(page, sse([
      start, { type: "step_start", step: 1 },
      { type: "tool_call_start", ...call }, { type: "tool_call", ...call, args: {} },
      { type: "tool_result", ...call, args: {}, payload: "x\n[cut here]", content: [], truncated: { bytes: 300_003, url }, duration_ms: 1 },
      { type: "step_end", step: 1 }, finalAnswer("seen"),
    ]));
    await ask(page, "?");
    await answered(page);
    await page.locator(".call > summary").click();
    await page.getByText("Only a part of 300 kB is shown.").waitFor();
    const button = page.getByRole("button", { name: "Show all of it" });
    await button.click();
    await page.getByText("This part of the run is no longer kept.").waitFor();
    await accessible(page);
    // The browser itself says on its console that something was 410.
    assert.equal(faults.splice(0).filter((f) => !f.includes("410")).length, 0);
    await button.click();
    await button.waitFor({ state: "detached" });
    assert.ok((await page.getByRole("group", { name: "Result of lookup" }).textContent()).endsWith("xend"));
    assert.deepEqual(asked, [url, url]);
    await accessible(page);
    await fits(page);
    assert.deepEqual(faults, []);
  });

  it("shows the Markdown that models write", async () => {
    const text = "# Title\nOne **bold** and *soft* ***both*** **bold *and soft*** `co*de*` snake_case_name 2 * 3 * 4\nnext line\n\n1. first\n   - inner\n   - **two**\n2. second\n\n```go\nfunc main() {}\n\n// <b>\n```\nafter \\*plain\\* **open";
    await script(page, says(text));
    await ask(page, "?");
    await answered(page);
    const html = await page.locator(".text").innerHTML();
    assert.equal(html, [
      "<h3>Title</h3>",
      "<p>One <strong>bold</strong> and <em>soft</em> <strong><em>both</em></strong> <strong>bold <em>and soft</em></strong> <code>co*de*</code> snake_case_name 2 * 3 * 4\nnext line</p>",
      "<ol><li>first<ul><li>inner</li><li><strong>two</strong></li></ul></li><li>second</li></ol>",
      '<div class="code"><div class="code-head"><span>go</span><button type="button" class="link copy"><span>Copy</span><span class="unseen"> the code</span></button></div>' +
        '<pre tabindex="0" role="group" aria-label="Code, go"><code>func main() {}\n\n// &lt;b&gt;</code></pre></div>',
      "<p>after *plain* **open</p>",
    ].join(""));
    await accessible(page);
  });

  // A search that looks too far ahead takes minutes here; the test's own time limit tells.
  it("survives a megabyte of marks", async () => {
    for (const mark of ["*", "_ ", "`", "[", "**a ", "*b ", "- ", "> ", "``a`", "# ", "https://a", "\n1. "]) {
      const shown = await page.evaluate(async (text) => {
        const { MarkdownView } = await import("/console/markdown.js");
        const root = document.createElement("div");
        new MarkdownView(root).show(text);
        return root.childElementCount;
      }, mark.repeat(2 ** 20 / mark.length));
      assert.ok(shown > 0, `nothing of ${JSON.stringify(mark)}`);
    }
  });

  it("keeps the nodes of what is said when more is said", async () => {
    const kept = await page.evaluate(async () => {
      const { MarkdownView } = await import("/console/markdown.js");
      const root = document.createElement("div");
      const view = new MarkdownView(root);
      view.show("one\n\ntwo");
      const [one, two] = root.children;
      view.show("one\n\ntwo and\n\n- three");
      return [root.children[0] === one, root.children[1] === two, root.children.length];
    });
    assert.deepEqual(kept, [true, false, 3]);
  });

  it("voids what a step said when the step runs again", async () => {
    await script(page, sse([
      start, { type: "step_start", step: 1 },
      { type: "text_start", part_id: "a" }, { type: "text_delta", part_id: "a", delta: "void" },
      { type: "tool_call_start", ...call },
      { type: "step_reset", step: 1, reason: "moved" },
      { type: "text_start", part_id: "b" }, { type: "text_delta", part_id: "b", delta: "kept" }, { type: "text_end", part_id: "b" },
      { type: "step_end", step: 1 }, { type: "something_new", x: 1 }, finalAnswer("kept"),
    ]));
    await ask(page, "?");
    await answered(page);
    assert.equal(await page.locator(".text").innerText(), "kept");
    assert.equal(await page.locator(".call").count(), 0);
    assert.deepEqual(faults, []);
  });

  it("shows what an MCP server asks as a form, and goes on when it is answered", async () => {
    const evil = "<b>x</b>\u202e";
    const begun = [start, { type: "step_start", step: 1 }, { type: "tool_call_start", ...call }, { type: "tool_call", ...call, args: {} }, { type: "step_end", step: 1 }];
    const asked = (more) => ({ type: "elicitation", ...call, interrupt_id: "int_1", message: `For whom? ${evil}`, expires_at: 4e12, ...more });
    const waits = { type: "suspended", interrupts: [{ id: "int_1", kind: "elicitation" }] };
    const rest = (action) => sse([
      { type: "elicitation_resolved", ...call, interrupt_id: "int_1", action, seq: 8 },
      { type: "tool_result", ...call, payload: 1, duration_ms: 1 }, finalAnswer("ok"),
    ]);
    const schema = {
      type: "object", required: ["name", "people"],
      properties: {
        name: { type: "string", title: `Name ${evil}` }, people: { type: "integer", minimum: 1, description: "How many?" }, note: { type: "string" },
        table: { type: "string", enum: ["in", "out"], enumNames: ["Inside", "Outside"] }, day: { description: `Which? ${evil}`, oneOf: [{ const: "fri", title: `Friday ${evil}` }, { const: "sat", title: "Saturday" }] },
        quiet: { type: "boolean", default: true }, extras: { type: "array", items: { enum: ["cake", "wine"] } },
      },
    };
    const play = async (question, answer, act) => {
      await page.unrouteAll();
      await page.goto(demo.url);
      const inputs = [];
      let given;
      const answeredIt = new Promise((resolve) => (given = resolve));
      let streams = 0;
      await page.route("**/answer/stream", async (route) => {
        if (streams++ === 0) return route.fulfill({ contentType: "text/event-stream", body: sse([...begun, asked(question), waits]) });
        assert.equal(route.request().headers()["last-event-id"], "run_script:7");
        await answeredIt;
        return route.fulfill({ contentType: "text/event-stream", body: rest(answer) });
      });
      await page.route("**/runs/run_script/input", (route) => {
        inputs.push(route.request().postDataJSON());
        if (inputs.length === 1) return route.fulfill(problem(422, "unprocessable", "The answer does not fit what was asked for."));
        given();
        return route.fulfill({ contentType: "application/json", body: "{}" });
      });
      await ask(page, "?");
      await page.locator(".ask").waitFor();
      await act();
      await page.getByText("does not fit").waitFor(); // the form stays, with what is in it
      await accessible(page);
      await page.locator(".ask").getByRole("button", { name: question.button ?? "Send" }).click();
      await answered(page);
      assert.equal(streams, 2);
      return inputs.at(-1);
    };
    const filled = await play({ mode: "form", schema }, "accept", async () => {
      assert.equal(await page.locator(".ask b").count(), 0);
      assert.match(await page.locator(".ask-message").textContent(), /<b>x<\/b>\\u\{202e\}/);
      assert.match(await page.locator(".ask").textContent(), /waits for you until .*2096/); // INPUT_TIMEOUT may be days
      assert.doesNotMatch(await page.locator(".ask").textContent(), /\u202e/); // nor in the names of fields
      await page.locator(".ask").getByLabel("Name").fill("Ada");
      await page.getByLabel("people").fill("4");
      await page.locator(".ask").getByLabel("table").selectOption("Outside");
      await page.getByLabel("day").selectOption("Saturday");
      await page.getByLabel("wine").check();
      await fits(page);
      await page.locator(".ask").getByLabel("Name").press("Enter");
    });
    assert.deepEqual(filled, { id: "int_1", action: "accept", content: { name: "Ada", people: 4, table: "out", day: "sat", quiet: true, extras: ["wine"] } });
    const visited = await play({ mode: "url", url: "https://sign-in.example/start?x=1", button: "Decline" }, "decline", async () => {
      const link = page.getByRole("link", { name: "Open sign-in.example" });
      assert.equal(await link.getAttribute("href"), "https://sign-in.example/start?x=1");
      assert.equal(await link.getAttribute("rel"), "noopener noreferrer nofollow");
      await page.getByRole("button", { name: "I have done it" }).click();
    });
    assert.deepEqual(visited, { id: "int_1", action: "decline" });
    await play({ mode: "url", url: "javascript:alert(1)", button: "Decline" }, "decline", async () => {
      assert.equal(await page.locator(".ask a").count(), 0);
      await page.getByRole("button", { name: "Decline" }).click();
    });
    assert.deepEqual(faults.filter((f) => !/status of 422/.test(f)), []);
  });

  it("spells out what cannot be seen in the arguments to approve", async () => {
    const args = { to: "eve\u202egnp.", hidden: "a\u200bb\u{e0041}" };
    await script(page, sse([
      start, { type: "step_start", step: 1 }, { type: "tool_call_start", ...call }, { type: "tool_call", ...call, args: { to: "old" } }, { type: "step_end", step: 1 },
      { type: "approval_required", ...call, interrupt_id: "int_1", args, message: "Allow it?", tool_version: "v", expires_at: 4e12 },
      { type: "suspended", interrupts: [] },
    ]), sse([{ type: "approval_resolved", ...call, interrupt_id: "int_1", approved: false, reason: "expired", seq: 8 }, { type: "tool_error", ...call, kind: "denied", payload: "no", duration_ms: 0 }, finalAnswer("ok")]));
    const shown = page.locator(".call .value").first().textContent();
    await ask(page, "?");
    assert.match(await shown, /eve\\u\{202e\}gnp\.[^]*a\\u\{200b\}b\\u\{e0041\}/);
    await answered(page);
    assert.match(await page.locator(".call").textContent(), /Not approved: expired/);
  });

  it("keeps reasoning folded and copies the trace id", async () => {
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    await script(page, sse([
      start, { type: "step_start", step: 1 },
      { type: "reasoning_start", part_id: "r" }, { type: "reasoning_delta", part_id: "r", delta: "let me think" }, { type: "reasoning_end", part_id: "r" },
      { type: "text_start", part_id: "t" }, { type: "text_delta", part_id: "t", delta: "yes" }, { type: "text_end", part_id: "t" },
      { type: "step_end", step: 1 }, finalAnswer("yes"),
    ]));
    await ask(page, "?");
    await answered(page);
    const reasoning = page.locator(".reasoning-text");
    assert.equal(await reasoning.isVisible(), false);
    await page.getByText("Reasoning").click();
    assert.equal(await reasoning.textContent(), "let me think");
    await page.locator(".about-summary").click();
    await page.getByRole("button", { name: "Copy the trace id" }).click();
    await page.getByText("Copied", { exact: true }).waitFor();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), start.trace_id);
    await accessible(page);
  });

  it("shows a problem with its detail, its fields and its code, and gives the question back", async () => {
    await script(page, { status: 400, contentType: "application/problem+json",
      body: JSON.stringify({ status: 400, code: "invalid_request", detail: "The request has invalid fields.", errors: [{ pointer: "/question", detail: "must not be blank" }] }) });
    await ask(page, "what?");
    await answered(page);
    const shown = await page.locator(".turn").getByRole("alert").textContent();
    assert.match(shown, /invalid fields\. \/question: must not be blank\. invalid_request/);
    assert.equal(await page.getByLabel("Your question").inputValue(), "what?");
    await accessible(page);
  });

  it("asks for a token at 401, says so when it is refused, and sends it", async () => {
    await page.route("**/{servers,tools}", (route) => route.request().headers().authorization === "Bearer good" ? route.fallback() : route.fulfill(problem(401, "unauthenticated", "A valid bearer token is required.")));
    await page.route("**/answer/stream", (route) => route.request().headers().authorization === "Bearer good" ? route.fulfill({ contentType: "text/event-stream", body: says("hello") }) : route.fulfill(problem(401, "unauthenticated", "A valid bearer token is required.")));
    await page.goto(demo.url);
    const form = page.locator("#token-form");
    await form.waitFor();
    await accessible(page);
    await page.setViewportSize({ width: 380, height: 740 });
    await fits(page);
    await page.setViewportSize({ width: 1280, height: 800 });
    await ask(page, "?");
    await page.getByLabel("Bearer token").fill("bad");
    await page.getByRole("button", { name: "Use it" }).click();
    await page.getByText("The token was not accepted.").waitFor();
    await page.getByLabel("Bearer token").fill("Bearer good ");
    await page.getByRole("button", { name: "Use it" }).click();
    await answered(page);
    assert.equal(await page.locator(".text").innerText(), "hello");
    assert.equal(await form.isVisible(), false);
    await page.locator(".server").waitFor(); // the panel had waited for the same token
    assert.equal(await page.evaluate(() => sessionStorage.getItem("answerd.token")), "good");
    await page.getByRole("button", { name: "Forget it" }).click();
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  });

  it("ends well at 204, and says so at 410 and at a gap", async () => {
    const begun = sse([start, { type: "step_start", step: 1 }]);
    for (const [answer, shown] of [
      [{ status: 204 }, null],
      [problem(410, "gone", "This part of the run is no longer kept."), /no longer kept\. gone/],
      [problem(404, "not_found", "There is no such run."), /no such run\. not_found/],
      [sse([{ type: "budget", limit: "x", used: 1, max: 1, seq: 4 }]), /missing from the stream\. gap/],
      ["data: {\n\n", /not an event\. unreadable/],
    ]) {
      await page.unrouteAll();
      const requests = await script(page, begun, answer);
      await ask(page, "?");
      await answered(page);
      assert.equal(requests.length, 2);
      assert.equal(requests[1].headers["last-event-id"], "run_script:2");
      const alert = page.locator(".turn").last().getByRole("alert");
      if (shown) assert.match(await alert.textContent(), shown);
      else assert.equal(await alert.count(), 0);
    }
  });

  it("waits out a service that restarts, but tells of one that is busy", async () => {
    const requests = await script(page, "cut", problem(502, "http_502", ""), sse([start]), problem(503, "draining", ""), says("there"));
    await ask(page, "?");
    await answered(page);
    assert.equal(requests.length, 5);
    assert.equal(await page.locator(".text").innerText(), "there");
    await page.unrouteAll();
    await script(page, problem(503, "overloaded", "The service has too many runs in progress."));
    await ask(page, "?");
    await answered(page);
    assert.match(await page.locator(".turn").last().textContent(), /overloaded/);
  });

  it("sends with Enter, but not with Shift and not while a word is composed", async () => {
    const requests = await script(page, says("yes"));
    const field = page.getByLabel("Your question");
    await field.pressSequentially("one");
    await page.keyboard.press("Shift+Enter");
    await field.pressSequentially("two");
    await field.dispatchEvent("keydown", { key: "Enter", isComposing: true });
    await field.dispatchEvent("keydown", { key: "Enter", keyCode: 229 }); // as Safari ends a composition
    assert.equal(await field.inputValue(), "one\ntwo");
    assert.equal(requests.length, 0);
    await page.keyboard.press("Enter");
    await answered(page);
    assert.equal(requests[0].body.question, "one\ntwo");
    assert.equal(await field.inputValue(), "");
    await page.keyboard.press("Enter"); // a blank question is none
    assert.equal(requests.length, 1);
  });

  it("reads a stream however it is cut and whatever ends its lines", async () => {
    const parse = (pieces) => page.evaluate(async (pieces) => {
      const { readFrames } = await import("/console/sse.js");
      const encoder = new TextEncoder();
      const all = pieces.map((p) => encoder.encode(p));
      const body = new ReadableStream({ pull: (c) => (all.length ? c.enqueue(all.shift()) : c.close()) });
      const frames = [];
      for await (const frame of readFrames(body, 60_000)) frames.push(frame);
      return frames;
    }, pieces);
    const want = [{ id: "r:1", event: "a", data: "x: y\nü€" }, { id: "r:1", event: "", data: "" }, { id: "r:2", event: "b", data: "z" }];
    for (const end of ["\n", "\r", "\r\n"]) {
      const text = "\ufeffid: r:1\nevent: a\n: ping\ndata: x: y\ndata:ü€\n\n: ping\nretry: 5\n\nevent: lost\n\ndata\n\nid: r:2\nid: bad\0\nevent:b\ndata:z\n\ndata: cut\n".replaceAll("\n", end);
      for (let at = 0; at <= text.length; at++) {
        assert.deepEqual(await parse([text.slice(0, at), text.slice(at)]), want, `${JSON.stringify(end)} cut at ${at}`);
      }
      assert.deepEqual(await parse([...text]), want);
    }
  });

  it("gives a connection up that has gone silent", async () => {
    const frames = await page.evaluate(async () => {
      const { readFrames } = await import("/console/sse.js");
      let cancelled = false;
      const body = new ReadableStream({ start: (c) => c.enqueue(new TextEncoder().encode("data: 1\n\n")), cancel: () => void (cancelled = true) });
      const frames = [];
      for await (const frame of readFrames(body, 20)) frames.push(frame.data);
      return [frames, cancelled];
    });
    assert.deepEqual(frames, [["1"], true]);
  });
});
