// Everything that others wrote, made of what has broken pages before: none of it may run,
// load, or become markup.
import { after, before, describe, it } from "node:test";
import assert from "node:assert/strict";
import { accessible, answered, ask, finalAnswer, fits, keepThread, missing, openPage, problem, script, sse, start, startBrowser, startDemo } from "./stage.js";

/** Each calls alert, loads something, or leaves the place where text belongs. */
const corpus = [
  "<script>alert(1)</script>", "<img src=x onerror=alert(2)>", '"><svg onload=alert(3)>', "'><img src=//evil.example/a>", "<iframe srcdoc='<script>alert(4)</script>'>",
  "<a href=javascript:alert(5)>x</a>", "[x](javascript:alert(6))", "[x](JaVaScRiPt:alert(7))", "[x](java\tscript:alert(8))", "[x](data:text/html,<script>alert(9)</script>)",
  "[x](vbscript:msgbox(10))", "[x](//evil.example)", "![x](https://evil.example/pixel.png)", "![x](x\"onerror=\"alert(11))", "[x](https://a.example/\"onmouseover=\"alert(12))",
  "[<img src=x onerror=alert(13)>](https://b.example)", "<https://c.example/<script>alert(14)</script>>", "`<script>alert(15)</script>`", "```html\n<script>alert(16)</script>\n```",
  "```\"><img src=x onerror=alert(17)>\nx\n```", "| <b>h</b> | <img src=x onerror=alert(18)> |\n|---|:-:|\n| <script>alert(19)</script> | [x](javascript:alert(20)) |",
  "> <script>alert(21)</script>\n> > <style>*{display:none}</style>", "# <svg><script>alert(22)</script></svg>", "- <input autofocus onfocus=alert(23)>\n  - <details open ontoggle=alert(24)>",
  "<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=1 onerror=alert(25)&gt;\">", "<base href=//evil.example/>", "<meta http-equiv=refresh content=0;url=//evil.example>",
  "<form action=//evil.example><button>", "<link rel=stylesheet href=//evil.example/a.css>", "{{constructor.constructor('alert(26)')()}}", "${alert(27)}", "\u202e\u2066<script>\u2069", "\u0000<\u0000script>",
  "__proto__", "constructor", "%3Cscript%3Ealert(28)%3C/script%3E", "&lt;script&gt;alert(29)&lt;/script&gt;", "&#x3c;img src=x onerror=alert(30)&#x3e;",
];
const all = corpus.join("\n\n");
const call = { call_id: "c1", tool: corpus[0], server: corpus[2] };

describe("hostile text", { skip: missing }, () => {
  let demo, browser;
  before(async () => {
    [demo, browser] = await Promise.all([startDemo(), startBrowser()]);
  });
  after(async () => {
    await browser?.close();
    await demo?.stop();
  });

  /** What the page consists of is only what it makes itself. */
  async function harmless(page) {
    const found = await page.evaluate(() => {
      const root = [document.querySelector(".conversation"), document.querySelector("#threads"), document.querySelector("#servers")];
      const bad = root.flatMap((r) => [...r.querySelectorAll("script, img, iframe, object, embed, svg, math, style, link, meta, base, video, audio, template, [style]:not(.span), [autofocus], [action], [srcdoc]")]);
      const handlers = root.flatMap((r) => [...r.querySelectorAll("*")]).filter((e) => e.getAttributeNames().some((name) => name.startsWith("on")));
      const links = root.flatMap((r) => [...r.querySelectorAll("[href], [src]")]).map((e) => e.getAttribute("href") ?? e.src).filter((href) => !/^(https?:\/\/[a-c]\.example[/"]|https:\/\/evil\.example\/pixel\.png$|\.\/#thread-)/.test(href) && !/^https:\/\/[abc]\.example$/.test(href));
      return [...bad, ...handlers].map((e) => e.outerHTML).concat(links);
    });
    assert.deepEqual(found, []);
    assert.deepEqual(await page.evaluate(() => [document.baseURI.split("#")[0] === location.href.split("#")[0], Object.prototype.toString.call({}.polluted)]), [true, "[object Undefined]"]);
  }

  const openAll = (page) => page.evaluate(() => document.querySelectorAll("details").forEach((d) => (d.open = true)));

  it("does nothing in what a model and a tool say", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    const args = Object.fromEntries(corpus.map((text, i) => [text, corpus[(i + 1) % corpus.length]]));
    const schema = {
      type: "object", title: all, required: corpus,
      properties: Object.fromEntries(corpus.map((text, i) => [text, [
        { type: "string", title: text, description: text, default: text, format: text }, { type: "string", enum: corpus, enumNames: corpus }, { type: "boolean", title: text },
        { type: "array", title: text, items: { enum: corpus } }, { oneOf: corpus.map((c) => ({ const: c, title: c })) }, { type: "integer", minimum: text, title: text }, null,
      ][i % 7]])),
    };
    await script(page, sse([
      { ...start, trace_id: corpus[2], model: corpus[1] }, { type: "step_start", step: corpus[0] },
      { type: "reasoning_start", part_id: "r" }, { type: "reasoning_delta", part_id: "r", delta: all }, { type: "reasoning_end", part_id: "r" },
      ...corpus.flatMap((text, i) => [
        { type: "tool_call_start", ...call, call_id: text, tool: text, server: text }, { type: "tool_call_args", ...call, call_id: text, delta: text },
        { type: "tool_call", ...call, call_id: text, tool: text, args }, { type: "tool_progress", ...call, call_id: text, progress: text, total: i % 2 ? text : 3, message: text },
        i % 2 ? { type: "tool_error", ...call, call_id: text, kind: text, payload: text, duration_ms: text }
          : { type: "tool_result", ...call, call_id: text, payload: { [text]: text }, content: [{ type: "image", mimeType: text, data: text }, { type: "resource", resource: { mimeType: "image/svg+xml", blob: text } }, text], truncated: { bytes: text, url: text }, duration_ms: 1 },
      ]),
      { type: "budget", limit: all, used: all, max: all },
      { type: "tool_call_start", ...call, call_id: "ask" }, { type: "tool_call", ...call, call_id: "ask", args_text: all }, { type: "step_end", step: 1 },
      { type: "elicitation", ...call, call_id: "ask", interrupt_id: "int_1", mode: "form", message: all, schema, expires_at: 4e12 },
      { type: "approval_required", ...call, call_id: "ask", interrupt_id: "int_2", message: all, args, expires_at: 4e12 },
      ...corpus.map((text, i) => ({ type: "elicitation", ...call, call_id: "ask", interrupt_id: `int_url_${i}`, mode: "url", message: text, url: text, expires_at: 4e12 })),
    ]), sse([{ type: "text_start", part_id: "t", seq: 400 }]));
    await ask(page, all);
    await page.locator(".ask").nth(corpus.length).waitFor();
    await openAll(page);
    assert.equal(await page.locator(".ask-link").count(), 0, "none of it is an address to go to");
    await harmless(page);
    await fits(page);
    await page.setViewportSize({ width: 380, height: 740 });
    await fits(page);
    assert.deepEqual(faults, []);
    await close();
  });

  it("does nothing in an answer, a problem, a title, and after a reload", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    const end = finalAnswer(all);
    Object.assign(end.metadata, { model: all, finish_reason: all, cost: 1e-7 });
    const run = sse([start, { type: "step_start", step: 1 }, { type: "text_start", part_id: "t" }, { type: "text_delta", part_id: "t", delta: all }, { type: "text_end", part_id: "t" }, { type: "step_end", step: 1 }, end]);
    await script(page, run, problem(400, corpus[0], all));
    await keepThread(page, { run: "run_script", question: all, answer: all, calls: [] });
    await page.route("**/runs/*/events", (route) => route.fulfill({ contentType: "text/event-stream", body: run }));
    await ask(page, all);
    await answered(page);
    await page.locator(".about-summary").click();
    await harmless(page);
    assert.equal(await page.locator(".table").count(), 1);
    await accessible(page);
    await page.reload();
    await page.locator(".metadata").waitFor();
    await harmless(page);
    await page.route("**/runs/*/events", (route) => route.fulfill(problem(410, "gone", all)));
    await keepThread(page, { run: "run_script", question: all, answer: all, calls: [...corpus.map((text) => ({ call_id: text, tool: text, server: text, args: { [text]: text }, payload: { [text]: text } })), { call_id: "e", tool: all, args_text: all, error: all }] });
    await page.reload();
    await page.getByText("The steps of this answer are no longer kept.").waitFor();
    await openAll(page);
    await harmless(page);
    await ask(page, "again");
    await page.locator(".turn").last().getByRole("alert").waitFor();
    await harmless(page);
    assert.deepEqual(faults.filter((f) => !/status of 4(00|10)/.test(f)), []);
    await close();
  });

  it("does nothing in the names, schemas and states of tools and servers", async () => {
    const { page, faults, close } = await openPage(browser, "about:blank");
    await page.route("**/servers", (route) => route.fulfill({ json: { servers: corpus.map((text) => ({ name: text, type: text, state: text, reason: text, protocol_version: text, tools: text })) } }));
    await page.addInitScript((threads) => location.protocol === "http:" && localStorage.setItem("answerd.threads", threads), JSON.stringify(corpus.map((text) => ({ thread_id: text, title: text, updated_at: "2026-01-01T00:00:00Z", status: text }))));
    await page.route("**/tools", (route) => route.fulfill({ json: { tools: corpus.map((text) => ({
      name: text, server: text, title: text, description: text, annotations: { destructive: true, [text]: text }, needs_approval: true,
      input_schema: { type: text, required: corpus, properties: { [text]: { type: corpus, description: text, default: text, enum: corpus }, n: null, a: { type: "array", items: { type: text } } } },
    })) } }));
    faults.length = 0; // of about:blank
    await page.goto(demo.url);
    await page.locator(".tool").nth(corpus.length - 1).waitFor();
    assert.equal(await page.locator(".thread").count(), corpus.length);
    await openAll(page);
    await harmless(page);
    await page.getByLabel("Find a tool").fill("evil.example/a.css");
    assert.ok((await page.locator(".tool:visible").count()) >= 1);
    await fits(page);
    assert.deepEqual(faults.filter((f) => !f.startsWith("request to http://127.0.0.1")), []);
    await close();
  });
});
