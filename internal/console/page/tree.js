// @ts-check
// A JSON value as a tree that opens and closes by mouse and keyboard.
import { element } from "./element.js";
import { isInteger } from "./json.js";

const mostNodes = 2000; // a value may have millions
const openLevels = 2;

/**
 * @param {string} label what it is, for those who cannot see where it stands
 * @param {unknown} value
 */
export function tree(label, value) {
  const left = { nodes: mostNodes };
  const root = element("div", { class: "tree", role: "group", "aria-label": label });
  root.append(node("", value, 0, left));
  if (left.nodes <= 0) root.append(element("p", { class: "small" }, "Only a part of the value is shown."));
  return root;
}

/**
 * @param {string} name of the member, "" for the value itself
 * @param {unknown} value
 * @param {number} level
 * @param {{nodes: number}} left
 * @returns {Node}
 */
function node(name, value, level, left) {
  left.nodes--;
  const key = name === "" ? [] : [element("span", { class: "tree-key" }, name), ": "];
  if (typeof value !== "object" || value === null || isInteger(value)) return element("div", { class: "tree-leaf" }, ...key, element("span", { class: "tree-value" }, JSON.stringify(value) ?? ""));
  const members = Object.entries(value);
  const size = Array.isArray(value) ? `[${members.length}]` : `{${members.length}}`;
  const list = element("div", { class: "tree-members" });
  for (const [member, child] of members) {
    if (left.nodes <= 0) break;
    list.append(node(member, child, level + 1, left));
  }
  return element("details", { open: level < openLevels }, element("summary", {}, ...key, element("span", { class: "small" }, size)), list);
}
