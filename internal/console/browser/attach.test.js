// Files of a question, and an answer that is a value.
import { after, before, describe, it } from "node:test";
import assert from "node:assert/strict";
import { accessible, answered, fits, missing, openPage, startBrowser, startDemo } from "./stage.js";

describe("attachments and output", { skip: missing }, () => {
  let demo, browser;
  before(async () => {
    [demo, browser] = await Promise.all([startDemo(), startBrowser()]);
  });
  after(async () => {
    await browser?.close();
    await demo?.stop();
  });

  it("attaches files by button, paste and drop, and sends them with the question", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    await page.locator("#files").setInputFiles([{ name: "a.txt", mimeType: "text/plain", buffer: Buffer.from("x") }, { name: "gone.txt", mimeType: "text/plain", buffer: Buffer.from("y") }]);
    for (const [kind, member, name] of [["paste", "clipboardData", "b.txt"], ["drop", "dataTransfer", "c.txt"]]) {
      await page.evaluate(([kind, member, name]) => {
        const data = new DataTransfer();
        data.items.add(new File(["z"], name, { type: "text/plain" }));
        const event = kind === "paste" ? new ClipboardEvent(kind, { [member]: data, bubbles: true, cancelable: true }) : new DragEvent(kind, { [member]: data, bubbles: true, cancelable: true });
        document.getElementById("question").dispatchEvent(event);
      }, [kind, member, name]);
      await page.getByText(name, { exact: true }).waitFor();
    }
    // Cells of a spreadsheet come as text, and as a picture of them.
    const prevented = await page.evaluate(() => {
      const data = new DataTransfer();
      data.items.add("a\tb", "text/plain");
      data.items.add("<table><tr><td>a<td>b</table>", "text/html");
      data.items.add(new File(["p"], "image.png", { type: "image/png" }));
      return !document.getElementById("question").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
    });
    assert.equal(prevented, false, "the text is pasted");
    await page.getByRole("button", { name: "Remove gone.txt" }).click();
    await accessible(page);
    await fits(page);
    if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/attach.png` });
    const sent = page.waitForRequest((r) => r.url().endsWith("/answer/stream"));
    await page.locator("#question").fill("What is 12.5 * 8?");
    await page.keyboard.press("Enter");
    const body = JSON.parse((await sent).postData());
    assert.deepEqual(body.attachments.map((a) => [a.name, a.media_type, a.data]), [["a.txt", "text/plain", "eA=="], ["b.txt", "text/plain", "eg=="], ["c.txt", "text/plain", "eg=="]]);
    await answered(page);
    assert.equal(await page.locator("#attached").isVisible(), false);
    assert.match(await page.locator(".turn").innerText(), /Attached: a\.txt, b\.txt, c\.txt/);
    assert.deepEqual(faults, []);
    await close();
  });

  it("names a file that cannot be read, and attaches the others", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    await page.evaluate(() => {
      const read = File.prototype.arrayBuffer;
      File.prototype.arrayBuffer = function () {
        return this.name === "folder" ? Promise.reject(new DOMException("a folder", "NotReadableError")) : read.call(this);
      };
    });
    await page.locator("#files").setInputFiles(["one.txt", "folder", "two.txt"].map((name) => ({ name, mimeType: "text/plain", buffer: Buffer.from(name) })));
    await page.getByText("folder was not attached: it cannot be read.").waitFor();
    await page.getByRole("button", { name: "Remove two.txt" }).waitFor();
    assert.equal(await page.locator("#attached button").count(), 2);
    assert.deepEqual(faults, []);
    await close();
  });

  it("keeps the question and its files if the service refuses them", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    await page.locator("#files").setInputFiles([{ name: "a.zip", mimeType: "application/zip", buffer: Buffer.from("x") }, { name: "b.txt", mimeType: "text/plain", buffer: Buffer.from("y") }]);
    await page.getByRole("button", { name: "Remove b.txt" }).waitFor();
    await page.locator("#question").fill("What is 12.5 * 8?");
    await page.keyboard.press("Enter");
    await page.locator(".turn .problem").waitFor();
    assert.equal(await page.locator("#question").inputValue(), "What is 12.5 * 8?");
    await page.getByRole("button", { name: "Remove a.zip" }).click();
    const sent = page.waitForRequest((r) => r.url().endsWith("/answer/stream"));
    await page.locator("#question").press("Enter");
    assert.deepEqual(JSON.parse((await sent).postData()).attachments, [{ name: "b.txt", media_type: "text/plain", data: "eQ==" }]);
    await answered(page);
    assert.equal(await page.locator("#attached").isVisible(), false);
    assert.deepEqual(faults.filter((f) => !/status of 400/.test(f)), []);
    await close();
  });

  it("shows output as a tree", async () => {
    const { page, faults, close } = await openPage(browser, demo.url);
    await page.route("**/answer/stream", async (route) => {
      const body = JSON.parse(route.request().postData());
      body.output_schema = { type: "object", properties: { sum: { type: "object", properties: { result: { type: "number" } } } }, required: ["sum"] };
      await route.continue({ postData: JSON.stringify(body) });
    });
    await page.locator("#question").fill("What is 12.5 * 8?");
    await page.keyboard.press("Enter");
    await answered(page);
    assert.match(await page.getByRole("group", { name: "Answer", exact: true }).innerText(), /sum: \{1\}\s+result: 100/);
    assert.equal(await page.locator(".text").filter({ visible: true }).count(), 0);
    await accessible(page);
    if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/output.png` });
    assert.deepEqual(faults, []);
    await close();
  });
});
