// @ts-check
// The small part of Markdown that models write all the time: paragraphs, headings,
// lists, code, tables, quotes. Everything else stays the text that it is.
import { copyButton } from "./copy.js";
import { element } from "./element.js";
import { inline } from "./inline.js";
import { beginsTable, renderTable, tableEnd } from "./table.js";

/** @typedef {{kind: "paragraph" | "heading" | "code" | "list" | "table" | "quote" | "rule", source: string}} Block */

const fence = /^\s{0,3}(`{3,}|~{3,})\s*(\S*)/;
const heading = /^ {0,3}#{1,6}\s+/;
const item = /^( {0,3})([-*+]|\d{1,9}[.)])\s+(?=\S)/;
const quote = /^ {0,3}> ?/;
const rule = /^(?=.{3,100}$) {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const nested = /^\s{2,}/; // a line that belongs to the item above it
const deepest = 5; // lists in lists and quotes in quotes; what lies deeper is shown as text

/** Shows a text that grows. */
export class MarkdownView {
  /** @type {Block[]} */
  #blocks = [];

  /** @param {HTMLElement} root is the view's own */
  constructor(root) {
    this.root = root;
  }

  /**
   * Shows text. Blocks that did not change keep their nodes: a selection stays where
   * it is, and a screen reader is told what is new and not everything again.
   *
   * @param {string} text
   */
  show(text) {
    const blocks = split(text);
    let same = 0;
    while (same < blocks.length && blocks[same].source === this.#blocks[same]?.source && blocks[same].kind === this.#blocks[same].kind) same++;
    while (this.root.childNodes.length > same) this.root.lastChild?.remove();
    this.root.append(...blocks.slice(same).map((b) => render(b, 0)));
    this.#blocks = blocks;
  }
}

/**
 * Cuts text into blocks, each with its own lines as they stand.
 *
 * @param {string} text
 * @returns {Block[]}
 */
export function split(text) {
  /** @type {Block[]} */
  const blocks = [];
  const lines = text.split(/\r\n|\n|\r/);
  for (let i = 0; i < lines.length; ) {
    if (lines[i].trim() === "") {
      i++;
      continue;
    }
    const [kind, end] = extent(lines, i);
    blocks.push({ kind, source: lines.slice(i, end).join("\n") });
    i = end;
  }
  return blocks;
}

/**
 * What begins at a line, and the line after its end.
 *
 * @param {string[]} lines
 * @param {number} at
 * @returns {[Block["kind"], number]}
 */
function extent(lines, at) {
  const open = fence.exec(lines[at]);
  if (open) return ["code", fenceEnd(lines, at, open[1])];
  if (heading.test(lines[at])) return ["heading", at + 1];
  if (rule.test(lines[at])) return ["rule", at + 1];
  if (item.test(lines[at])) return ["list", listEnd(lines, at)];
  if (quote.test(lines[at])) return ["quote", quoteEnd(lines, at)];
  if (beginsTable(lines, at)) return ["table", tableEnd(lines, at)];
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !beginsBlock(lines[end]) && !beginsTable(lines, end)) end++;
  return ["paragraph", end];
}

/** A list interrupts a paragraph too, which is how models write them.
 * @param {string} line
 */
function beginsBlock(line) {
  return fence.test(line) || heading.test(line) || item.test(line) || quote.test(line) || rule.test(line);
}

/** @param {string[]} lines @param {number} at */
function quoteEnd(lines, at) {
  let end = at + 1;
  while (end < lines.length && quote.test(lines[end])) end++;
  return end;
}

/** A fence that is not closed yet goes on to the end, as the text is still coming.
 * @param {string[]} lines
 * @param {number} at
 * @param {string} mark
 */
function fenceEnd(lines, at, mark) {
  for (let i = at + 1; i < lines.length; i++) {
    const line = lines[i].trim();
    if (line.startsWith(mark) && line === mark[0].repeat(line.length)) return i + 1;
  }
  return lines.length;
}

/** Items, the lines that belong to them, and single blank lines between.
 * @param {string[]} lines
 * @param {number} at
 */
function listEnd(lines, at) {
  const numbered = /\d/.test(item.exec(lines[at])?.[2] ?? "");
  let end = at;
  for (let i = at; i < lines.length; i++) {
    const line = lines[i];
    const marker = item.exec(line)?.[2];
    if (line.trim() === "") {
      if (lines[i + 1]?.trim() === "") break;
      continue;
    }
    if (i > at && !nested.test(line)) {
      if (marker ? /\d/.test(marker) !== numbered : lines[i - 1].trim() === "" || beginsBlock(line)) break;
    }
    end = i + 1;
  }
  return end;
}

/**
 * @param {Block} block
 * @param {number} depth
 * @returns {HTMLElement}
 */
function render(block, depth) {
  switch (block.kind) {
    case "code":
      return renderCode(block.source);
    case "heading":
      // One level for all: what a model calls a title must not upset the page's own.
      return element("h3", {}, ...inline(block.source.replace(heading, "").trimEnd().replace(/ #+$/, "")));
    case "list":
      return renderList(block.source, depth);
    case "table":
      return renderTable(block.source);
    case "rule":
      return element("hr");
    case "quote":
      return renderQuote(block.source, depth);
    default:
      return element("p", {}, ...inline(block.source));
  }
}

/** @param {string} source */
function renderCode(source) {
  const lines = source.split("\n");
  const [, mark, language] = fence.exec(lines[0]) ?? ["", "```", ""];
  const last = lines[lines.length - 1].trim();
  const closed = lines.length > 1 && last.startsWith(mark) && last === mark[0].repeat(last.length);
  const code = lines.slice(1, closed ? -1 : undefined).join("\n");
  const label = language ? `Code, ${language}` : "Code";
  return element("div", { class: "code" },
    element("div", { class: "code-head" }, element("span", {}, language), copyButton("Copy", "the code", () => code)),
    element("pre", { tabindex: 0, role: "group", "aria-label": label }, element("code", {}, code)));
}

/**
 * @param {string} source
 * @param {number} depth
 */
function renderQuote(source, depth) {
  const inner = source.split("\n").map((line) => line.replace(quote, "")).join("\n");
  const nodes = depth < deepest ? split(inner).map((b) => render(b, depth + 1)) : [element("p", {}, ...inline(inner))];
  return element("blockquote", {}, ...nodes);
}

/**
 * @param {string} source
 * @param {number} depth
 */
function renderList(source, depth) {
  /** @type {{text: string[], indent: number}[]} */
  const items = [];
  for (const line of source.split("\n")) {
    const m = item.exec(line);
    const indent = items.at(-1)?.indent ?? 0;
    if (m && (items.length === 0 || !nested.test(line))) {
      items.push({ text: [line.slice(m[0].length)], indent: m[0].length });
    } else {
      items.at(-1)?.text.push(line.replace(new RegExp(`^\\s{0,${indent}}`), ""));
    }
  }
  const number = /^\s*(\d+)/.exec(source)?.[1];
  const list = number === undefined ? element("ul") : element("ol", Number(number) === 1 ? {} : { start: number });
  list.append(...items.map((i) => element("li", {}, ...renderItem(i.text.join("\n"), depth))));
  return list;
}

/** An item of one paragraph is just its text; a longer one has blocks of its own.
 * @param {string} text
 * @param {number} depth
 * @returns {Node[]}
 */
function renderItem(text, depth) {
  const blocks = depth < deepest ? split(text) : [];
  if (blocks.length === 0) return inline(text);
  const nodes = blocks.map((b) => (b.kind === "paragraph" ? inline(b.source) : [render(b, depth + 1)]));
  const paragraphs = blocks.filter((b) => b.kind === "paragraph").length;
  if (paragraphs <= 1) return nodes.flat();
  return blocks.map((b) => render(b, depth + 1));
}
