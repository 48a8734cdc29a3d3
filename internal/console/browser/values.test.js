// Values that a page changes by accident: integers that JavaScript rounds, addresses in parentheses.
import { after, before, beforeEach, describe, it } from "node:test";
import assert from "node:assert/strict";
import { answered, ask, finalAnswer, missing, openPage, says, script, sse, start, startBrowser, startDemo } from "./stage.js";

const call = { call_id: "c1", tool: "lookup", server: "crm" };
const big = "9007199254740993"; // a number of JavaScript is one less
/** Events with big in place of "BIG". */
const exact = (events) => sse(events).replaceAll('"BIG"', big);

describe("the console and values", { skip: missing }, () => {
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

  /** Shows a run that waits for asked, and gives what the page sends after act. */
  async function send(asked, act) {
    const sent = page.waitForRequest("**/input");
    await page.route("**/input", (route) => route.fulfill({ json: { status: "running" } }));
    await script(page, exact([start, { type: "step_start", step: 1 }, { type: "tool_call_start", ...call }, { type: "tool_call", ...call, args: { id: "BIG" } }, { type: "step_end", step: 1 },
      { ...call, interrupt_id: "int_1", message: "?", expires_at: 4e12, ...asked }, { type: "suspended", interrupts: [] }]), sse([{ type: "step_start", step: 2, seq: 8 }]));
    await ask(page, "?");
    await page.locator(".ask").waitFor();
    await act();
    return (await sent).postData();
  }

  it("shows large integers as they are, and sends those that a person leaves in the arguments", async () => {
    const sent = await send({ type: "approval_required", args: { id: "BIG", note: "a" } }, async () => {
      assert.match(await page.locator(".call .value").first().textContent(), new RegExp(`"id": ${big}`));
      await page.getByText("Change the arguments").click();
      const field = page.getByLabel("Arguments of lookup to approve");
      await field.fill((await field.inputValue()).replace('"a"', '"b"'));
      await page.getByRole("button", { name: "Approve" }).click();
    });
    assert.equal(sent, `{"id":"int_1","approved":true,"args":{"id":${big},"note":"b"}}`);
    assert.deepEqual(faults, []);
  });

  it("shows large integers of a result and of an answer", async () => {
    const end = { ...finalAnswer("{}"), output: { id: "BIG" } };
    await script(page, exact([start, { type: "step_start", step: 1 }, { type: "tool_call_start", ...call }, { type: "tool_call", ...call, args: { id: "BIG" } },
      { type: "tool_progress", ...call, progress: "BIG", total: "BIG" },
      { type: "tool_result", ...call, args: { id: "BIG" }, payload: { n: "BIG" }, structured: {}, content: [], truncated: { bytes: 9, url: "/runs/run_script/results/c1" }, duration_ms: 1 }, { type: "step_end", step: 1 }, end]));
    await page.route("**/results/c1", (route) => route.fulfill({ contentType: "application/json", body: `{"payload":[${big}],"content":[]}` }));
    await ask(page, "?");
    await answered(page);
    await page.locator(".call > summary").click();
    const result = page.getByRole("group", { name: "Result of lookup" });
    assert.equal(await result.textContent(), `{ "n": ${big} }`);
    assert.match(await page.locator(".call-brief").textContent(), new RegExp(big));
    assert.match(await page.locator(".tree").textContent(), new RegExp(`id: ${big}`));
    await page.getByRole("button", { name: "Show all of it" }).click();
    await page.getByText(`[ ${big} ]`).waitFor();
    assert.deepEqual(faults, []);
  });

  it("sends large integers of a form, and no empty list for a choice that may be left out", async () => {
    const schema = { type: "object", required: ["n"], properties: {
      n: { type: "integer", title: "Number", default: "BIG" }, m: { type: "integer", title: "More" },
      tags: { type: "array", title: "Tags", minItems: 1, items: { type: "string", enum: ["a", "b"] } },
      none: { type: "array", title: "None", items: { type: "string", enum: ["a", "b"] } } } };
    const sent = await send({ type: "elicitation", mode: "form", schema }, async () => {
      await page.locator(".ask").getByLabel("More").fill("12");
      await page.locator(".ask").getByRole("button", { name: "Send" }).click();
    });
    assert.equal(sent, `{"id":"int_1","action":"accept","content":{"n":${big},"m":12,"none":[]}}`);
    assert.deepEqual(faults, []);
  });

  it("links addresses without the parentheses around them", async () => {
    await script(page, says("(see [a](https://a.example/x)) [b](https://b.example/y_(z)) ([c](https://c.example/y_(z))) [d](<https://d.example/q>) (https://e.example/y_(z)). (see https://f.example/g) https://h.example/(i"));
    await ask(page, "?");
    await answered(page);
    const links = await page.locator(".text a").evaluateAll((all) => all.map((a) => a.getAttribute("href")));
    assert.deepEqual(links, ["https://a.example/x", "https://b.example/y_(z)", "https://c.example/y_(z)", "https://d.example/q", "https://e.example/y_(z)", "https://f.example/g", "https://h.example/(i"]);
    assert.equal(await page.locator(".text").innerText(), "(see a) b (c) d (https://e.example/y_(z)). (see https://f.example/g) https://h.example/(i");
    assert.deepEqual(faults, []);
  });
});
