// @ts-check
// A limit that the run has reached and that the reader may raise, so that it goes on.
import { element, visible } from "./element.js";
import { limitForm } from "./question.js";

/** @typedef {import("./run.js").RunEvent} RunEvent */
/** @typedef {import("./question.js").Send} Send */

/** Shows one question for more, and what was said to it. It belongs to no call. */
export class LimitView {
  #state = element("span", { class: "limit-state" });
  #used;
  #form;

  /**
   * @param {RunEvent} event budget_required
   * @param {Send} send answers it
   */
  constructor(event, send) {
    this.name = limitName(event);
    this.#used = event.used;
    this.#form = limitForm(event, this.name, send);
    this.root = element("section", { class: "limit", "aria-label": `Limit of ${this.name}`, "data-asks": "true" },
      element("p", { class: "limit-head" }, element("span", { class: "limit-name" }, `Limit of ${this.name}`), this.#state), this.#form);
    this.#show(event.max);
  }

  /** @param {RunEvent} event budget_resolved */
  resolve(event) {
    this.#show(event.max);
    const by = event.by ? ` by ${event.by}` : "";
    const how = event.approved ? `Raised to ${amount(event.max)}${by}` : `Not raised${by}`;
    this.#form.replaceWith(element("p", { class: "small" }, event.reason ? `${how}: ${event.reason}` : `${how}.`));
    delete this.root.dataset.asks;
  }

  /** No more events come. */
  close() {
    if (!this.root.dataset.asks) return;
    delete this.root.dataset.asks;
    this.#form.remove();
    this.#state.textContent += ", not answered";
  }

  /** @param {number} max the limit as it is now */
  #show(max) {
    this.#state.textContent = `${amount(this.#used)} of ${amount(max)} used`;
  }
}

/** How people read the name of a limit. @param {RunEvent} event */
export function limitName(event) {
  return visible(event.limit).replaceAll("_", " ");
}

/** @param {number} n in the limit's own unit; costs are small */
function amount(n) {
  return n.toLocaleString(undefined, { maximumFractionDigits: 6 });
}
