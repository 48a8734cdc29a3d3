// What people see when they are shown answerd: one conversation from the first question
// on, in light, dark and narrow, and with nothing but a keyboard.
import { after, before, describe, it } from "node:test";
import assert from "node:assert/strict";
import { accessible, answered, ask, fits, missing, openPage, shoot, startBrowser, startDemo } from "./stage.js";

describe("the story of the demo", { skip: missing }, () => {
  let demo, browser;
  before(async () => {
    [demo, browser] = await Promise.all([startDemo(), startBrowser()]);
  });
  after(async () => {
    await browser?.close();
    await demo?.stop();
  });

  const forms = { light: ["light", 1280], dark: ["dark", 1280], narrow: ["light", 380], "narrow-dark": ["dark", 380] };

  /** Looks at the page in some of its forms, or in all. */
  async function look(page, name, ...some) {
    for (const form of some.length > 0 ? some : Object.keys(forms)) {
      const [colorScheme, width] = forms[form];
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 800 });
      await fits(page);
      await accessible(page);
      await shoot(page, `${name}-${form}`);
    }
    await page.emulateMedia({ colorScheme: "light" });
    await page.setViewportSize({ width: 1280, height: 800 });
  }

  it("is told from the question to the last answer", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    await page.locator(".example").first().waitFor();
    await look(page, "1-welcome");

    await page.getByRole("button", { name: /^What time is it in Tokyo/ }).click();
    await answered(page);
    await look(page, "2-answer", "light");
    await page.locator(".about-summary").click();
    await page.locator(".tool summary", { hasText: "convert" }).click();
    assert.deepEqual(await page.locator(".fall-name").allTextContents(), ["Model, step 1", "current_time", "calculate", "Model, step 2"]);
    assert.match(await page.locator(".legend").innerText(), /Model \d.*\s+Tools \d/);
    assert.match(await page.locator(".facts").innerText(), /Model\s+answerd-stand-in\s+Steps\s+2\s+Finish\s+stop\s+Tokens\s+\S+ in, \d+ out\s+Trace\s+[0-9a-f]{32}/);
    await look(page, "3-timeline");
    await page.locator(".about-summary").click();

    await ask(page, "Delete note 2");
    await page.locator(".ask").waitFor();
    await look(page, "4-approval", "dark", "light");
    await page.getByLabel("Reason, for the model").fill("still needed");
    await page.getByRole("button", { name: "Refuse" }).click();
    await answered(page);
    assert.match(await page.locator(".call").last().innerText(), /Not approved: still needed[^]*failed: denied|failed: denied[^]*Not approved: still needed/);
    await ask(page, "Delete note 3");
    await page.getByRole("button", { name: "Approve" }).click();
    await answered(page);
    assert.match(await page.locator(".turn").last().locator(".text").innerText(), /deleted/);

    await ask(page, "Book a table");
    await page.locator(".ask").waitFor();
    await look(page, "5-form");
    await page.locator(".ask").getByLabel("Name").fill("Ada Lovelace");
    await page.locator(".ask").getByLabel("People").fill("4");
    await page.locator(".ask").getByLabel("Where").selectOption("On the terrace");
    await page.locator(".ask").getByRole("button", { name: "Send" }).click();
    await answered(page);
    assert.match(await page.locator(".turn").last().locator(".text").innerText(), /A table for 4 is booked in the name of Ada Lovelace\./);

    await ask(page, "Connect my calendar");
    const link = page.getByRole("link", { name: /^Open 127\.0\.0\.1/ });
    await link.waitFor();
    await look(page, "6-page", "narrow");
    const [popup] = await Promise.all([page.context().waitForEvent("page"), link.click()]);
    await popup.getByRole("button", { name: "Allow it" }).click();
    await popup.getByText("It is allowed.").waitFor();
    assert.equal(await popup.evaluate(() => window.opener), null);
    await popup.close();
    await page.getByRole("button", { name: "I have done it" }).click();
    await answered(page);
    assert.match(await page.locator(".turn").last().locator(".text").innerText(), /The calendar is connected\./);
    await page.locator(".about-summary").last().click();
    assert.match(await page.locator(".legend").last().innerText(), /Waiting for you \d/);

    await ask(page, "Write a slow report about tea in 10 steps of 2000 ms");
    await page.getByRole("progressbar").waitFor();
    await look(page, "7-progress", "narrow-dark");
    await page.getByRole("button", { name: "Stop" }).click();
    await answered(page);
    await page.locator(".turn").last().getByText("Stopped.").waitFor();
    await ask(page, "Call the flaky service");
    await answered(page);
    await look(page, "8-failure");
    assert.equal(await page.locator(".turn").count(), 7);
    assert.deepEqual(faults, []);
    await close();
  });

  it("can be told with a keyboard alone", async () => {
    const { page, faults, close } = await openPage(browser, demo.url, { viewport: { width: 380, height: 740 } });
    const { keyboard } = page;
    const focused = () => page.evaluate(() => document.activeElement === document.body ? "" : `${document.activeElement.id} ${document.activeElement.textContent.trim()}`);
    /** Goes from control to control until one says text. */
    const goTo = async (key, text) => {
      for (let i = 0; i < 60; i++) {
        await keyboard.press(key);
        if ((await focused()).includes(text)) return assert.ok(await page.evaluate(() => document.activeElement.matches(":focus-visible")));
      }
      assert.fail(`${key} never comes to ${text}`);
    };
    await page.locator(".example").first().waitFor();
    await page.evaluate(() => document.activeElement.blur());
    await goTo("Tab", "Skip to the question");
    await keyboard.press("Enter");
    assert.match(await focused(), /^question/);
    await keyboard.type("delete note 1");
    await keyboard.press("Enter");
    await page.locator(".ask").waitFor();
    await goTo("Shift+Tab", "Approve");
    await keyboard.press("Enter");
    await answered(page);
    assert.match(await page.locator(".call").innerText(), /Approved\./);
    await goTo("Shift+Tab", "timeline and details");
    await keyboard.press("Enter");
    assert.equal(await page.locator(".about-run").getAttribute("open"), "");
    await goTo("Shift+Tab", "side-open");
    await keyboard.press("Enter");
    await goTo("Tab", "New conversation");
    await keyboard.press("Escape");
    assert.match(await focused(), /^side-open/);
    await keyboard.press("Enter");
    await goTo("Tab", "New conversation");
    await keyboard.press("Enter");
    await page.locator("#welcome").waitFor();
    assert.match(await focused(), /^question/);
    assert.deepEqual(faults, []);
    await close();
  });

  it("keeps still for whoever wants no motion", async () => {
    const { page, close } = await openPage(browser, demo.url, { reducedMotion: "reduce" });
    await ask(page, "Write a slow report about tea in 10 steps of 2000 ms");
    await page.getByRole("progressbar").waitFor();
    assert.equal(await page.evaluate(() => document.getAnimations().length), 0);
    await close();
  });
});
