// @ts-check
// Making nodes. Text goes in as text: no string that arrives here is ever markup.

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, string | number | boolean>} [attributes] `true` is an empty
 *   attribute, `false` none
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false) node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children);
  return node;
}

/**
 * Text in which characters that cannot be seen, or that turn others around, are spelt
 * out: what is agreed to must be what is shown.
 *
 * @param {string} text
 */
export function visible(text) {
  return String(text).replace(/[\p{Cf}\p{Co}\p{Zl}\p{Zp}]|(?!\n)\p{Cc}/gu, (c) => `\\u{${c.codePointAt(0)?.toString(16)}}`);
}

/** The most characters of one value that are shown: a page of megabytes helps nobody. */
const shownLength = 20_000;

/**
 * A block of JSON or plain text that scrolls by itself, by keyboard too.
 *
 * @param {string} label what it is, for those who cannot see where it stands
 * @param {unknown} value a string is shown as it is
 * @param {number} [length] how many characters of it
 * @returns {HTMLPreElement}
 */
export function valueBlock(label, value, length = shownLength) {
  const text = typeof value === "string" ? value : pretty(value);
  const rest = text.length - length;
  const shown = rest > 0 ? `${text.slice(0, length)}\n… ${rest} more characters` : text;
  return element("pre", { class: "value", tabindex: 0, role: "group", "aria-label": label }, shown);
}

const oneLine = 64; // characters

/**
 * Indented JSON, or one line of it where that is as easy to read.
 *
 * @param {unknown} value
 */
export function pretty(value) {
  const text = JSON.stringify(value, null, 2) ?? "";
  // JSON escapes the line feeds of strings, so those that are here are layout.
  const line = text.replace(/\n */g, " ");
  return line.length <= oneLine ? line : text;
}

/**
 * Reports whether a key belongs to an input method, which composes a word. Safari ends the composition before it sends
 * the key that ended it. That key then has the code 229, which UI Events gives to all keys that an input method handles.
 *
 * @param {KeyboardEvent} event
 */
export function composes(event) {
  return event.isComposing || event.keyCode === 229;
}
