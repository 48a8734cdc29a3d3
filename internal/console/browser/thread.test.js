// Conversations: what a reload, another conversation, a lost connection and another day
// make of them.
import { after, before, describe, it } from "node:test";
import assert from "node:assert/strict";
import { accessible, answered, ask, fits, missing, openPage, problem, runsOf, shoot, startBrowser, startDemo, startProxy } from "./stage.js";

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
  const kept = (page) => page.evaluate(() => JSON.parse(localStorage.getItem("answerd.threads")).map((t) => t.thread_id));

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
    const [first, second] = await runsOf(page);
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
    await page.locator(".ask").getByLabel("Name").fill("Ada");
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
    const [run] = await runsOf(page);
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
    await listed.nth(1).waitFor();
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

    const remaining = await kept(page);
    const [deleted] = await runsOf(page);
    const first = page.locator(".thread").first();
    const name = await first.locator(".thread-link").getAttribute("title");
    await first.hover();
    await first.getByRole("button", { name: `Delete: ${name}` }).click();
    const gone = page.waitForResponse((r) => r.request().method() === "DELETE");
    await first.getByRole("button", { name: `Really delete: ${name}` }).click();
    assert.equal((await gone).status(), 204);
    await page.locator("#welcome").waitFor(); // it was on the page
    assert.equal(page.url(), demo.url);
    assert.equal(await listed.count(), 1);
    assert.deepEqual(await kept(page), remaining.slice(1));
    assert.ok([404, 410].includes((await fetch(`${demo.url}runs/${deleted}`)).status));
    assert.equal((await fetch(`${demo.url}threads/${remaining[0]}`)).status, 404);
    assert.deepEqual(faults, []);
    await page.setViewportSize({ width: 380, height: 740 });
    await page.getByRole("button", { name: "Conversations", exact: true }).click();
    await fits(page);
    await accessible(page);
    await listed.first().click();
    await page.locator("#side.open").waitFor({ state: "detached" });
    await close();
  });

  it("have their answers and calls for longer than the steps", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    await ask(page, "What is 2 + 3?");
    await answered(page);
    await ask(page, "Call the flaky service");
    await answered(page);
    await page.route("**/runs/*/events", (route) => route.fulfill(problem(410, "gone", "This run is no longer kept.")));
    await page.reload();
    await page.getByText("The steps of this answer are no longer kept.").nth(1).waitFor();
    assert.match(await page.locator(".text").first().innerText(), /2 \+ 3 = 5/);
    const call = page.locator(".call").first();
    assert.equal(await call.getAttribute("data-state"), "done");
    await call.locator("summary").click();
    assert.match(await call.innerText(), /calculate[^]*"expression": "2 \+ 3"[^]*Result[^]*5/);
    assert.match(await page.locator('.call[data-state="failed"]').innerText(), /flaky_service[^]*simulated outage/);
    for (const [colorScheme, width, name] of [["light", 1280, "light"], ["dark", 380, "narrow-dark"]]) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 800 });
      await fits(page);
      await accessible(page);
      await shoot(page, `16-without-steps-${name}`);
    }
    await ask(page, "What is 3 + 4?");
    await answered(page);
    assert.equal((await runsOf(page)).length, 3);
    assert.deepEqual(faults.filter((f) => !f.includes("status of 410")), []);
    await close();
  });

  it("are listed only where they were started, as long as nobody says who they are", async () => {
    const { page, close } = await openPage(browser, demo.url);
    await ask(page, "What is 2 + 3?");
    await answered(page);
    await page.locator(".thread-link").waitFor();
    const other = await openPage(browser, demo.url);
    await other.page.locator(".example").first().waitFor();
    assert.equal(await other.page.locator(".thread").count(), 0);
    await other.page.goto(page.url()); // whoever has the address may read it
    await other.page.locator(".metadata").waitFor();
    assert.equal(await other.page.locator(".thread").count(), 0);
    assert.deepEqual(other.faults, []);
    await other.close();
    await close();
  });

  it("that are no longer kept are told apart from those that cannot be read", async () => {
    const { page, close } = await openPage(browser, `${demo.url}#thread-gone`);
    await page.getByText("This conversation does not exist, or is no longer kept.").waitFor();
    await page.locator("#welcome").waitFor();
    await accessible(page);
    await ask(page, "What is 2 + 3?");
    await answered(page);
    assert.equal(await page.locator(".notice").count(), 0);
    await page.route("**/threads/*", (route) => route.abort());
    await page.reload();
    await page.getByText("The conversation cannot be loaded.").waitFor();
    await accessible(page);
    await page.unrouteAll();
    await page.getByRole("button", { name: "Try again" }).click();
    await page.locator(".metadata").waitFor();
    await close();
  });

  it("survive whatever else is stored in their place", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    for (const stored of ["", "{", "null", "7", "[null,1,{}]", '[{"thread_id":"a","title":1,"updated_at":"2026-01-01","status":""}]', '[{"thread_id":"a","title":"","updated_at":"never","status":""}]', '[{"id":"a","threadID":"","at":1,"turns":[]}]']) {
      await page.evaluate((text) => localStorage.setItem("answerd.threads", text), stored);
      await page.goto("about:blank");
      await page.goto(`${demo.url}#thread-a`);
      await page.locator("#welcome").waitFor();
      assert.equal(await page.locator(".thread").count(), 0, stored);
    }
    assert.deepEqual(faults.filter((f) => !f.includes("status of 404")), []);
    await close();
  });

  it("stay in the list if they cannot be deleted", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    await ask(page, "What is 2 + 3?");
    await answered(page);
    await page.route("**/threads/*", (route) => route.request().method() === "DELETE" ? route.fulfill(problem(503, "overloaded", "The log is down.")) : route.fallback());
    const remove = page.locator("#threads [data-part=delete]");
    await remove.click();
    await remove.click();
    await page.getByText("The log is down.").waitFor();
    await page.reload();
    await page.locator(".thread-link").waitFor();
    assert.equal(await page.locator(".thread-link").count(), 1);
    assert.deepEqual(faults.filter((f) => !/status of 503/.test(f)), []);
    await close();
  });
});
