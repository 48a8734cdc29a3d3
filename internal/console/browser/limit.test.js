// A run of a limited budget in front of the console: who asks limits it, and the reader may raise it.
import { after, before, describe, it } from "node:test";
import assert from "node:assert/strict";
import { accessible, answered, ask, finalAnswer, fits, missing, openPage, runsOf, script, shoot, sse, start, startBrowser, startDemo } from "./stage.js";

const question = "What time is it in Tokyo, and what is 12.5 * 8?"; // two calls

describe("a limit that a run has reached", { skip: missing }, () => {
  let demo, browser;
  before(async () => {
    [demo, browser] = await Promise.all([startDemo({ BUDGET_TOOL_CALLS: "3" }), startBrowser()]);
  });
  after(async () => {
    await browser?.close();
    await demo?.stop();
  });

  /** A page whose questions have one tool call, as another client's may. */
  async function limited() {
    const opened = await openPage(browser, demo.url);
    await opened.page.route("**/answer/stream", (route) => {
      const body = { ...route.request().postDataJSON(), budget: { tool_calls: 1, on_limit: "ask" } };
      return route.continue({ postData: JSON.stringify(body) });
    });
    return opened;
  }

  it("is raised by the reader, across a reload, and not beyond the operator's own", async () => {
    const { page, faults, close } = await limited();
    const card = page.getByRole("region", { name: "Limit of tool calls" });
    const most = card.getByLabel("New limit of tool calls");
    await ask(page, question);
    await most.waitFor();
    await page.locator(".status", { hasText: "Waiting for you" }).waitFor();
    await page.reload();
    await most.waitFor();
    assert.equal(await card.count(), 1);
    assert.match(await card.innerText(), /1 of 1 used[^]*The run waits for you until/);
    assert.equal(await most.inputValue(), "2");
    for (const [colorScheme, width, name] of [["light", 1280, "light"], ["dark", 380, "narrow-dark"]]) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 800 });
      await fits(page);
      await accessible(page);
      await shoot(page, `10-limit-${name}`);
    }
    await most.fill("9");
    await card.getByRole("button", { name: "Allow more" }).click();
    await card.getByRole("alert").filter({ hasText: "/args/max: must not be above the operator's limit, 3" }).waitFor();
    await accessible(page);
    await most.fill("2");
    await most.press("Enter");
    await answered(page);
    assert.match(await card.innerText(), /1 of 2 used\s+Raised to 2\b/);
    assert.equal(await page.locator(".ask").count(), 0);
    assert.equal(await page.locator(".notice").count(), 0); // the card says it
    await page.locator(".about-summary").click();
    assert.match(await page.locator(".facts").innerText(), /Finish\s+stop/);
    assert.match(await page.locator(".legend").innerText(), /Waiting for you \d/);
    assert.ok((await page.locator(".fall-name").allTextContents()).includes("Limit of tool calls"));
    await page.emulateMedia({ colorScheme: "light" });
    await page.setViewportSize({ width: 1280, height: 800 });
    await accessible(page);
    await shoot(page, "10-limit-raised");
    assert.deepEqual(faults.filter((f) => !/status of 422/.test(f)), []);
    await close();
  });

  it("stays where the reader says no, with the reason", async () => {
    const { page, faults, close } = await limited();
    const card = page.getByRole("region", { name: "Limit of tool calls" });
    await ask(page, question);
    await card.getByLabel("Reason").fill("too dear");
    await card.getByRole("button", { name: "Deny" }).click();
    await answered(page);
    assert.match(await card.innerText(), /1 of 1 used\s+Not raised[^:]*: too dear/);
    await page.locator(".about-summary").click();
    assert.match(await page.locator(".facts").innerText(), /Finish\s+budget_exceeded/);
    assert.deepEqual(faults, []);
    await close();
  });

  it("is shown as raised when somebody else has done it", async () => {
    const { page, faults, close } = await limited();
    const card = page.getByRole("region", { name: "Limit of tool calls" });
    await ask(page, question);
    await card.getByLabel("New limit").waitFor();
    const [run] = await runsOf(page);
    const { interrupts } = await (await fetch(`${demo.url}runs/${run}`)).json();
    const reply = await fetch(`${demo.url}runs/${run}/input`, { method: "POST", body: JSON.stringify({ id: interrupts[0].id, approved: true, args: { max: 3 } }), headers: { "Content-Type": "application/json" } });
    assert.equal(reply.status, 200);
    await answered(page);
    assert.match(await card.innerText(), /1 of 3 used\s+Raised to 3\b/);
    assert.equal(await page.locator(".ask").count(), 0);
    assert.deepEqual(faults, []);
    await close();
  });

  it("is a figure in its own unit, and its text is text", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    const asked = { type: "budget_required", interrupt_id: "int_1", limit: "cost", used: 0.0512, max: 0.05, message: "<b>More?</b>\u202e", expires_at: 4e12 };
    await script(page, sse([start, asked, { type: "cancelled", reason: "shutdown", partial_answer: "" }]), sse([start, { ...asked, limit: "<i>x</i>" },
      { type: "budget_resolved", interrupt_id: "int_1", limit: "cost", approved: false, max: 0.05, reason: "<u>no</u>" }, finalAnswer("ok")]));
    await ask(page, "?");
    await answered(page);
    assert.match(await page.locator(".limit").innerText(), /Limit of cost\s+0\.0512 of 0\.05 used, not answered/);
    await ask(page, "?");
    await answered(page);
    assert.match(await page.locator(".limit").last().innerText(), /Limit of <i>x<\/i>[^]*Not raised: <u>no<\/u>/);
    assert.equal(await page.locator(".limit b, .limit i, .limit u, .limit form").count(), 0);
    assert.deepEqual(faults, []);
    await close();
  });
});
