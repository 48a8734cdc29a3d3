// @ts-check
// What a tool answered: its payload, its pictures, and the way to the whole of it.
import { Problem } from "./client.js";
import { element, valueBlock } from "./element.js";

/** What the events of a call and the whole result have in common.
 * @typedef {{payload: unknown, content?: any[], truncated?: {bytes: number, url?: string}}} Result
 */

/** Types of pictures that browsers show and that cannot carry scripts or references. */
const pictures = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

const wholeLength = 5_000_000; // characters; what is kept has some four million bytes

/**
 * @param {string} label what it is, for those who cannot see where it stands
 * @param {Result} result
 * @param {(path: string) => Promise<Result>} load reads the whole result
 * @returns {HTMLElement}
 */
export function resultView(label, result, load) {
  const root = element("div", { class: "result" });
  root.replaceChildren(...shown(label, result));
  const { truncated } = result;
  if (truncated) {
    const note = element("p", { class: "small" }, `Only a part of ${size(truncated.bytes)} is shown. `);
    if (truncated.url) note.append(wholeButton(truncated.url, async (path) => root.replaceChildren(...shown(label, await load(path), wholeLength))));
    root.append(note);
  }
  return root;
}

/**
 * @param {string} path as the service writes it, absolute
 * @param {(path: string) => Promise<void>} show replaces this button by what path has
 * @returns {Node}
 */
function wholeButton(path, show) {
  const button = element("button", { type: "button", class: "link" }, "Show all of it");
  const failure = element("span", { role: "alert" });
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      // Relative, as all paths of this page, and never another host's.
      await show(path.replace(/^\/+/, ""));
    } catch (error) {
      button.disabled = false;
      failure.textContent = error instanceof Problem ? ` ${error.message}` : " It could not be loaded.";
    }
  });
  const line = document.createDocumentFragment();
  line.append(button, failure);
  return line;
}

/**
 * The payload as text, without the data of the pictures that stand below it.
 *
 * @param {string} label
 * @param {Result} result
 * @param {number} [length] characters of it
 * @returns {HTMLElement[]}
 */
function shown(label, result, length) {
  const blocks = Array.isArray(result.content) ? result.content : [];
  const images = blocks.map(picture).filter((p) => p !== null);
  if (images.length === 0) return [valueBlock(label, result.payload, length)];
  const rest = images.length === blocks.length ? [] : [valueBlock(label, Array.isArray(result.payload) ? result.payload.map(withoutData) : result.payload, length)];
  return [...rest, ...images.map((image, i) => {
    image.alt = `${label}, image ${i + 1}`;
    return image;
  })];
}

/**
 * @param {any} block of MCP content
 * @returns {HTMLImageElement | null}
 */
function picture(block) {
  const [type, data] = block?.type === "resource" ? [block.resource?.mimeType, block.resource?.blob] : [block?.mimeType, block?.data];
  if ((block?.type !== "image" && block?.type !== "resource") || !pictures.has(type) || typeof data !== "string" || !/^[A-Za-z0-9+/\s]+={0,2}\s*$/.test(data)) return null;
  return element("img", { src: `data:${type};base64,${data.replace(/\s/g, "")}`, class: "picture" });
}

/** @param {any} block */
function withoutData(block) {
  if (!picture(block)) return block;
  return block.type === "resource" ? { ...block, resource: { ...block.resource, blob: "shown below" } } : { ...block, data: "shown below" };
}

/**
 * @param {number} bytes
 * @returns {string} for people
 */
function size(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  if (bytes < 1_000_000) return `${Math.round(bytes / 1000)} kB`;
  return `${(bytes / 1_000_000).toFixed(1)} MB`;
}
