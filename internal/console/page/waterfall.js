// @ts-check
// Draws a timeline: all of it in one strip, and one row for each call.
import { element } from "./element.js";
import { duration } from "./time.js";

/** @typedef {import("./timeline.js").Timeline} Timeline */
/** @typedef {import("./timeline.js").Span} Span */

const kinds = /** @type {const} */ ({ model: "Model", tool: "Tools", wait: "Waiting for you" });

/**
 * All of a run in one thin bar. What it says is said in words beside it.
 *
 * @param {Timeline} timeline
 */
export function strip(timeline) {
  // Tools stand over models, and waiting over both: that is what the run stood still for.
  const spans = timeline.rows.flatMap((r) => r.spans).sort((a, b) => order[a.kind] - order[b.kind]);
  return element("span", { class: "strip", "aria-hidden": "true" }, ...spans.map((s) => bar(s, timeline.length)));
}

const order = { model: 0, tool: 1, wait: 2 };

/** @param {Timeline} timeline */
export function waterfall(timeline) {
  const rows = timeline.rows.map(({ name, spans, failed }) => {
    const [first, last] = [spans[0], spans[spans.length - 1]];
    const took = end(last, timeline.length) - first.from;
    return element("li", { class: "fall-row", ...(failed && { "data-failed": "true" }) },
      element("span", { class: "fall-name", title: name }, name),
      element("span", { class: "fall-track", "aria-hidden": "true" }, ...spans.map((s) => bar(s, timeline.length))),
      element("span", { class: "fall-time" }, duration(took), element("span", { class: "unseen" }, `, from ${duration(first.from)} on${failed ? ", failed" : ""}`)),
    );
  });
  const sums = timeline.sums();
  const legend = Object.entries(kinds).flatMap(([kind, name]) => {
    const sum = sums[/** @type {keyof typeof kinds} */ (kind)];
    return sum > 0 ? [element("li", {}, element("span", { class: "swatch", "data-kind": kind, "aria-hidden": "true" }), `${name} ${duration(sum)}`)] : [];
  });
  const axis = element("p", { class: "fall-axis", "aria-hidden": "true" }, ...[0, 1 / 2, 1].map((part) => element("span", {}, duration(part * timeline.length))));
  return element("div", { class: "fall" }, element("ul", { class: "legend", "aria-label": "Time of each kind of step" }, ...legend), element("ol", { class: "fall-rows", "aria-label": "Timeline" }, ...rows), axis);
}

/**
 * @param {Span} span
 * @param {number} length ms of the run
 */
function bar(span, length) {
  const node = element("span", { class: "span", "data-kind": span.kind });
  const total = Math.max(length, 1);
  // By the object model: the policy forbids the attribute.
  node.style.setProperty("--from", `${((span.from / total) * 100).toFixed(3)}%`);
  node.style.setProperty("--width", `${(((end(span, length) - span.from) / total) * 100).toFixed(3)}%`);
  return node;
}

/**
 * @param {Span} span
 * @param {number} length
 */
function end(span, length) {
  return Number.isNaN(span.to) ? length : span.to;
}
