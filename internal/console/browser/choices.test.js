// The menus of agents and models in front of the console.
import { after, before, describe, it } from "node:test";
import assert from "node:assert/strict";
import { writeFileSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { accessible, answered, ask, fits, missing, openPage, shoot, startBrowser, startDemo } from "./stage.js";

const forms = [["light", 1280, "light"], ["dark", 1280, "dark"], ["light", 380, "narrow"], ["dark", 380, "narrow-dark"]];

async function look(page, name) {
  for (const [colorScheme, width, form] of forms) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize({ width, height: 800 });
    await fits(page);
    await accessible(page);
    await shoot(page, `${name}-${form}`);
  }
}

describe("the menus of agents and models", { skip: missing }, () => {
  let demo, browser;
  before(async () => {
    const dir = mkdtempSync(join(tmpdir(), "choices-"));
    const [agents, models] = [join(dir, "agents.yaml"), join(dir, "models.json")];
    writeFileSync(agents, "agents:\n- {id: support, examples: [\"What time is it in Oslo?\"]}\n- {id: research, model: large, description: Looks facts up., examples: [\"What is 2 + 3?\"]}\n");
    writeFileSync(models, JSON.stringify([{ id: "answerd-stand-in" }, { id: "large" }, { id: "a-model-with-a-name-that-is-longer-than-the-page-is-wide/at-380-pixels" }]));
    [demo, browser] = await Promise.all([startDemo({ AGENTS_FILE: agents, MODELS_FILE: models }), startBrowser()]);
  });
  after(async () => {
    await browser?.close();
    await demo?.stop();
  });

  it("select the agent and the model of a question, and show the agent's examples", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    const [agent, model] = [page.getByLabel("Agent", { exact: true }), page.getByLabel("Model", { exact: true })];
    await agent.waitFor();
    await page.getByRole("button", { name: "What time is it in Oslo?" }).waitFor();
    assert.deepEqual(await model.locator("option").allTextContents(), ["Default (answerd-stand-in)", "a-model-with-a-name-that-is-longer-than-the-page-is-wide/at-380-pixels", "answerd-stand-in", "large"]);
    await agent.selectOption("research");
    assert.equal(await model.locator("option").first().textContent(), "Default (large)");
    await look(page, "12-choices");
    await page.setViewportSize({ width: 1280, height: 800 });
    const first = page.waitForRequest("**/answer/stream");
    await page.getByRole("button", { name: "What is 2 + 3?" }).click();
    const { agent: askedAgent, model: askedModel } = (await first).postDataJSON();
    assert.deepEqual([askedAgent, askedModel], ["research", undefined]);
    await answered(page);

    await model.selectOption("answerd-stand-in");
    const second = page.waitForRequest("**/answer/stream");
    await ask(page, "What is 3 + 4?");
    assert.equal((await second).postDataJSON().model, "answerd-stand-in");
    await answered(page);
    // A conversation goes on with the agent that answered last.
    await page.getByRole("button", { name: "New conversation" }).click();
    await agent.selectOption("support");
    await page.goBack();
    await page.locator(".metadata").nth(1).waitFor();
    assert.equal(await agent.inputValue(), "research");
    await page.reload();
    await page.locator(".metadata").nth(1).waitFor();
    await agent.waitFor();
    assert.equal(await agent.inputValue(), "research");
    assert.deepEqual(faults, []);
    await close();
  });
});

describe("a service with one model and no named agent", { skip: missing }, () => {
  it("has no menus", async () => {
    const [demo, browser] = await Promise.all([startDemo(), startBrowser()]);
    try {
      const { page, faults, close } = await openPage(browser, demo.url);
      await Promise.all([page.waitForResponse("**/v1/models"), page.reload()]);
      await page.locator(".example").first().waitFor();
      assert.equal(await page.locator(".choice:visible").count(), 0);
      assert.deepEqual(faults, []);
      await close();
    } finally {
      await browser.close();
      await demo.stop();
    }
  });
});

describe("Enter while a run is in progress", { skip: missing }, () => {
  let demo, browser;
  before(async () => {
    [demo, browser] = await Promise.all([startDemo(), startBrowser()]);
  });
  after(async () => {
    await browser?.close();
    await demo?.stop();
  });

  it("says that the run waits for an approval, keeps the question, and leads there", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    const sent = [];
    page.on("request", (r) => r.url().endsWith("/answer/stream") && sent.push(r.postDataJSON().question));
    await ask(page, "Delete note 2");
    await page.locator(".ask").waitFor();
    await ask(page, "Yes, do it");
    const why = page.getByRole("alert").filter({ hasText: "Not sent: the run waits for your answer above." });
    await why.waitFor();
    assert.equal(await page.getByLabel("Your question").inputValue(), "Yes, do it");
    assert.deepEqual([...new Set(sent)], ["Delete note 2"]); // whose stream is opened again
    await look(page, "14-not-sent");
    await page.setViewportSize({ width: 1280, height: 800 });
    await page.locator(".call > summary").click(); // closes it
    await page.getByRole("button", { name: "Go to the question" }).press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.textContent), "Approve");
    assert.equal(await why.count(), 0);
    await page.keyboard.press("Enter");
    await answered(page);
    assert.equal(await page.getByLabel("Your question").inputValue(), "Yes, do it");
    assert.match(await page.locator(".call").innerText(), /Approved\./);
    assert.deepEqual(faults, []);
    await close();
  });

  it("says that an answer is not complete, until it is", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    await ask(page, "Write a slow report about tea in 10 steps of 2000 ms");
    await page.getByRole("progressbar").waitFor();
    await ask(page, "What is 2 + 3?");
    const why = page.getByText("Not sent: the answer to the last question is not complete.");
    await why.waitFor();
    await page.getByRole("button", { name: "Stop" }).click();
    await answered(page);
    assert.equal(await why.count(), 0);
    await page.getByLabel("Your question").press("Enter");
    await page.locator(".turn").nth(1).waitFor();
    await answered(page);
    assert.deepEqual(faults, []);
    await close();
  });
});
