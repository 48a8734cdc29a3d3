// Conversations: what a reload, another conversation, a lost connection and another day
// make of them.
import { after, before, describe, it } from "node:test";
import assert from "node:assert/strict";
import { accessible, answered, ask, fits, missing, openPage, problem, startBrowser, startDemo, startProxy } from "./stage.js";

const slow = "Write a slow report about tea in 8 steps of 400 ms";

describe("the conversations of a browser", { skip: missing }, () => {
  let demo, browser;
  before(async () => {
    [demo, browser] = await Promise.all([startDemo(), startBrowser()]);
  });
  after(async () => {
    await browser?.close();
    await demo?.stop();
  });

  /** The answer as the service has it. */
  const answerOf = (page, run) => page.evaluate((id) => fetch(`runs/${id}`).then((r) => r.json()).then((r) => r.answer), run);
  const runs = (page) => page.evaluate(() => JSON.parse(localStorage.getItem("answerd.threads")).map((t) => t.turns.map((turn) => turn.run)));

  it("go on after a reload in the middle, and show nothing twice", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    const posts = [];
    page.on("request", (r) => r.url().endsWith("/answer/stream") && posts.push(r.url()));
    await ask(page, "What is 2 + 3?");
    await answered(page);
    // Longer than a reload takes on a busy machine.
    await ask(page, "Write a slow report about tea in 8 steps of 1500 ms");
    await page.getByText(/^\d of 8/).waitFor();
    await page.reload();
    await page.getByRole("button", { name: "Stop" }).waitFor();
    await answered(page);
    assert.equal(posts.length, 2);
    const [[first, second]] = await runs(page);
    const turns = page.locator(".turn");
    assert.equal(await turns.count(), 2);
    for (const [turn, run] of [[turns.first(), first], [turns.last(), second]]) {
      assert.equal(await turn.locator(".call").count(), 1);
      assert.equal(await turn.locator(".text").innerText(), await answerOf(page, run));
      assert.equal(await turn.locator(".metadata").count(), 1);
    }
    // Once more, when all of it is over.
    const before = await turns.allInnerTexts();
    await page.reload();
    await page.locator(".metadata").nth(1).waitFor();
    assert.deepEqual(await turns.allInnerTexts(), before);
    assert.equal(posts.length, 2);
    await accessible(page);
    assert.deepEqual(faults, []);
    await close();
  });

  it("wait for the reader across a reload", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    await ask(page, "Book a table");
    await page.locator(".ask").waitFor();
    await page.reload();
    await page.getByLabel("Name").fill("Ada");
    await page.locator(".ask").getByRole("button", { name: "Send" }).click();
    await answered(page);
    assert.match(await page.locator(".text").innerText(), /A table for 2 is booked in the name of Ada/);
    assert.equal(await page.locator(".call").count(), 1);
    assert.deepEqual(faults, []);
    await close();
  });

  it("ask once when the reload comes before the first event", async () => {
    const { page, close } = await openPage(browser, demo.url);
    const posts = [];
    let lose;
    const lost = new Promise((resolve) => (lose = resolve));
    await page.route("**/answer/stream", async (route) => {
      posts.push([route.request().headers()["idempotency-key"], route.request().postData()]);
      if (posts.length > 1) return route.continue();
      // The service gets the question; its answer never gets here.
      await fetch(route.request().url(), { method: "POST", headers: route.request().headers(), body: route.request().postData(), signal: AbortSignal.timeout(5_000) });
      lose();
    });
    await ask(page, "What is 4 * 5?");
    await lost;
    await page.reload();
    await answered(page);
    assert.match(await page.locator(".text").innerText(), /4 \* 5 = 20/);
    assert.equal(posts.length, 2);
    assert.deepEqual(posts[0], posts[1]);
    await close();
  });

  it("go on as soon as the browser is online again", async () => {
    const proxy = await startProxy(demo.url);
    const { page, close } = await openPage(browser, proxy.url);
    const cut = proxy.cutAt("event: tool_progress");
    await ask(page, slow);
    await cut;
    await page.context().setOffline(true);
    proxy.refusing = false;
    const offline = page.getByText("No connection, trying again");
    await offline.waitFor();
    await page.context().setOffline(false);
    await offline.waitFor({ state: "detached" });
    await answered(page);
    const [[run]] = await runs(page);
    assert.equal(await page.locator(".call").count(), 1);
    assert.equal(await page.locator(".text").innerText(), await answerOf(page, run));
    await close();
    await proxy.close();
  });

  it("are listed, opened, gone back to and deleted", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    const listed = page.locator(".thread-link");
    await ask(page, slow);
    await page.getByText(/^\d of 8/).waitFor();
    await page.getByRole("button", { name: "New conversation" }).click();
    await ask(page, "What is 2 + 3?");
    await answered(page);
    assert.equal(await page.locator(".turn").count(), 1);
    assert.deepEqual(await listed.allInnerTexts().then((all) => all.map((t) => t.split(",")[0].trim())), ["What is 2 + 3?", slow]);
    await listed.nth(1).click(); // its run has gone on meanwhile
    await page.locator(".turn").getByText(slow).waitFor();
    await answered(page);
    assert.equal(await page.locator(".call").count(), 1);
    assert.match(await page.locator(".text").innerText(), /Report about tea/);
    await page.goBack();
    await page.locator(".turn .text").getByText("2 + 3 = 5").waitFor();
    assert.equal(await page.locator(".turn").count(), 1);
    await accessible(page);

    const remaining = await runs(page);
    const [[deleted]] = remaining;
    const first = page.locator(".thread").first();
    const name = await first.locator(".thread-link").getAttribute("title");
    await first.hover();
    await first.getByRole("button", { name: `Delete: ${name}` }).click();
    const gone = page.waitForResponse((r) => r.request().method() === "DELETE");
    await first.getByRole("button", { name: `Really delete: ${name}` }).click();
    assert.equal((await gone).status(), 204);
    assert.deepEqual(await runs(page), remaining.slice(1));
    assert.ok([404, 410].includes((await fetch(`${demo.url}runs/${deleted}`)).status));
    assert.deepEqual(faults, []);
    await page.setViewportSize({ width: 380, height: 740 });
    await page.getByRole("button", { name: "Conversations", exact: true }).click();
    await fits(page);
    await accessible(page);
    await listed.first().click();
    await page.locator("#side.open").waitFor({ state: "detached" });
    await close();
  });

  it("keep what was answered when the service no longer does", async () => {
    const { page, close } = await openPage(browser, demo.url);
    await ask(page, "What is 2 + 3?");
    await answered(page);
    await page.route("**/runs/*/events", (route) => route.fulfill(problem(410, "gone", "This run is no longer kept.")));
    await page.reload();
    await page.getByText("The steps of this answer are no longer kept.").waitFor();
    assert.match(await page.locator(".text").innerText(), /2 \+ 3 = 5/);
    const post = page.waitForRequest("**/answer/stream");
    await ask(page, "What is 3 + 4?");
    const body = (await post).postDataJSON();
    assert.match(body.history[1].content, /2 \+ 3 = 5/);
    assert.match(body.thread_id, /^thr_/);
    await answered(page);
    await close();
  });

  it("survive whatever else is stored in their place", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    for (const stored of ["", "{", "null", "7", "[null,1,{}]", '[{"id":"a","threadID":"","at":1,"turns":[{"question":1}]}]', '[{"id":"a","threadID":"","at":1e999,"turns":[]}]']) {
      await page.evaluate((text) => localStorage.setItem("answerd.threads", text), stored);
      await page.goto("about:blank");
      await page.goto(`${demo.url}#thread-a`);
      await page.locator("#welcome").waitFor();
      assert.equal(await page.locator(".thread").count(), 0, stored);
    }
    assert.deepEqual(faults, []);
    await close();
  });
});
