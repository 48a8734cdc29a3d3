// @ts-check
// The card of one tool call, from the model's first word of it to its result.
import { element, pretty, valueBlock, visible } from "./element.js";
import { approvalForm, elicitationForm } from "./question.js";
import { resultView } from "./result.js";
import { duration } from "./time.js";

/** @typedef {import("./run.js").RunEvent} RunEvent */
/** @typedef {import("./question.js").Send} Send */

/** Shows one call, in a line that opens. It opens by itself when it fails or asks. */
export class CallView {
  #written = ""; // the arguments while the model writes them
  #state = element("span", { class: "call-state" }, "preparing");
  #args = element("div", { class: "call-part" });
  #brief = element("span", { class: "call-brief" });
  #progress = element("span", { class: "call-progress", hidden: true });
  #asks = element("div", { class: "call-asks" });
  #end = element("div", { class: "call-part" });
  /** @type {Map<string, HTMLElement>} open questions by interrupt_id */
  #questions = new Map();
  #asked = false; // for approval
  #load;
  #send;

  /**
   * @param {RunEvent} event tool_call_start
   * @param {(path: string) => Promise<any>} load reads the whole of a large result
   * @param {Send} send answers what the call waits for
   */
  constructor(event, load, send) {
    this.#load = load;
    this.name = event.tool;
    this.#send = send;
    const server = event.server ? [element("span", { class: "call-server" }, event.server)] : [];
    this.root = element(
      "details",
      { class: "call", "data-state": "running" },
      element("summary", {}, element("span", { class: "call-name" }, event.tool), ...server, this.#brief, this.#state, this.#progress),
      this.#args,
      this.#asks,
      this.#end,
    );
  }

  /** Whether the call waits for the reader. */
  get asks() {
    return this.#questions.size > 0;
  }

  /** Whether the call has its result, or its error. */
  get ended() {
    return this.root.dataset.state !== "running";
  }

  /** @param {RunEvent} event of this call */
  apply(event) {
    switch (event.type) {
      case "tool_call_args":
        this.#written += event.delta; // shown by draw
        break;
      case "tool_call":
        this.#state.textContent = "running";
        this.#showArguments(event.args ?? event.args_text ?? "");
        break;
      case "tool_progress":
        this.#showProgress(event);
        break;
      case "approval_required":
        // A hook may have changed them since the model wrote them.
        this.#asked = true;
        this.#showArguments(visible(pretty(event.args)));
        this.#ask(event, approvalForm(event, this.#send));
        break;
      case "elicitation":
        this.#ask(event, elicitationForm(event, this.#send));
        break;
      case "approval_resolved":
        this.#answered(event, `${event.approved ? "Approved" : "Not approved"}${event.by ? ` by ${event.by}` : ""}`, event.reason);
        break;
      case "elicitation_resolved":
        this.#answered(event, event.action === "accept" ? "Answered" : event.action === "decline" ? "Declined" : "Not answered", "");
        break;
      case "tool_result":
        this.#finish("done", duration(event.duration_ms) || "done");
        if (this.#asked) this.#showArguments(event.args); // a person may have changed them
        this.#showEnd("Result", event);
        break;
      case "tool_error":
        if (event.kind) this.#finish("failed", "failed: ", element("span", { class: "kind" }, event.kind), ` · ${duration(event.duration_ms)}`);
        else this.#finish("failed", "failed"); // as a conversation has it
        this.#showEnd("Error", event);
        this.root.open = true;
        break;
    }
  }

  /** Shows what the model has written of the arguments so far. */
  draw() {
    if (this.#state.textContent === "preparing") this.#showArguments(this.#written);
  }

  /** No more events come. A call without an end may have ended, or not. */
  close() {
    this.#questions.clear();
    delete this.root.dataset.asks;
    for (const form of this.#asks.querySelectorAll("form")) form.remove();
    if (this.ended) return;
    this.root.dataset.state = "unknown";
    this.#state.textContent = "end not seen";
  }

  /**
   * @param {RunEvent} event
   * @param {HTMLElement} form
   */
  #ask(event, form) {
    this.#questions.set(event.interrupt_id, form);
    this.#asks.append(form);
    this.root.open = true;
    this.#state.textContent = "waits for you";
    this.root.dataset.asks = "true";
  }

  /**
   * @param {RunEvent} event
   * @param {string} how
   * @param {string} [why]
   */
  #answered(event, how, why) {
    const form = this.#questions.get(event.interrupt_id);
    this.#questions.delete(event.interrupt_id);
    form?.replaceWith(element("p", { class: "small" }, why ? `${how}: ${why}` : `${how}.`));
    if (this.asks) return;
    delete this.root.dataset.asks;
    this.#state.textContent = "running";
  }

  /** @param {unknown} value the object, or what the model wrote instead of one */
  #showArguments(value) {
    this.#brief.textContent = brief(value);
    if (typeof value === "object" && value !== null && Object.keys(value).length === 0) {
      this.#args.replaceChildren(label("No arguments"));
      return;
    }
    this.#args.replaceChildren(label("Arguments"), valueBlock(`Arguments of ${this.name}`, value));
  }

  /**
   * @param {string} title
   * @param {RunEvent} event tool_result or tool_error
   */
  #showEnd(title, event) {
    this.#end.replaceChildren(label(title), resultView(`${title} of ${this.name}`, /** @type {any} */ (event), this.#load));
  }

  /** @param {RunEvent} event tool_progress */
  #showProgress(event) {
    const known = event.total > 0;
    /** @type {Record<string, number>} without a value the bar says "under way" */
    const attributes = known ? { max: event.total, value: Math.min(event.progress, event.total) } : {};
    const figure = known ? `${event.progress} of ${event.total}` : String(event.progress);
    this.#progress.hidden = false;
    this.#progress.replaceChildren(
      element("progress", { "aria-label": `Progress of ${this.name}`, ...attributes }),
      element("span", {}, event.message ? `${figure} · ${event.message}` : figure),
    );
  }

  /**
   * @param {"done" | "failed"} state
   * @param {...(string | Node)} text
   */
  #finish(state, ...text) {
    this.root.dataset.state = state;
    this.#state.replaceChildren(...text);
    this.#progress.hidden = true;
  }
}

/** @param {string} text */
function label(text) {
  return element("p", { class: "label" }, text);
}

const briefLength = 160; // characters; the style cuts what has no room

/** Arguments in one line, for who does not open the card. @param {unknown} value */
function brief(value) {
  if (typeof value === "string") return value.slice(0, 4 * briefLength).replace(/\s+/g, " ").slice(0, briefLength);
  if (typeof value !== "object" || value === null) return "";
  const parts = Object.entries(value).slice(0, 12).map(([name, v]) => `${name}: ${JSON.stringify(v) ?? ""}`.slice(0, briefLength));
  return parts.join(", ").slice(0, briefLength);
}
