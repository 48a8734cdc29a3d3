// @ts-check
// The fields of a form that an MCP server asks to have filled in: a flat JSON Schema of
// texts, numbers, yes and no, and choices (MCP 2025-11-25, client/elicitation). The
// service judges what is written; here is only what makes writing it easy.
import { element, visible } from "./element.js";
import { integer, isInteger } from "./json.js";

/** @typedef {{root: HTMLElement, entry: () => [string, unknown][]}} Field entry is empty where nothing was filled in */

const inputTypes = { email: "email", uri: "url", date: "date" };

/**
 * @param {any} schema
 * @returns {Field[]}
 */
export function fieldsOf(schema) {
  const required = new Set(schema?.required ?? []);
  return Object.entries(schema?.properties ?? {}).map(([name, s]) => field(name, s ?? {}, required.has(name)));
}

/**
 * @param {string} name
 * @param {any} s schema of the field
 * @param {boolean} required
 * @returns {Field}
 */
function field(name, s, required) {
  if (s.type === "boolean") return yesNo(name, s);
  const some = s.type === "array" ? choices(s.items ?? {}) : null;
  if (some) return severalOf(name, s, some, required);
  const one = choices(s);
  const control = one ? select(one, s, required) : input(s, required);
  const number = s.type === "number" || s.type === "integer";
  return {
    root: element("label", { class: "field" }, element("span", {}, visible(s.title ?? name), required ? "" : " (optional)"), control, ...about(s)),
    entry: () => (control.value === "" && !(required && s.type === "string") ? [] : [[name, number ? integer(control.value) ?? Number(control.value) : control.value]]),
  };
}

/**
 * @param {string} name
 * @param {any} s
 * @returns {Field}
 */
function yesNo(name, s) {
  const box = element("input", { type: "checkbox", checked: s.default === true });
  return {
    root: element("label", { class: "field choice" }, box, element("span", {}, visible(s.title ?? name)), ...about(s)),
    entry: () => [[name, box.checked]],
  };
}

/**
 * @param {string} name
 * @param {any} s
 * @param {[string, string][]} options
 * @param {boolean} required
 * @returns {Field}
 */
function severalOf(name, s, options, required) {
  const chosen = new Set(Array.isArray(s.default) ? s.default : []);
  const boxes = options.map(([value]) => element("input", { type: "checkbox", value, checked: chosen.has(value) }));
  const labels = options.map(([, title], i) => element("label", { class: "choice" }, boxes[i], element("span", {}, visible(title))));
  return {
    root: element("fieldset", { class: "field" }, element("legend", {}, visible(s.title ?? name)), ...about(s), ...labels),
    entry: () => {
      const values = boxes.filter((b) => b.checked).map((b) => b.value);
      // Left out only where an empty list would be refused: a server may put its default in place of what is left out.
      return values.length === 0 && !required && s.minItems > 0 ? [] : [[name, values]];
    },
  };
}

/**
 * The values to choose from, with what they are called; null if it is no choice.
 *
 * @param {any} s
 * @returns {[string, string][] | null}
 */
function choices(s) {
  const titled = s.oneOf ?? s.anyOf;
  if (Array.isArray(titled)) return titled.map((o) => [String(o?.const), String(o?.title ?? o?.const)]);
  if (Array.isArray(s.enum)) return s.enum.map((/** @type {unknown} */ v, /** @type {number} */ i) => [String(v), String(s.enumNames?.[i] ?? v)]);
  return null;
}

/**
 * @param {[string, string][]} options
 * @param {any} s
 * @param {boolean} required
 */
function select(options, s, required) {
  const nothing = element("option", { value: "" }, required ? "Choose" : "None");
  const control = element("select", { required }, nothing, ...options.map(([value, title]) => element("option", { value }, visible(title))));
  control.value = options.some(([value]) => value === s.default) ? s.default : "";
  return control;
}

/**
 * @param {any} s
 * @param {boolean} required
 */
function input(s, required) {
  const number = s.type === "number" || s.type === "integer";
  /** @type {Record<string, string | number | boolean>} */
  const attributes = { type: number ? "number" : inputTypes[/** @type {keyof typeof inputTypes} */ (s.format)] ?? "text", required };
  if (number) attributes.step = s.type === "integer" ? 1 : "any";
  for (const [from, to] of [["minimum", "min"], ["maximum", "max"], ["maxLength", "maxlength"]]) {
    if (typeof s[from] === "number") attributes[to] = s[from];
  }
  if (s.format === "date-time") attributes.placeholder = "2026-11-21T10:15:00Z";
  const control = element("input", attributes);
  if (s.default !== undefined) control.value = isInteger(s.default) ? JSON.stringify(s.default) : String(s.default);
  return control;
}

/** @param {any} s */
function about(s) {
  return s.description ? [element("span", { class: "small" }, visible(s.description))] : [];
}
