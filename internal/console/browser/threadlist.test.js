// The conversations of a caller whom the service knows: the same list in every browser.
import { after, before, describe, it } from "node:test";
import assert from "node:assert/strict";
import { accessible, answered, ask, fits, missing, openPage, shoot, startBrowser, startDemo, startIssuer } from "./stage.js";

const forms = { light: ["light", 1280], dark: ["dark", 1280], narrow: ["light", 380], "narrow-dark": ["dark", 380] };

describe("the conversations of a caller", { skip: missing }, () => {
  let issuer, demo, browser, token;
  before(async () => {
    [issuer, browser] = await Promise.all([startIssuer(), startBrowser()]);
    demo = await startDemo({ AUTH_ISSUER: issuer.url, AUTH_AUDIENCE: "answerd-demo", AUTH_JWKS_URL: issuer.url });
    token = issuer.token("answerd-demo", 3600);
  });
  after(async () => {
    await browser?.close();
    await demo?.stop();
    await issuer?.stop();
  });

  const call = (path, body, method = "POST") => fetch(`${demo.url}${path}`, { method, headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" }, body: JSON.stringify(body), signal: AbortSignal.timeout(20_000) });

  /** Asks as another client would. */
  async function answer(question, thread) {
    const reply = await call("answer", { question, thread_id: thread });
    assert.equal(reply.status, 200);
  }

  async function open(options) {
    const opened = await openPage(browser, demo.url, options);
    await opened.page.getByLabel("Bearer token").fill(token);
    await opened.page.keyboard.press("Enter");
    await opened.page.locator(".thread, #threads-none:visible").first().waitFor({ state: "attached" });
    return { ...opened, faults: () => opened.faults.filter((f) => !f.includes("401")) };
  }
  const listed = (page) => page.locator(".thread-link");
  const titles = (page) => listed(page).evaluateAll((all) => all.map((a) => a.title));

  it("are listed in pages, found, renamed and deleted", async () => {
    for (let i = 1; i <= 60; i += 10) await Promise.all(Array.from({ length: 10 }, (_, k) => answer(`What is ${i + k} + 1000?`, `old-${i + k}`)));
    await answer("What time is it in Rome?", "rome/#%41?");
    await answer("What is 2 + 3?\nPlease.", "sum");
    const { page, faults, close } = await open();
    await listed(page).nth(49).waitFor();
    assert.deepEqual((await titles(page)).slice(0, 2), ["What is 2 + 3?", "What time is it in Rome?"]);
    assert.equal(await page.evaluate(() => localStorage.length), 0);
    await page.getByRole("button", { name: "Show more conversations" }).press("Enter");
    await listed(page).nth(61).waitFor();
    assert.equal(await listed(page).nth(50).evaluate((a) => a === document.activeElement), true);
    assert.equal(await page.locator("#threads-more").isVisible(), false);

    // Each way of looking for one.
    const search = page.getByLabel("Find a conversation");
    await search.fill("ROME");
    await page.getByText("1 conversation found").waitFor({ state: "attached" });
    assert.deepEqual(await titles(page), ["What time is it in Rome?"]);
    await listed(page).click();
    await page.locator(".metadata").waitFor();
    assert.equal(new URL(page.url()).hash, `#thread-${encodeURIComponent("rome/#%41?")}`);
    assert.equal(await page.locator("#title").innerText(), "What time is it in Rome?");
    await ask(page, "What is 3 + 4?"); // continues it
    await answered(page);
    const { messages } = await (await call(`threads/${encodeURIComponent("rome/#%41?")}`, undefined, "GET")).json();
    assert.equal(messages.length, 4);
    await page.reload();
    await page.locator(".metadata").nth(1).waitFor();
    await search.fill("nothing like it");
    await page.getByText("No conversation has this in its title.").waitFor();
    await accessible(page);
    await search.fill("");
    await listed(page).nth(49).waitFor();

    // With the keyboard: rename, give up, and delete.
    const rename = page.getByRole("button", { name: "Rename: What time is it in Rome?" });
    await rename.focus();
    await page.keyboard.press("Enter");
    const field = page.getByLabel("New title of: What time is it in Rome?");
    assert.equal(await field.evaluate((f) => f === document.activeElement), true);
    await accessible(page);
    await shoot(page, "17-rename");
    await page.keyboard.type("Given up");
    await page.keyboard.press("Escape");
    assert.equal((await titles(page))[0], "What time is it in Rome?");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await page.keyboard.type("  Times in Rome ");
    await page.keyboard.press("Enter");
    await page.getByRole("status").filter({ hasText: "The conversation is renamed" }).waitFor({ state: "attached" });
    assert.equal((await titles(page))[0], "Times in Rome");
    assert.equal(await page.locator("#title").innerText(), "Times in Rome");
    assert.equal(await listed(page).first().evaluate((a) => a === document.activeElement), true);
    for (const [form, [colorScheme, width]] of Object.entries(forms)) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 800 });
      if (width === 380) await page.getByRole("button", { name: "Conversations", exact: true }).click();
      await fits(page);
      await accessible(page);
      await shoot(page, `17-threads-${form}`);
      if (width === 380) await page.keyboard.press("Escape");
    }
    await page.setViewportSize({ width: 1280, height: 800 });
    const remove = page.locator(".thread", { hasText: "What is 2 + 3?" }).getByRole("button", { name: /elete: What is 2/ });
    await remove.focus();
    await page.keyboard.press("Enter");
    assert.equal(await remove.getAttribute("aria-label"), "Really delete: What is 2 + 3?");
    await accessible(page);
    await shoot(page, "17-delete");
    await page.keyboard.press("Enter");
    await page.getByRole("status").filter({ hasText: "The conversation is deleted" }).waitFor({ state: "attached" });
    assert.equal((await call("threads/sum", undefined, "GET")).status, 404);
    assert.equal((await titles(page)).includes("What is 2 + 3?"), false);
    assert.match(await page.evaluate(() => document.activeElement.className), /thread-link/);
    assert.equal(await page.locator(".turn").count(), 2, "the one on the page stays");
    assert.deepEqual(faults(), []);
    await close();
  });

  it("show earlier questions when they are asked for, and what other clients ask", async () => {
    for (let i = 1; i <= 13; i++) await answer(`What is ${i} + 0?`, "long");
    const { page, faults, close } = await open({ viewport: { width: 380, height: 740 } });
    await page.getByRole("button", { name: "Conversations", exact: true }).click();
    await listed(page).first().click();
    await page.locator("#side.open").waitFor({ state: "detached" });
    await page.locator(".metadata").nth(9).waitFor();
    assert.deepEqual(await page.locator(".turn h2").allTextContents().then((all) => [all[0], all.at(-1)]), ["Question 4", "Question 13"]);
    const older = page.getByRole("button", { name: "Show earlier questions" });
    await accessible(page);
    await older.scrollIntoViewIfNeeded();
    await shoot(page, "17-earlier-narrow");
    await older.press("Enter");
    await page.locator(".metadata").nth(12).waitFor();
    assert.equal(await older.count(), 0);
    assert.deepEqual(await page.locator(".question").allTextContents(), Array.from({ length: 13 }, (_, i) => `What is ${i + 1} + 0?`));
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Question 1");
    await fits(page);
    await accessible(page);
    assert.deepEqual(faults(), []);
    await close();
  });

  it("follow a run that another client has begun, and refuse a question beside it", async () => {
    const running = call("answer", { question: "Write a slow report about tea in 8 steps of 1000 ms", thread_id: "busy" });
    const { page, close } = await open();
    await page.locator('.thread[data-thread="busy"][data-running]').waitFor();
    const other = await open();
    await other.page.goto(`${demo.url}#thread-busy`);
    await other.page.getByRole("button", { name: "Stop" }).waitFor();
    await other.page.getByRole("progressbar").waitFor();
    assert.deepEqual(other.faults(), []);
    await answered(other.page);
    assert.match(await other.page.locator(".text").innerText(), /Report about tea/);
    assert.equal((await running).status, 200);
    await other.close();

    await answer("What is 2 + 3?", "beside");
    await page.goto(`${demo.url}#thread-beside`);
    await page.locator(".metadata").waitFor();
    const beside = call("answer", { question: "Write a slow report about tea in 8 steps of 500 ms", thread_id: "beside" });
    await page.waitForFunction(() => fetch("threads/beside", { headers: { Authorization: `Bearer ${sessionStorage.getItem("answerd.token")}` } }).then((r) => r.json()).then((t) => t.status === "running"));
    await ask(page, "What is 3 + 4?");
    await page.locator(".turn").last().getByText("conflict").waitFor();
    await answered(page);
    assert.equal(await page.getByLabel("Your question").inputValue(), "What is 3 + 4?"); // to ask it again
    assert.equal((await beside).status, 200);
    await close();
  });

  it("say why the list cannot be read or changed", async () => {
    const { page, close } = await open();
    await listed(page).first().waitFor();
    await page.route("**/threads/*", (route) => route.fulfill({ status: 503, contentType: "application/problem+json", body: JSON.stringify({ status: 503, code: "overloaded", detail: "Too much is going on." }) }));
    const [title] = await titles(page);
    const item = page.locator(".thread").first();
    await item.hover();
    await item.getByRole("button", { name: "Rename" }).click();
    await page.keyboard.type("Another");
    await page.keyboard.press("Enter");
    await page.locator("#threads-problem", { hasText: "Too much is going on." }).waitFor();
    assert.equal((await titles(page))[0], title);
    await accessible(page);
    await close();
  });
});
