// @ts-check
// The Markdown inside a line: code, bold, emphasis, links. The text is hostile, so
// what is not understood stays text, and every search looks only so far ahead: a
// megabyte of asterisks must not stop the page.
import { element } from "./element.js";

const longestSpan = 2_000; // characters
const longestText = 20_000; // characters; a longer paragraph is shown without spans
const deepest = 4; // levels of bold in links in bold …
const special = /[\\`*_[]|https?:\/\//g;

/** @typedef {{node: Node, end: number}} Span end is where the text goes on */

/**
 * @param {string} text
 * @param {number} [depth]
 * @returns {Node[]}
 */
export function inline(text, depth = 0) {
  /** @type {Node[]} */
  const nodes = [];
  let plain = 0; // where the text that is not yet in nodes begins
  special.lastIndex = 0;
  for (let m = special.exec(text); m; m = special.exec(text)) {
    const resume = special.lastIndex;
    const span = depth < deepest && text.length <= longestText ? spanAt(text, m.index, depth) : null;
    special.lastIndex = span ? span.end : resume;
    if (!span) continue;
    if (m.index > plain) nodes.push(document.createTextNode(text.slice(plain, m.index)));
    nodes.push(span.node);
    plain = span.end;
  }
  if (plain < text.length) nodes.push(document.createTextNode(text.slice(plain)));
  return nodes;
}

/**
 * @param {string} text
 * @param {number} at
 * @param {number} depth
 * @returns {Span | null}
 */
function spanAt(text, at, depth) {
  switch (text[at]) {
    case "\\":
      return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") ? { node: document.createTextNode(text[at + 1]), end: at + 2 } : null;
    case "`":
      return code(text, at);
    case "[":
      return link(text, at, depth);
    case "h":
      return bareLink(text, at);
    default:
      return strong(text, at, depth);
  }
}

/** A run of backticks up to the next run of the same length.
 * @param {string} text
 * @param {number} at
 * @returns {Span | null}
 */
function code(text, at) {
  const ticks = /^`+/.exec(text.slice(at, at + 16))?.[0] ?? "`";
  const rest = text.slice(at + ticks.length, at + longestSpan);
  for (let i = rest.indexOf(ticks); i >= 0; i = rest.indexOf(ticks, i)) {
    const run = /^`+/.exec(rest.slice(i))?.[0].length ?? 0;
    if (run === ticks.length) {
      const inner = rest.slice(0, i).replace(/^ (.*\S.*) $/, "$1");
      return inner ? { node: element("code", {}, inner), end: at + 2 * ticks.length + i } : null;
    }
    i += run;
  }
  return null;
}

/** Bold or emphasis. Underscores count only around words, so snake_case is safe.
 * @param {string} text
 * @param {number} at
 * @param {number} depth
 * @returns {Span | null}
 */
function strong(text, at, depth) {
  const mark = text[at + 1] === text[at] ? text[at].repeat(2) : text[at];
  const from = at + mark.length;
  if (/^\s?$/.test(text[from] ?? "")) return null;
  if (mark[0] === "_" && /\w/.test(text[at - 1] ?? "")) return null;
  const rest = text.slice(from, from + longestSpan);
  for (let i = rest.indexOf(mark, 1); i > 0; i = rest.indexOf(mark, i + 1)) {
    const after = rest[i + mark.length] ?? "";
    const closes = !/\s/.test(rest[i - 1]) && !(mark[0] === "_" && /\w/.test(after));
    // The end of a run of marks closes, so that ***both*** is bold around emphasis. A single mark is not half of a double one.
    if (!closes || after === mark[0] || (mark.length === 1 && rest[i - 1] === mark)) continue;
    const tag = mark.length === 2 ? "strong" : "em";
    return { node: element(tag, {}, ...inline(rest.slice(0, i), depth + 1)), end: from + i + mark.length };
  }
  return null;
}

/** [text](address)
 * @param {string} text
 * @param {number} at
 * @param {number} depth
 * @returns {Span | null}
 */
function link(text, at, depth) {
  const m = /^\[([^[\]\n]{1,500})\]\((<?)(https?:[^\s<>]{1,1500})/i.exec(text.slice(at, at + longestSpan));
  if (!m) return null;
  const address = m[2] ? m[3] : balanced(m[3]);
  const close = m[2] ? ">)" : ")";
  const end = at + m[0].length - m[3].length + address.length;
  const href = safe(address);
  if (!href || !text.startsWith(close, end)) return null;
  return { node: anchor(href, withoutLinks(m[1], depth)), end: end + close.length };
}

/** The text up to the first parenthesis that closes one before it: an address may have pairs of them.
 * @param {string} text
 */
function balanced(text) {
  let open = 0;
  for (let i = 0; i < text.length; i++) {
    if (text[i] === "(") open++;
    else if (text[i] === ")" && --open < 0) return text.slice(0, i);
  }
  return text;
}

/** The text of a link may be bold or code, but holds no other link.
 * @param {string} text
 * @param {number} depth
 */
function withoutLinks(text, depth) {
  return /https?:\/\//.test(text) ? [document.createTextNode(text)] : inline(text, depth + 1);
}

/** An address that stands in the text as it is. What ends a sentence is not part of it.
 * @param {string} text
 * @param {number} at
 * @returns {Span | null}
 */
function bareLink(text, at) {
  if (/\w/.test(text[at - 1] ?? "")) return null;
  let found = /^https?:\/\/[^\s<>"`*]+/.exec(text.slice(at, at + longestSpan))?.[0] ?? "";
  let unopened = found.split(")").length - found.split("(").length;
  for (let before = ""; before !== found; ) {
    before = found;
    found = found.replace(/[.,;:!?'_\]}]+$/, "");
    if (found.endsWith(")") && unopened-- > 0) found = found.slice(0, -1);
  }
  const href = safe(found);
  return href ? { node: anchor(href, [document.createTextNode(found)]), end: at + found.length } : null;
}

/**
 * The address as the browser understands it, "" unless that is plain http or https.
 *
 * @param {string} address
 */
function safe(address) {
  if (!URL.canParse(address)) return "";
  const url = new URL(address);
  return (url.protocol === "https:" || url.protocol === "http:") && !url.username && !url.password ? url.href : "";
}

/**
 * @param {string} href
 * @param {Node[]} children
 */
function anchor(href, children) {
  return element("a", { href, title: href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}
