// @ts-check
import { element } from "./element.js";

const shown = 2_000; // ms that "Copied" stands there

/**
 * A button that copies a text.
 *
 * @param {string} label what the button says
 * @param {string} what it copies, for those who only hear the button
 * @param {() => string} text
 * @param {HTMLElement} [source] where text stands; selected, ready to be copied by hand,
 *   where there is no clipboard, as on plain http beyond loopback
 */
export function copyButton(label, what, text, source) {
  const says = element("span", {}, label);
  const button = element("button", { type: "button", class: "link copy" }, says, element("span", { class: "unseen" }, ` ${what}`));
  let timer = 0;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      says.textContent = "Copied";
    } catch {
      says.textContent = source ? "Selected" : "No clipboard";
      if (source) getSelection()?.selectAllChildren(source);
    }
    clearTimeout(timer);
    timer = setTimeout(() => void (says.textContent = label), shown);
  });
  return button;
}
