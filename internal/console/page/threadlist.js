// @ts-check
// The list of conversations at the side.
import { Problem } from "./client.js";
import { composes, element } from "./element.js";

/** @typedef {import("./threads.js").Listed} Listed */

const day = 24 * 60 * 60 * 1000; // ms
const typing = 250; // ms without a key until the list is searched
const titleLength = 200; // bytes that the service takes, and so at most as many characters

/** Shows the conversations, finds, renames and deletes them. */
export class ThreadList {
  #root = /** @type {HTMLElement} */ (document.querySelector("#threads"));
  #none = /** @type {HTMLElement} */ (document.querySelector("#threads-none"));
  #search = /** @type {HTMLInputElement} */ (document.querySelector("#thread-search"));
  #more = /** @type {HTMLButtonElement} */ (document.querySelector("#threads-more"));
  #problem = /** @type {HTMLElement} */ (document.querySelector("#threads-problem"));
  #threads;
  #announce;
  #onRename;
  #onDelete;
  /** @type {Listed[]} */
  #listed = [];
  #next = "";
  #found = ""; // the words that they were found with
  #current = "";
  /** @type {ReadonlyMap<string, unknown>} */
  #running = new Map();
  #asked = 0; // how often the list was asked for: an older answer must not replace a newer one
  #timer = 0;
  #renaming = "";

  /**
   * @param {import("./threads.js").Threads} threads
   * @param {(text: string) => void} announce
   * @param {(id: string, title: string) => void} onRename is called after a conversation was renamed
   * @param {(id: string) => Promise<void>} onDelete
   */
  constructor(threads, announce, onRename, onDelete) {
    this.#threads = threads;
    this.#announce = announce;
    this.#onRename = onRename;
    this.#onDelete = onDelete;
    this.#search.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.load().then(() => this.#announce(`${this.#listed.length}${this.#next ? " or more" : ""} ${this.#listed.length === 1 ? "conversation" : "conversations"} found`)), typing);
    });
    this.#more.addEventListener("click", () => void this.#loadMore());
  }

  /**
   * @param {string} current id of the one on the page
   * @param {ReadonlyMap<string, unknown>} running those with a run that this page follows
   */
  show(current, running) {
    [this.#current, this.#running] = [current, running];
    this.#draw();
  }

  /** Reads the list anew: its first page. */
  async load() {
    const asked = ++this.#asked;
    const words = this.#words;
    try {
      const { threads, next = "" } = await this.#threads.list(words, "");
      if (asked !== this.#asked) return;
      // What the reader has added with the button stays.
      const ids = new Set(threads.map((t) => t.thread_id));
      const rest = words === this.#found && next && this.#listed.length > threads.length ? this.#listed.slice(threads.length).filter((t) => !ids.has(t.thread_id)) : [];
      if (rest.length === 0) this.#next = next;
      this.#listed = [...threads, ...rest];
      this.#found = words;
      this.#showProblem(null);
    } catch (error) {
      if (asked === this.#asked) this.#showProblem(error);
    }
    this.#draw();
  }

  /** Forgets the list. */
  clear() {
    this.#asked++;
    [this.#listed, this.#next, this.#search.value] = [[], "", ""];
    this.#draw();
  }

  async #loadMore() {
    const asked = ++this.#asked;
    this.#more.disabled = true;
    try {
      const { threads, next = "" } = await this.#threads.list(this.#words, this.#next);
      if (asked === this.#asked) {
        const [first] = threads;
        const known = new Set(this.#listed.map((t) => t.thread_id));
        this.#listed.push(...threads.filter((t) => !known.has(t.thread_id)));
        this.#next = next;
        this.#draw();
        if (first) this.#link(first.thread_id)?.focus();
      }
    } catch (error) {
      this.#showProblem(error);
    }
    this.#more.disabled = false;
  }

  get #words() {
    return this.#search.value.trim();
  }

  /** @param {string} id */
  #link(id) {
    return /** @type {HTMLElement | null} */ (this.#root.querySelector(`[data-thread="${CSS.escape(id)}"] .thread-link`));
  }

  /** @param {unknown} error of reading the list or changing a conversation; null if there is none */
  #showProblem(error) {
    this.#problem.hidden = error === null;
    this.#problem.textContent = error === null ? "" : error instanceof Problem ? error.message : "The service cannot be reached.";
  }

  #draw() {
    if (this.#renaming) return; // what the reader types must not be lost
    const focused = document.activeElement instanceof HTMLElement && this.#root.contains(document.activeElement) ? document.activeElement : null;
    const [place, part] = [focused?.closest("li")?.dataset.thread ?? "", focused?.dataset.part ?? ""];
    const some = this.#listed.length > 0;
    this.#none.hidden = some;
    this.#none.textContent = this.#words ? "No conversation has this in its title." : "Your conversations are listed here.";
    this.#search.hidden = !some && !this.#words;
    this.#more.hidden = this.#next === "";
    /** @type {HTMLElement[]} */
    const items = [];
    let group = "";
    for (const thread of this.#listed) {
      const when = age(Date.parse(thread.updated_at));
      if (when !== group) items.push(element("li", { class: "threads-age" }, (group = when)));
      items.push(this.#item(thread));
    }
    this.#root.replaceChildren(...items);
    if (place) /** @type {HTMLElement | null} */ (this.#root.querySelector(`[data-thread="${CSS.escape(place)}"] [data-part="${part}"]`))?.focus();
  }

  /** @param {Listed} thread */
  #item(thread) {
    const { thread_id: id, title } = thread;
    const current = id === this.#current;
    const running = this.#running.has(id) || thread.status === "running" || thread.status === "suspended";
    const link = element("a", { href: `./#thread-${encodeURIComponent(id)}`, class: "thread-link", title, "data-part": "link", ...(current && { "aria-current": "true" }) }, title, ...(running ? [element("span", { class: "unseen" }, ", running")] : []));
    const rename = element("button", { type: "button", class: "icon-button thread-button", "data-part": "rename", "aria-label": `Rename: ${title}` }, element("span", { class: "icon icon-pencil" }));
    const remove = element("button", { type: "button", class: "icon-button thread-button", "data-part": "delete", "aria-label": `Delete: ${title}` }, element("span", { class: "icon icon-trash" }));
    const item = element("li", { class: "thread", "data-thread": id, ...(running && { "data-running": "true" }) }, link, rename, remove);
    rename.addEventListener("click", () => this.#rename(thread, item));
    // The first press only arms the button: there is no way back from the second.
    remove.addEventListener("click", () => {
      if (remove.classList.contains("armed")) return void this.#delete(id);
      remove.classList.add("armed");
      remove.replaceChildren("Delete?");
      remove.setAttribute("aria-label", `Really delete: ${title}`);
    });
    remove.addEventListener("blur", () => {
      remove.classList.remove("armed");
      remove.replaceChildren(element("span", { class: "icon icon-trash" }));
      remove.setAttribute("aria-label", `Delete: ${title}`);
    });
    return item;
  }

  /**
   * Lets the reader change the title in its place. Enter and leaving the field save it, Escape does not.
   *
   * @param {Listed} thread
   * @param {HTMLElement} item
   */
  #rename(thread, item) {
    const field = element("input", { type: "text", class: "thread-title", maxlength: titleLength, "aria-label": `New title of: ${thread.title}`, enterkeyhint: "done" });
    field.value = thread.title;
    this.#renaming = thread.thread_id;
    item.replaceChildren(field);
    field.focus();
    field.select();
    /** @param {boolean} save @param {boolean} stay whether the focus stays in the list */
    const end = async (save, stay) => {
      if (this.#renaming !== thread.thread_id) return;
      this.#renaming = "";
      const title = field.value.trim();
      if (save && title !== "" && title !== thread.title) {
        try {
          thread.title = await this.#threads.rename(thread.thread_id, title);
          this.#showProblem(null);
          this.#announce("The conversation is renamed");
          this.#onRename(thread.thread_id, thread.title);
        } catch (error) {
          this.#showProblem(error);
        }
      }
      this.#draw();
      if (stay) this.#link(thread.thread_id)?.focus();
    };
    field.addEventListener("keydown", (event) => {
      if (composes(event) || (event.key !== "Enter" && event.key !== "Escape")) return;
      event.preventDefault();
      event.stopPropagation(); // Escape would close the drawer too
      void end(event.key === "Enter", true);
    });
    field.addEventListener("blur", () => void end(true, false));
  }

  /** @param {string} id */
  async #delete(id) {
    const at = this.#listed.findIndex((t) => t.thread_id === id);
    const neighbour = this.#listed[at + 1] ?? this.#listed[at - 1];
    try {
      await this.#onDelete(id);
      this.#listed = this.#listed.filter((t) => t.thread_id !== id);
      this.#showProblem(null);
      this.#announce("The conversation is deleted");
      void this.load();
    } catch (error) {
      this.#showProblem(error); // until the list is read the next time
    }
    this.#draw();
    if (neighbour && (document.activeElement === document.body || document.activeElement === null)) this.#link(neighbour.thread_id)?.focus();
  }
}

/** @param {number} at ms */
function age(at) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (at >= midnight) return "Today";
  if (at >= midnight - day) return "Yesterday";
  return at >= midnight - 7 * day ? "Last seven days" : "Earlier";
}
