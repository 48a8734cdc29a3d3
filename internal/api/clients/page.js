// A page in which a component of docs/clients/ai-sdk.md runs: node page.js example.jsx renders
// its default export, asks a question as a person would, and prints what the page shows
// once it has the answer.
import { readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { Window } from "happy-dom";
import { transform } from "sucrase";

const [source, question, answer] = process.argv.slice(2);
const window = new Window({ url: "http://127.0.0.1/" });
for (const name of ["window", "document", "HTMLElement", "Node", "Event", "MutationObserver", "HTMLIFrameElement", "navigator"]) {
  Object.defineProperty(globalThis, name, { value: name === "window" ? window : window[name], configurable: true });
}
const compiled = path.join(path.dirname(source), "example.compiled.mjs");
writeFileSync(compiled, transform(readFileSync(source, "utf8"), { transforms: ["jsx"], jsxRuntime: "automatic", production: true }).code);
const [{ default: Component }, { createElement }, { createRoot }] = await Promise.all([import(pathToFileURL(compiled)), import("react"), import("react-dom/client")]);

const page = window.document.createElement("div");
window.document.body.append(page);
const root = createRoot(page);
const shows = (wanted) =>
  new Promise((resolve) => {
    const look = () => wanted() && resolve();
    new window.MutationObserver(look).observe(page, { childList: true, subtree: true, characterData: true });
    look();
  });
root.render(createElement(Component));
await shows(() => page.querySelector("form"));
page.querySelector("input").value = question;
page.querySelector("form").dispatchEvent(new window.Event("submit", { bubbles: true, cancelable: true }));
await shows(() => page.textContent.includes(answer));
console.log(page.textContent);
process.exit(0);
