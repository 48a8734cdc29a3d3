// The console in front of a service that asks who calls, with prices and a place for traces.
import { after, before, describe, it } from "node:test";
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { accessible, answered, ask, fits, missing, openPage, shoot, startBrowser, startDemo, startIAM, startIssuer, watch } from "./stage.js";

describe("the console behind authentication", { skip: missing }, () => {
  const dir = mkdtempSync(path.join(tmpdir(), "answerd-console-"));
  let iam, demo, browser;
  before(async () => {
    const models = path.join(dir, "models.json");
    writeFileSync(models, JSON.stringify([{ id: "answerd-stand-in", price: { input_per_million: 0.25, output_per_million: 2 } }]));
    [iam, browser] = await Promise.all([startIAM(), startBrowser()]);
    demo = await startDemo({
      AUTH_ISSUER: iam.url, AUTH_AUDIENCE: "answerd-demo", AUTH_JWKS_URL: `${iam.url}/.well-known/jwks.json`,
      MODELS_FILE: models, TRACE_URL: "https://traces.example/trace/{trace_id}?from=console",
    });
  });
  after(async () => {
    await browser?.close();
    await demo?.stop();
    await iam?.stop();
    rmSync(dir, { recursive: true });
  });

  it("asks for a token, keeps it for this tab, and shows what the answer cost", async () => {
    const { page, faults, close } = await openPage(browser, demo.url, { viewport: { width: 380, height: 740 } });
    const field = page.getByLabel("Bearer token");
    await field.waitFor();
    await fits(page);
    await accessible(page);
    await shoot(page, "9-token-narrow");
    await page.setViewportSize({ width: 1280, height: 800 });
    await accessible(page);
    await shoot(page, "9-token");
    await field.fill("not.a.token");
    await page.keyboard.press("Enter");
    await page.getByText("The token was not accepted.").waitFor();
    await field.fill(await iam.token());
    await page.keyboard.press("Enter");
    await page.locator('.server[data-state="connected"]').waitFor();
    assert.equal(await field.isVisible(), false);
    await ask(page, "What is 2 + 3?");
    await answered(page);
    assert.match(await page.locator(".metadata").innerText(), /cost 0\.000\d+/);
    await page.locator(".about-summary").click();
    assert.match(await page.locator(".facts").innerText(), /Cost\s+0\.000\d+/);
    const link = page.getByRole("link", { name: "Open the trace" });
    const trace = await page.locator(".facts code").textContent();
    assert.equal(await link.getAttribute("href"), `https://traces.example/trace/${trace}?from=console`);
    assert.equal(await link.getAttribute("rel"), "noopener noreferrer");
    const download = page.getByRole("button", { name: "Download the export of this run" });
    await download.focus();
    const [file] = await Promise.all([page.waitForEvent("download"), page.keyboard.press("Enter")]);
    const run = JSON.parse(readFileSync(await file.path(), "utf8"));
    assert.equal(file.suggestedFilename(), `${run.run.run_id}.json`);
    assert.deepEqual([run.version, run.run.status, run.request.question], [1, "completed", "What is 2 + 3?"]);
    await page.getByRole("button", { name: "Download the export of this run", disabled: false }).waitFor();
    assert.equal(await download.evaluate((node) => node === document.activeElement), true);
    await page.route("**/export", (route) => route.fulfill({ status: 410, contentType: "application/problem+json", body: JSON.stringify({ detail: "It is no longer kept." }) }));
    await download.click();
    await page.getByRole("alert").filter({ hasText: "It is no longer kept." }).waitFor();
    await accessible(page);
    await shoot(page, "9-cost");

    const kept = await page.evaluate(() => [sessionStorage.length, JSON.stringify({ ...localStorage }).includes(sessionStorage.getItem("answerd.token")), document.cookie]);
    assert.deepEqual(kept, [1, false, ""]);
    await page.reload();
    await page.locator(".metadata").waitFor(); // without being asked again
    // The browser itself writes a refusal on its console.
    assert.deepEqual(faults.filter((f) => !/401|410/.test(f)), []);

    const other = await page.context().newPage();
    const others = await watch(other, demo.url);
    await other.goto(demo.url);
    await other.getByLabel("Bearer token").waitFor();
    assert.deepEqual(others.filter((f) => !f.includes("401")), []);
    await page.getByRole("button", { name: "Forget it" }).click();
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
    assert.deepEqual(await Promise.all([".thread", ".turn"].map((part) => page.locator(part).count())), [0, 0]);
    await close();
  });
});

describe("a token that ends before the run", { skip: missing }, () => {
  const audience = "answerd-demo";
  let issuer, demo, browser;
  before(async () => {
    [issuer, browser] = await Promise.all([startIssuer(), startBrowser()]);
    demo = await startDemo({ AUTH_ISSUER: issuer.url, AUTH_AUDIENCE: audience, AUTH_JWKS_URL: issuer.url, DISCONNECT_GRACE: "5m" });
  });
  after(async () => {
    await browser?.close();
    await demo?.stop();
    await issuer?.stop();
  });

  it("is asked for again, and the run goes on where it was, with nothing twice", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    const field = page.getByLabel("Bearer token");
    const use = async (seconds) => {
      await field.fill(issuer.token(audience, seconds));
      await field.press("Enter");
    };
    await field.waitFor();
    await use(600);
    await page.locator('.server[data-state="connected"]').waitFor();
    // Only the question is to have the short one, however slow the machine.
    await page.getByRole("button", { name: "Forget it" }).click();
    const sent = [];
    page.on("request", (r) => r.url().endsWith("/answer/stream") && sent.push(r.headers()));
    await ask(page, "Write a slow report about tea in 10 steps of 2000 ms");
    await field.waitFor();
    await use(6);
    await page.getByRole("progressbar").waitFor();
    await page.getByText("Your token has expired. The run continues for a while. With a new token you see the rest of it.").waitFor();
    assert.equal(await page.locator(".status").textContent(), "Waiting for a new token");
    assert.equal(await field.evaluate((node) => node === document.activeElement), true);
    assert.equal(await page.locator('.call[data-state="running"]').count(), 1);
    await fits(page);
    await accessible(page);
    await shoot(page, "9-token-expired");
    assert.equal(sent.length, 2); // refused, and the one whose stream ended: none with a token that had
    await field.fill("not.a.token");
    await field.press("Enter");
    await page.getByText("The token was not accepted.").waitFor();
    await use(600);
    await page.locator(".status", { hasText: "Running a tool" }).waitFor();
    await answered(page);
    assert.equal(sent.length, 4);
    assert.match(sent[3]["last-event-id"], /^run_\w+:[1-9]\d*$/);
    assert.equal(sent[3]["idempotency-key"], sent[0]["idempotency-key"]);

    const [run] = sent[3]["last-event-id"].split(":");
    const { answer } = await (await fetch(`${demo.url}runs/${run}`, { headers: { Authorization: `Bearer ${issuer.token(audience, 600)}` } })).json();
    assert.equal(await page.locator(".text").innerText(), answer);
    assert.deepEqual(await Promise.all([".turn", ".call", ".text", ".metadata"].map((part) => page.locator(part).count())), [1, 1, 1, 1]);
    assert.equal(await page.locator('.call[data-state="done"]').count(), 1);
    assert.deepEqual(faults.filter((f) => !f.includes("401")), []);
    await close();
  });
});
