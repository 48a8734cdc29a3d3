// @ts-check
// The line under an answer: what it took.
import { duration } from "./call.js";
import { element } from "./element.js";

/**
 * @param {import("./run.js").RunEvent} event final_answer
 * @param {string} traceID "" or zeros where nothing is traced
 * @param {number} ms from the question to the answer
 * @param {(text: string) => void} announce
 * @returns {HTMLElement}
 */
export function metadataLine(event, traceID, ms, announce) {
  const { steps, tool_names, usage, model } = event.metadata;
  const items = [
    model,
    counted(steps, "step"),
    tool_names.length > 0 ? counted(tool_names.length, "tool call") : "",
    usage?.total_tokens ? `${usage.input_tokens} + ${usage.output_tokens} tokens` : "",
    `finish: ${event.finish_reason}`,
    duration(ms),
  ];
  const line = element("ul", { class: "metadata", "aria-label": "About this answer" });
  line.append(...items.filter(Boolean).map((text) => element("li", {}, text)));
  if (traceID && !/^0+$/.test(traceID)) line.append(element("li", {}, ...trace(traceID, announce)));
  return line;
}

/**
 * @param {number} n
 * @param {string} noun
 */
function counted(n, noun) {
  return `${n} ${noun}${n === 1 ? "" : "s"}`;
}

/**
 * @param {string} id
 * @param {(text: string) => void} announce
 * @returns {Node[]}
 */
function trace(id, announce) {
  const shown = element("code", { title: id }, id.slice(0, 8));
  const label = element("span", {}, "copy");
  const button = element("button", { type: "button", class: "link" }, label, element("span", { class: "unseen" }, " trace id"));
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(id);
      label.textContent = "copied";
      announce("The trace id is copied");
    } catch {
      // No clipboard, as on plain http beyond loopback: show all of it, ready to be copied by hand.
      shown.textContent = id;
      getSelection()?.selectAllChildren(shown);
    }
  });
  return ["trace ", shown, " ", button].map((part) => (typeof part === "string" ? document.createTextNode(part) : part));
}
