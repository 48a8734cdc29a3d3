// The menu of named agents in front of the console.
import { after, before, describe, it } from "node:test";
import assert from "node:assert/strict";
import { writeFileSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { accessible, answered, fits, missing, openPage, shoot, startBrowser, startDemo } from "./stage.js";

describe("the menu of agents", { skip: missing }, () => {
  let demo, browser;
  before(async () => {
    const file = join(mkdtempSync(join(tmpdir(), "agents-")), "agents.yaml");
    writeFileSync(file, "agents:\n- {id: support, examples: [\"What time is it in Oslo?\"]}\n- {id: research, description: Looks facts up., examples: [\"What is 2 + 3?\"]}\n");
    [demo, browser] = await Promise.all([startDemo({ AGENTS_FILE: file }), startBrowser()]);
  });
  after(async () => {
    await browser?.close();
    await demo?.stop();
  });

  it("selects the agent of a question, and shows its examples", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    const menu = page.getByLabel("Agent", { exact: true });
    await menu.waitFor();
    await page.getByRole("button", { name: "What time is it in Oslo?" }).waitFor();
    await menu.selectOption("research");
    for (const [colorScheme, width, name] of [["light", 1280, "light"], ["dark", 380, "narrow-dark"]]) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 800 });
      await fits(page);
      await accessible(page);
      await shoot(page, `12-agents-${name}`);
    }
    const request = page.waitForRequest("**/answer/stream");
    await page.getByRole("button", { name: "What is 2 + 3?" }).click();
    assert.equal((await request).postDataJSON().agent, "research");
    await answered(page);
    assert.deepEqual(faults, []);
    await close();
  });
});
