// @ts-check
// Tables as models write them: GitHub's, with a line of dashes under the head.
import { element } from "./element.js";
import { inline } from "./inline.js";

const mostColumns = 40;
const mostRows = 1_000; // the rest is left out, and the table says so
const longestLine = 4_000; // characters

/** Whether a table begins here: a head, and dashes for as many columns.
 * @param {string[]} lines
 * @param {number} at
 */
export function beginsTable(lines, at) {
  const [head, dashes] = [lines[at], lines[at + 1] ?? ""];
  if (!head.includes("|") || !dashes.includes("-") || head.length > longestLine || dashes.length > longestLine) return false;
  const marks = cells(dashes);
  return marks.length === cells(head).length && marks.length <= mostColumns && marks.every((mark) => /^:?-+:?$/.test(mark));
}

/** The line after the table that begins here. @param {string[]} lines @param {number} at */
export function tableEnd(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim() !== "") end++;
  return end;
}

/** @param {string} source */
export function renderTable(source) {
  const lines = source.split("\n");
  const sides = cells(lines[1]).map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : ""));
  const head = cells(lines[0]).map((text, i) => element("th", { scope: "col", ...side(sides[i]) }, ...inline(text)));
  const rows = lines.slice(2, 2 + mostRows).map((line) => {
    const texts = line.length > longestLine ? [line] : cells(line);
    return element("tr", {}, ...sides.map((s, i) => element("td", side(s), ...inline(texts[i] ?? ""))));
  });
  const rest = lines.length - 2 - rows.length;
  if (rest > 0) rows.push(element("tr", {}, element("td", { colspan: sides.length }, `… ${rest} more rows`)));
  return element("div", { class: "table", tabindex: 0, role: "group", "aria-label": "Table" },
    element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)));
}

/** @param {string} name @returns {Record<string, string>} */
function side(name) {
  return name ? { class: name } : {};
}

/** @param {string} line */
function cells(line) {
  return line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}
