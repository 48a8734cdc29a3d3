// @ts-check
// What a model says on the way: text, and reasoning that is folded away.
import { element } from "./element.js";
import { MarkdownView } from "./markdown.js";

/** A text or a piece of reasoning that is being said.
 * @typedef {{root: HTMLElement, text: string, step: number, draw: () => void, close: () => void}} Part
 */

/**
 * @param {number} step
 * @param {boolean} live whether it is being said now, and so to be read out
 * @returns {Part}
 */
export function textPart(step, live) {
  // Busy until the end, so that a screen reader reads sentences and not syllables.
  const root = element("div", { class: "text", ...(live && { "aria-live": "polite", "aria-busy": "true" }) });
  const view = new MarkdownView(root);
  return { root, text: "", step, draw() { view.show(this.text); }, close: () => root.removeAttribute("aria-busy") };
}

/**
 * @param {number} step
 * @returns {Part}
 */
export function reasoningPart(step) {
  const title = element("summary", {}, "Thinking");
  const body = element("div", { class: "reasoning-text" });
  const root = element("details", { class: "reasoning" }, title, body);
  return { root, text: "", step, draw() { body.textContent = this.text; }, close: () => void (title.textContent = "Reasoning") };
}
