// Servers that are offline, as the console shows them.
import { after, before, describe, it } from "node:test";
import assert from "node:assert/strict";
import { writeFileSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { accessible, answered, ask, fits, missing, openPage, shoot, startBrowser, startDemo, startMCPServer, startProxy } from "./stage.js";

describe("servers that are offline", { skip: missing }, () => {
  let demo, server, proxy, browser;
  before(async () => {
    [server, browser] = await Promise.all([startMCPServer(), startBrowser()]);
    proxy = await startProxy(server.url);
    const config = join(mkdtempSync(join(tmpdir(), "servers-")), "mcp.json");
    writeFileSync(config, JSON.stringify({ mcpServers: { crm: { ...server.config(proxy.url), toolPrefix: "crm_" }, wiki: { type: "http", url: "http://127.0.0.1:1/mcp" } } }));
    demo = await startDemo({ MCP_CONFIG_PATH: config });
  });
  after(async () => {
    await browser?.close();
    await demo?.stop();
    await proxy?.close();
    await server?.stop();
  });

  it("are shown as offline, named in the answers without them, and come back", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    const shown = (name) => page.locator(`.server[data-server="${name}"]`);
    await page.locator('.server[data-server="crm"][data-state="connected"]').waitFor();
    await shown("wiki").getByText("offline", { exact: true }).waitFor();
    for (const [colorScheme, width, name] of [["light", 1280, "light"], ["dark", 1280, "dark"], ["light", 380, "narrow"], ["dark", 380, "narrow-dark"]]) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 800 });
      await fits(page);
      await accessible(page);
      if (width === 380) await page.getByRole("button", { name: /Servers and tools: \d+ tools, [12] offline/ }).click();
      await fits(page);
      await accessible(page);
      await shoot(page, `13-offline-${name}`);
      if (width === 380) await page.keyboard.press("Escape");
    }
    await page.setViewportSize({ width: 1280, height: 800 });
    await ask(page, "What is 2 + 3?");
    await answered(page);
    assert.equal(await page.locator(".notice").innerText(), "Offline, and not used: wiki.");

    const refresh = shown("crm").getByRole("button", { name: "Refresh the tools of crm" });
    proxy.drop();
    await refresh.click();
    await shown("crm").getByText("offline", { exact: true }).waitFor();
    await page.getByText("Offline: crm, wiki", { exact: true }).waitFor();
    await page.getByRole("status").filter({ hasText: "Offline: crm" }).waitFor({ state: "attached" });
    await accessible(page);
    proxy.refusing = false;
    await refresh.click();
    await shown("crm").getByText("connected", { exact: true }).waitFor();
    assert.deepEqual(faults.filter((f) => !f.includes("status of 5")), []); // of the refresh that failed
    await close();
  });
});
