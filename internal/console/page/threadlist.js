// @ts-check
// The list of conversations at the side.
import { element } from "./element.js";
import { titleOf } from "./threads.js";

/** @typedef {import("./threads.js").Thread} Thread */

const day = 24 * 60 * 60 * 1000; // ms

/** Shows the conversations; what a click does is the page's. */
export class ThreadList {
  #root = /** @type {HTMLElement} */ (document.querySelector("#threads"));
  #none = /** @type {HTMLElement} */ (document.querySelector("#threads-none"));
  #onDelete;

  /** @param {(thread: Thread) => void} onDelete */
  constructor(onDelete) {
    this.#onDelete = onDelete;
  }

  /**
   * @param {Thread[]} threads newest first
   * @param {string} current id of the one on the page
   * @param {ReadonlyMap<string, unknown>} running those with a run that goes on
   */
  show(threads, current, running) {
    this.#none.hidden = threads.length > 0;
    /** @type {HTMLElement[]} */
    const items = [];
    let group = "";
    for (const thread of threads) {
      const when = age(thread.at);
      if (when !== group) items.push(element("li", { class: "threads-age" }, (group = when)));
      items.push(this.#item(thread, thread.id === current, running.has(thread.id)));
    }
    this.#root.replaceChildren(...items);
  }

  /**
   * @param {Thread} thread
   * @param {boolean} current
   * @param {boolean} running
   */
  #item(thread, current, running) {
    const title = titleOf(thread);
    const link = element("a", { href: `#thread-${thread.id}`, class: "thread-link", title, ...(current && { "aria-current": "true" }) }, title, ...(running ? [element("span", { class: "unseen" }, ", running")] : []));
    const remove = element("button", { type: "button", class: "icon-button thread-delete", "aria-label": `Delete: ${title}` }, element("span", { class: "icon icon-trash" }));
    // The first press only arms the button: there is no way back from the second.
    remove.addEventListener("click", () => {
      if (remove.classList.contains("armed")) return this.#onDelete(thread);
      remove.classList.add("armed");
      remove.replaceChildren("Delete?");
      remove.setAttribute("aria-label", `Really delete: ${title}`);
    });
    remove.addEventListener("blur", () => {
      remove.classList.remove("armed");
      remove.replaceChildren(element("span", { class: "icon icon-trash" }));
      remove.setAttribute("aria-label", `Delete: ${title}`);
    });
    return element("li", { class: "thread", ...(running && { "data-running": "true" }) }, link, remove);
  }
}

/** @param {number} at ms */
function age(at) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (at >= midnight) return "Today";
  if (at >= midnight - day) return "Yesterday";
  return at >= midnight - 7 * day ? "Last seven days" : "Earlier";
}
