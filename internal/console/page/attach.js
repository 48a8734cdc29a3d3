// @ts-check
// The files of the next question: chosen with a button, pasted or dropped.
import { element } from "./element.js";

/** A file as the service takes it; data is base64.
 * @typedef {{name: string, media_type: string, data: string}} Attachment
 */

const mostFiles = 16; // the service accepts no more
const mostBytes = 700_000; // of all files: the service accepts 1 MiB by default, and base64 takes a third more

/** The files beside the field of the question. */
export class Attachments {
  /** @type {Attachment[]} */
  #files = [];
  #list;
  #announce;

  /**
   * @param {HTMLElement} list shows the files
   * @param {HTMLInputElement} input chooses files
   * @param {HTMLElement} target takes files that are pasted or dropped
   * @param {(text: string) => void} announce
   */
  constructor(list, input, target, announce) {
    this.#list = list;
    this.#announce = announce;
    input.addEventListener("change", () => {
      void this.add(input.files);
      input.value = ""; // so that the same file can be chosen again
    });
    target.addEventListener("paste", (event) => {
      const { files, types } = event.clipboardData ?? {};
      if (!files?.length) return;
      // Office programs add a picture of the text. Copied files have at most their name as text, and pictures have HTML alone.
      if (types?.includes("text/plain") && types.includes("text/html")) return;
      event.preventDefault();
      void this.add(files);
    });
    target.addEventListener("dragover", (event) => {
      if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
    });
    target.addEventListener("drop", (event) => {
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      void this.add(event.dataTransfer.files);
    });
  }

  /** @param {Iterable<File> | ArrayLike<File> | null} files */
  async add(files) {
    let unreadable = "";
    for (const file of Array.from(files ?? [])) {
      const used = this.#files.reduce((n, f) => n + (f.data.length / 4) * 3, 0);
      if (this.#files.length >= mostFiles || used + file.size > mostBytes) {
        this.#announce(`${file.name} is too large to be attached`);
        this.#draw(`${file.name} was not attached: at most ${mostFiles} files and ${mostBytes / 1000} kB can be sent.`);
        return;
      }
      const bytes = await file.arrayBuffer().catch(() => null); // a folder that was dropped, or a file that is gone
      if (!bytes) {
        unreadable = `${file.name} was not attached: it cannot be read.`;
        this.#announce(unreadable);
        continue;
      }
      this.#files.push({ name: file.name, media_type: file.type || "text/plain", data: base64(new Uint8Array(bytes)) });
      this.#announce(`${file.name} is attached`);
    }
    this.#draw(unreadable);
  }

  /** Returns the files and removes them from the list. */
  take() {
    const files = this.#files;
    this.#files = [];
    this.#draw("");
    return files;
  }

  /** Puts files that take returned back on the list, before those that were added meanwhile. @param {Attachment[]} files */
  putBack(files) {
    this.#files.unshift(...files);
    this.#draw("");
  }

  /** @param {string} problem */
  #draw(problem) {
    const items = this.#files.map((file) => {
      const remove = element("button", { type: "button", "aria-label": `Remove ${file.name}` }, "×");
      remove.addEventListener("click", () => {
        this.#files = this.#files.filter((f) => f !== file);
        this.#draw("");
        this.#announce(`${file.name} is removed`);
      });
      return element("li", {}, element("span", {}, file.name), remove);
    });
    if (problem) items.push(element("li", { class: "problem" }, problem));
    this.#list.replaceChildren(...items);
    this.#list.hidden = items.length === 0;
  }
}

/** @param {Uint8Array} bytes */
function base64(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += 0x8000) text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
  return btoa(text);
}
