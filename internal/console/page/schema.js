// @ts-check
// A tool's input schema as a person reads it: its parameters. It comes from a server and
// may be anything; what is not understood stands in the JSON below.
import { element, valueBlock } from "./element.js";

const mostParameters = 60;

/**
 * @param {string} tool
 * @param {any} schema
 * @returns {HTMLElement[]}
 */
export function schemaView(tool, schema) {
  const required = new Set(Array.isArray(schema?.required) ? schema.required : []);
  const properties = Object.entries(schema?.properties ?? {}).slice(0, mostParameters);
  const list = properties.length === 0
    ? element("p", { class: "small" }, "It takes no parameters.")
    : element("dl", { class: "parameters" }, ...properties.map(([name, s]) => parameter(name, s ?? {}, required.has(name))));
  const json = element("details", {}, element("summary", { class: "small" }, "JSON Schema"), valueBlock(`Input schema of ${tool}`, schema));
  return [list, json];
}

/**
 * @param {string} name
 * @param {any} s schema of the parameter
 * @param {boolean} required
 */
function parameter(name, s, required) {
  const about = [s.description, Array.isArray(s.enum) ? `One of ${list(s.enum)}.` : "", s.default !== undefined ? `Default: ${list([s.default])}.` : ""];
  return element("div", {},
    element("dt", {}, element("code", {}, name), " ", element("span", { class: "small" }, typeOf(s)), ...(required ? [" ", element("span", { class: "badge" }, "required")] : [])),
    ...about.filter(Boolean).map((text) => element("dd", { class: "small" }, String(text))),
  );
}

/** @param {any} s */
function typeOf(s) {
  const type = Array.isArray(s.type) ? s.type.join(" or ") : String(s.type ?? "any");
  return type === "array" && typeof s.items?.type === "string" ? `array of ${s.items.type}` : type;
}

/** @param {unknown[]} values */
function list(values) {
  return values.slice(0, 20).map((v) => JSON.stringify(v)).join(", ").slice(0, 300);
}
