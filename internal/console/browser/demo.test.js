// The console in front of `answerd demo`, as a newcomer meets it.
import { after, before, describe, it } from "node:test";
import assert from "node:assert/strict";
import { accessible, answered, ask, fits, missing, openPage, startBrowser, startDemo, startProxy } from "./stage.js";

const question = "What time is it in Tokyo, and what is 12.5 * 8?";
const slow = "Write a slow report about tea";
const endless = "Write a slow report about tea in 10 steps of 2000 ms"; // longer than any test looks at it

describe("the console of the demo", { skip: missing }, () => {
  let demo, browser;
  before(async () => {
    [demo, browser] = await Promise.all([startDemo(), startBrowser()]);
  });
  after(async () => {
    await browser?.close();
    await demo?.stop();
  });

  // S1.9: status, arguments, results and the text are shown as they happen.
  it("answers the demo's question and shows both calls", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    await page.getByRole("button", { name: question }).click();
    await answered(page);
    const cards = page.locator(".call");
    assert.equal(await cards.count(), 2);
    for (const [name, argument, result] of [["current_time", "Asia/Tokyo", "Asia/Tokyo"], ["calculate", "12.5 * 8", "100"]]) {
      const card = cards.filter({ has: page.getByText(name, { exact: true }) });
      assert.equal(await card.getAttribute("data-state"), "done");
      assert.match(await card.getByLabel(`Arguments of ${name}`).textContent(), new RegExp(argument.replace("*", "\\*")));
      assert.match(await card.getByLabel(`Result of ${name}`).textContent(), new RegExp(result));
      assert.match(await card.locator(".call-state").textContent(), /^\d+(\.\d)? m?s$/);
      assert.match(await card.locator(".call-server").textContent(), /\w/);
    }
    assert.match(await page.locator(".text").textContent(), /12\.5 \* 8 = 100/);
    assert.match(await page.locator(".metadata").textContent(), /answerd-stand-in.*2 tool calls.*tokens/);
    await accessible(page);
    assert.deepEqual(faults, []);
    await close();
  });

  it("lists servers and tools, and lists them again on request", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    const server = page.locator(".server");
    await server.waitFor();
    assert.equal(await server.getAttribute("data-state"), "connected");
    const reply = page.waitForResponse((r) => r.url().endsWith("/refresh"));
    await server.getByRole("button", { name: "Refresh the tools of default" }).click();
    assert.equal((await reply).status(), 200);
    const tool = page.locator(".tool").filter({ hasText: "calculate" });
    await tool.getByText("calculate", { exact: true }).click();
    assert.match(await tool.locator(".parameters").innerText(), /expression\s+string\s+required/);
    await tool.getByText("JSON Schema").click();
    assert.match(await tool.getByLabel("Input schema of calculate").textContent(), /"expression"/);
    assert.deepEqual(faults, []);
    await close();
  });

  it("shows a tool's failure with its kind", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    await ask(page, "Call the flaky service");
    await answered(page);
    const card = page.locator('.call[data-state="failed"]');
    assert.equal(await card.locator(".kind").textContent(), "execution");
    assert.match(await card.getByLabel("Error of flaky_service").textContent(), /simulated outage/);
    await accessible(page);
    assert.deepEqual(faults, []);
    await close();
  });

  it("stops a run within moments, and takes the next question", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    await ask(page, endless);
    await page.getByRole("progressbar").waitFor();
    await accessible(page);
    await page.getByRole("button", { name: "Stop" }).click();
    await answered(page);
    assert.match(await page.locator(".turn").textContent(), /Stopped\./);
    assert.equal(await page.locator('.call[data-state="failed"] .kind').textContent(), "cancelled");
    await ask(page, "What is 2 + 3?");
    await answered(page);
    assert.match(await page.locator(".turn").last().textContent(), /2 \+ 3 = 5/);
    assert.deepEqual(faults, []);
    await close();
  });

  it("goes on after cuts, in the middle of an event, and shows nothing twice", async () => {
    const proxy = await startProxy(demo.url);
    const { page, faults, close } = await openPage(browser, proxy.url);
    const posts = [];
    page.on("request", (r) => r.url().endsWith("/answer/stream") && posts.push(r.headers()));
    for (const text of ["event: tool_progress", "event: text_delta"]) {
      const cut = proxy.cutAt(text);
      if (posts.length === 0) await ask(page, slow);
      await cut;
      await page.getByText("No connection, trying again").first().waitFor();
      proxy.refusing = false;
    }
    await answered(page);
    const resumed = posts.filter((headers) => headers["last-event-id"]);
    assert.ok(resumed.length >= 2, "resumed at least twice");
    assert.equal(posts[0]["last-event-id"], undefined);
    assert.equal(new Set(posts.map((headers) => headers["idempotency-key"])).size, 1);
    const [run] = resumed[0]["last-event-id"].split(":");
    const { answer } = await page.evaluate((id) => fetch(`runs/${id}`).then((r) => r.json()), run);
    assert.equal(await page.locator(".call").count(), 1);
    assert.equal(await page.locator(".text").innerText(), answer);
    assert.equal(await page.locator(".metadata").count(), 1);
    assert.deepEqual(faults.filter((f) => !/Failed to load resource|ERR_/.test(f)), []);
    await close();
    await proxy.close();
  });

  it("attaches to the same run when the cut comes before the first event", async () => {
    const proxy = await startProxy(demo.url);
    const { page, close } = await openPage(browser, proxy.url);
    const posts = [];
    page.on("request", (r) => r.url().endsWith("/answer/stream") && posts.push(r.headers()));
    const runs = () => page.evaluate(() => fetch("metrics").then((r) => r.text()).then((text) => text.split("\n").filter((line) => /^[a-z_]*runs[a-z_]*(_total|_count)\b/.test(line)).map((line) => Number(line.split(" ").pop())).reduce((a, b) => a + b, 0)));
    const before = await runs();
    const cut = proxy.cutAt("event: start");
    await ask(page, question);
    await cut;
    proxy.refusing = false;
    await answered(page);
    assert.equal(posts.at(-1)["last-event-id"], undefined);
    assert.equal(new Set(posts.map((headers) => headers["idempotency-key"])).size, 1);
    assert.equal(await page.locator(".call").count(), 2);
    assert.equal((await runs()) - before, 1);
    await close();
    await proxy.close();
  });

  it("shows nothing twice even if everything is sent again", async () => {
    const proxy = await startProxy(demo.url);
    const { page, close } = await openPage(browser, proxy.url);
    // Without its position the request attaches by its key, to the beginning of the run.
    await page.route("**/answer/stream", (route) => {
      const { "last-event-id": _, ...headers } = route.request().headers();
      return route.continue({ headers });
    });
    const cut = proxy.cutAt("event: text_delta");
    await ask(page, question);
    await cut;
    proxy.refusing = false;
    await answered(page);
    assert.equal(await page.locator(".call").count(), 2);
    assert.equal((await page.locator(".text").innerText()).match(/stand-in/g).length, 1);
    await close();
    await proxy.close();
  });

  it("has its servers and tools in a drawer where there is no room", async () => {
    const { page, faults, close } = await openPage(browser, demo.url, { viewport: { width: 380, height: 740 }, colorScheme: "dark" });
    const opener = page.getByRole("button", { name: /^Servers and tools/ });
    await page.locator(".example").first().waitFor();
    await opener.click();
    await fits(page);
    await accessible(page);
    await page.keyboard.press("Escape");
    assert.equal(await opener.evaluate((e) => e === document.activeElement), true, "the focus came back");
    const ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/)[0]);
    assert.ok(Number(ground) < 128, "it is dark");
    assert.deepEqual(faults, []);
    await close();
  });

  it("asks before a call that destroys, and goes on after the answer", async () => {
    const { page, faults, close } = await openPage(browser, demo.url, { viewport: { width: 380, height: 740 } });
    const call = page.locator(".call").last();
    await ask(page, "delete note 2");
    await page.getByText("Waiting for you", { exact: true }).waitFor();
    await accessible(page);
    await fits(page);
    await page.getByRole("button", { name: "Approve" }).click();
    await answered(page);
    assert.match(await call.innerText(), /Approved\./);
    assert.match(await call.innerText(), /"id": 2/);
    assert.equal(await page.locator(".ask").count(), 0);

    await ask(page, "delete note 3");
    await page.getByLabel("Reason, for the model").fill("it is still needed");
    await page.getByRole("button", { name: "Refuse" }).click();
    await answered(page);
    assert.match(await call.innerText(), /Not approved: it is still needed/);
    assert.match(await call.innerText(), /failed: denied/);

    await ask(page, "delete note 4");
    await page.getByText("Change the arguments").click();
    await page.getByLabel("Arguments of delete_note to approve").fill("nonsense");
    await page.getByRole("button", { name: "Approve" }).click();
    await page.getByText("The arguments are not a JSON object.").waitFor();
    await page.getByLabel("Arguments of delete_note to approve").fill('{"id": 5}');
    await page.getByRole("button", { name: "Approve" }).click();
    await answered(page);
    assert.match(await call.innerText(), /Water the plants/);
    assert.equal(await call.locator(".value").first().textContent(), '{ "id": 5 }');

    await ask(page, "delete note 1");
    await page.getByRole("button", { name: "Approve" }).waitFor();
    await page.getByRole("button", { name: "Stop" }).click();
    await answered(page);
    assert.equal(await page.locator(".ask").count(), 0);
    assert.deepEqual(faults, []);
    await close();
  });

  it("continues the conversation that the service keeps", async () => {
    const { page, close } = await openPage(browser, demo.url);
    await ask(page, "What is 2 + 3?");
    await answered(page);
    const post = page.waitForRequest("**/answer/stream");
    await ask(page, "What time is it in Rome?");
    const body = (await post).postDataJSON();
    await answered(page);
    assert.deepEqual(Object.keys(body).sort(), ["question", "thread_id"]);
    assert.equal(page.url(), `${demo.url}#thread-${body.thread_id}`);
    const thread = await page.evaluate((id) => fetch(`threads/${id}`).then((r) => r.json()), body.thread_id);
    assert.deepEqual(thread.messages.map((m) => m.role), ["user", "assistant", "user", "assistant"]);
    await page.getByRole("button", { name: "New conversation" }).click();
    assert.equal(await page.locator(".turn").count(), 0);
    await close();
  });
});
