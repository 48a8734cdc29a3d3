// The console in front of a service that asks who calls, with prices and a place for traces.
import { after, before, describe, it } from "node:test";
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { accessible, answered, ask, fits, missing, openPage, shoot, startBrowser, startDemo, startIAM, watch } from "./stage.js";

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
    await accessible(page);
    await shoot(page, "9-cost");

    const kept = await page.evaluate(() => [sessionStorage.length, JSON.stringify({ ...localStorage }).includes(sessionStorage.getItem("answerd.token")), document.cookie]);
    assert.deepEqual(kept, [1, false, ""]);
    await page.reload();
    await page.locator(".metadata").waitFor(); // without being asked again
    // The browser itself writes a refusal on its console.
    assert.deepEqual(faults.filter((f) => !f.includes("401")), []);

    const other = await page.context().newPage();
    const others = await watch(other, demo.url);
    await other.goto(demo.url);
    await other.getByLabel("Bearer token").waitFor();
    assert.deepEqual(others.filter((f) => !f.includes("401")), []);
    await page.getByRole("button", { name: "Forget it" }).click();
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
    await close();
  });
});
