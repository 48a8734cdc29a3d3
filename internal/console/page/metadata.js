// @ts-check
// What stands under an answer: what it took, where the time went, and its trace.
import { copyButton } from "./copy.js";
import { downloadButton } from "./download.js";
import { element } from "./element.js";
import { duration } from "./time.js";
import { strip, waterfall } from "./waterfall.js";

/** @typedef {import("./timeline.js").Timeline} Timeline */

/**
 * @param {any} metadata of the final answer; null where a run ended without one
 * @param {Timeline} timeline
 * @param {string} traceID "" or zeros where nothing is traced
 * @param {() => string} answer
 * @param {string} runID
 * @param {() => Promise<Blob>} exported loads the run as one document
 */
export function aboutRun(metadata, timeline, traceID, answer, runID, exported) {
  const tokens = metadata?.usage?.total_tokens ?? 0;
  const calls = timeline.rows.filter((r) => r.kind === "tool").length;
  const brief = [metadata?.model, duration(timeline.length), calls > 0 && counted(calls, "tool call"), tokens > 0 && `${number(tokens)} tokens`, cost(metadata?.cost)];
  const line = element("ul", { class: "metadata" }, ...brief.filter(Boolean).map((text) => element("li", {}, String(text))));
  const summary = element("summary", { class: "about-summary" }, line, strip(timeline), element("span", { class: "unseen" }, ", timeline and details"));
  const root = element("div", { class: "about" }, element("details", { class: "about-run" }, summary, waterfall(timeline), details(metadata, traceID, runID, exported)));
  if (answer() !== "") root.prepend(copyButton("Copy", "the answer", answer));
  return root;
}

/**
 * @param {any} metadata
 * @param {string} traceID
 * @param {string} runID
 * @param {() => Promise<Blob>} exported
 */
function details(metadata, traceID, runID, exported) {
  const list = element("dl", { class: "facts" });
  /** @param {string} name @param {...(Node | string)} value */
  const add = (name, ...value) => list.append(element("div", {}, element("dt", {}, name), element("dd", {}, ...value)));
  if (metadata) {
    add("Model", metadata.model || "unknown");
    add("Steps", String(metadata.steps));
    add("Finish", metadata.finish_reason);
    const { input_tokens: input, output_tokens: output, total_tokens: total } = metadata.usage ?? {};
    if (total > 0) add("Tokens", `${number(input)} in, ${number(output)} out`);
    if (cost(metadata.cost)) add("Cost", cost(metadata.cost).replace("cost ", ""));
  }
  if (traceID && !/^0+$/.test(traceID)) add("Trace", ...trace(traceID));
  add("Export", downloadButton("Download", "the export of this run", `${runID}.json`, exported));
  return list;
}

/** @param {string} id */
function trace(id) {
  const shown = element("code", {}, id);
  const link = traceLink(id);
  return [shown, " ", copyButton("Copy", "the trace id", () => id, shown), ...(link ? [" ", link] : [])];
}

/** The operator says where traces are (TRACE_URL). What is no web address is no link.
 * @param {string} id
 */
function traceLink(id) {
  const template = document.querySelector('meta[name="trace-url"]')?.getAttribute("content") ?? "";
  const address = template.replaceAll("{trace_id}", encodeURIComponent(id));
  if (!/^https?:/i.test(address) || !URL.canParse(address)) return null;
  return element("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, "Open the trace");
}

/**
 * Money in whatever currency the operator counts; nobody says which.
 *
 * @param {unknown} value
 */
function cost(value) {
  if (typeof value !== "number") return "";
  return `cost ${value.toLocaleString(undefined, { maximumSignificantDigits: 3, maximumFractionDigits: 9 })}`;
}

/** @param {number} n */
function number(n) {
  return n.toLocaleString();
}

/**
 * @param {number} n
 * @param {string} noun
 */
function counted(n, noun) {
  return `${n} ${noun}${n === 1 ? "" : "s"}`;
}
