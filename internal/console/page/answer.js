// @ts-check
// One question and everything that happens until it is answered.
import { CallView } from "./call.js";
import { Problem } from "./client.js";
import { copyButton } from "./copy.js";
import { element } from "./element.js";
import { LimitView } from "./limit.js";
import { aboutRun } from "./metadata.js";
import { reasoningPart, textPart } from "./parts.js";
import { duration } from "./time.js";
import { Timeline } from "./timeline.js";
import { tree } from "./tree.js";

/** @typedef {import("./run.js").RunEvent} RunEvent */
/** @typedef {import("./run.js").ConnectionEvent} ConnectionEvent */

/** @typedef {import("./parts.js").Part} Part */
/** What a view needs of the page.
 * @typedef {object} Page
 * @property {(text: string) => void} announce says something to a screen reader
 * @property {(path: string) => Promise<any>} load reads JSON from the service
 * @property {(run: string, answer: object) => Promise<unknown>} send answers what a run waits for
 * @property {(run: string) => Promise<Blob>} exported loads a run as one document
 */

/** Shows one run. Events that it does not know are left alone. */
export class AnswerView {
  runID = "";
  threadID = "";
  /** What the run said in the end; "" while there is nothing to go on from. */
  answer = "";

  #step = 0;
  #timeline = new Timeline();
  #live;
  #traceID = "";
  /** @type {Map<string, Part>} by part_id */
  #parts = new Map();
  /** @type {Map<string, {view: CallView, step: number}>} by call_id */
  #calls = new Map();
  /** @type {Map<string, LimitView>} by interrupt_id */
  #limits = new Map();
  /** @type {HTMLElement | null} what says that a limit was reached, until a card does */
  #reached = null;
  /** @type {Set<{draw: () => void}>} whose text has grown since the last frame */
  #stale = new Set();
  #frame = 0;
  #activity = "";
  #page;
  #body = element("div", { class: "answer" });
  #status = element("p", { class: "status" }, "Asking");
  #title = element("h2", { class: "unseen", tabindex: -1 });

  /**
   * @param {string} question
   * @param {number} number of the question in the conversation, from 1
   * @param {Page} page
   * @param {boolean} live false where the run is over and only shown again: nobody is told
   */
  constructor(question, number, page, live) {
    this.#page = page;
    this.#live = live;
    this.number(number);
    this.root = element("article", { class: "turn" }, this.#title, element("p", { class: "question" }, question), this.#body, this.#status);
  }

  /** @param {RunEvent | ConnectionEvent} event */
  apply(event) {
    if (event.type === "connection") return this.#connection(/** @type {ConnectionEvent} */ (event));
    if (event.type === "token_expired") return void (this.#status.textContent = "Waiting for a new token");
    this.#timeline.apply(/** @type {RunEvent} */ (event));
    switch (event.type) {
      case "start":
        [this.runID, this.threadID, this.#traceID] = [event.run_id, event.thread_id, event.trace_id];
        if (event.unavailable_servers?.length) this.note(`Offline, and not used: ${event.unavailable_servers.join(", ")}.`);
        break;
      case "step_start":
        this.#step = event.step;
        this.#now("Waiting for the model");
        break;
      case "step_reset":
        this.#reset(event.step);
        break;
      case "budget":
        this.#reached = this.note(`Limit ${event.limit}: ${event.used} of ${event.max} used.`);
        break;
      case "budget_required":
      case "budget_resolved":
        this.#applyLimit(/** @type {RunEvent} */ (event));
        break;
      case "suspended":
        this.#now("Waiting for you");
        break;
      case "final_answer":
        this.#finalAnswer(/** @type {RunEvent} */ (event));
        break;
      case "run_error":
        this.fail(new Problem(0, { detail: event.message, code: event.code, trace_id: this.#traceID }));
        this.#about(null);
        break;
      case "cancelled":
        this.#cancelled(/** @type {RunEvent} */ (event));
        break;
      default:
        this.#applyPart(/** @type {RunEvent} */ (event));
    }
  }

  /** The form that the run waits for, the oldest one; null if it waits for nobody.
   * @returns {HTMLElement | null}
   */
  get ask() {
    return this.#body.querySelector("[data-asks] .ask");
  }

  /** Shows why the run, or following it, came to an end.
   * @param {unknown} error
   */
  fail(error) {
    const problem = error instanceof Problem ? error : new Problem(0, { code: "page", detail: "This page has a defect and stopped showing the run. Load it again." });
    if (problem !== error) console.error(error);
    const trace = problem.traceID && !/^0+$/.test(problem.traceID) ? [element("span", { class: "small" }, `trace ${problem.traceID}`)] : [];
    this.#body.append(
      element("p", { class: "problem", role: "alert" }, problem.message, " ", element("span", { class: "kind" }, problem.code), " ", ...trace),
    );
  }

  /** Shows an answer whose events nobody keeps any more, as its conversation has it.
   * @param {string} answer
   * @param {import("./threads.js").Call[]} calls
   * @param {string} status of the run
   */
  recall(answer, calls, status) {
    this.answer = answer;
    for (const call of calls) {
      const view = this.#add(new CallView(/** @type {any} */ ({ ...call, type: "tool_call_start" }), this.#page.load, () => Promise.resolve()));
      view.apply(/** @type {any} */ ({ ...call, type: "tool_call" }));
      if (call.error !== undefined) view.apply(/** @type {any} */ ({ ...call, type: "tool_error", payload: call.error }));
      else if (call.payload !== undefined) view.apply(/** @type {any} */ ({ ...call, type: "tool_result" }));
      this.#calls.set(call.call_id, { view, step: 0 });
    }
    this.#grow(this.#add(textPart(0, false)), answer);
    const how = status === "cancelled" ? "This run was cancelled. " : status === "failed" ? "This run failed. " : "";
    this.note(`${how}The steps of this answer are no longer kept.`);
    if (answer !== "") this.#body.append(element("p", {}, copyButton("Copy", "the answer", () => answer)));
  }

  /** @param {number} number of the question in the conversation */
  number(number) {
    this.#title.textContent = `Question ${number}`;
  }

  /** Shows what is left to show. Nothing comes after it. */
  close() {
    cancelAnimationFrame(this.#frame);
    this.#draw();
    for (const part of this.#parts.values()) part.close();
    for (const { view } of this.#calls.values()) view.close();
    for (const limit of this.#limits.values()) limit.close();
    this.#status.remove();
  }

  /** @param {RunEvent} event of a text, of reasoning or of a call */
  #applyPart(event) {
    switch (event.type) {
      case "reasoning_start":
        this.#parts.set(event.part_id, this.#add(reasoningPart(this.#step)));
        this.#now("Thinking");
        break;
      case "text_start":
        this.#parts.set(event.part_id, this.#add(textPart(this.#step, this.#live)));
        this.#now("Writing");
        break;
      case "reasoning_delta":
      case "text_delta":
        this.#grow(this.#parts.get(event.part_id), event.delta);
        break;
      case "reasoning_end":
      case "text_end":
        this.#draw();
        this.#parts.get(event.part_id)?.close();
        break;
      case "tool_call_start":
        this.#calls.set(event.call_id, { view: this.#add(new CallView(event, this.#page.load, (answer) => this.#page.send(this.runID, answer))), step: this.#step });
        this.#now("Choosing tools");
        break;
      default:
        this.#applyCall(event);
    }
  }

  /** @param {RunEvent} event */
  #applyCall(event) {
    const call = this.#calls.get(event.call_id)?.view;
    if (!call) return;
    call.apply(event);
    if (event.type === "tool_call_args") this.#drawSoon(call);
    const running = this.#running;
    if (event.type === "approval_required" || event.type === "elicitation") {
      this.#announce(`The tool ${call.name} waits for you`);
    } else if (event.type === "tool_call") {
      this.#announce(`Calling the tool ${call.name}`);
      this.#now(running === 1 ? "Running a tool" : `Running ${running} tools`);
    } else if (event.type === "approval_resolved" || event.type === "elicitation_resolved") {
      this.#now(running === 1 ? "Running a tool" : `Running ${running} tools`);
    } else if (call.ended) {
      this.#announce(`The tool ${call.name} ${event.type === "tool_error" ? "failed" : "is done"}`);
      if (running > 0) this.#now(running === 1 ? "Running a tool" : `Running ${running} tools`);
    }
  }

  /** @param {RunEvent} event */
  #applyLimit(event) {
    if (event.type === "budget_required") {
      this.#reached?.remove();
      const limit = this.#add(new LimitView(event, (answer) => this.#page.send(this.runID, answer)));
      this.#limits.set(event.interrupt_id, limit);
      this.#announce(`The run has reached its limit of ${limit.name} and waits for you`);
      return;
    }
    this.#limits.get(event.interrupt_id)?.resolve(event);
    const running = this.#running;
    this.#now(running === 0 ? "Continuing" : running === 1 ? "Running a tool" : `Running ${running} tools`);
  }

  /** How many calls go on and wait for nobody. */
  get #running() {
    return [...this.#calls.values()].filter(({ view }) => !view.ended && !view.asks).length;
  }

  /** @param {RunEvent} event */
  #finalAnswer(event) {
    // The deltas of the last step add up to the answer. If they did not, the answer counts.
    const last = [...this.#parts.values()].filter((p) => p.step === this.#step && p.root.classList.contains("text"));
    if (last.map((p) => p.text).join("") !== event.answer) {
      for (const part of last) part.root.remove();
      this.#grow(this.#add(textPart(this.#step, this.#live)), event.answer);
    }
    if (event.output !== undefined) {
      for (const part of this.#parts.values()) {
        if (part.step === this.#step && part.root.classList.contains("text")) part.root.hidden = true;
      }
      this.#body.append(tree("Answer", event.output));
    }
    this.answer = event.answer;
    this.#about(event.metadata);
    this.#announce("The answer is complete");
  }

  /** @param {RunEvent} event */
  #cancelled(event) {
    this.answer = event.partial_answer;
    this.note(event.reason === "requested" ? "Stopped." : `The run was cancelled: ${event.reason}.`);
    this.#about(null);
    this.#announce("The run was stopped");
  }

  /** What a step said is void: it runs again.
   * @param {number} step
   */
  #reset(step) {
    for (const [id, part] of this.#parts) {
      if (part.step !== step) continue;
      part.root.remove();
      this.#stale.delete(part);
      this.#parts.delete(id);
    }
    for (const [id, call] of this.#calls) {
      if (call.step !== step) continue;
      call.view.root.remove();
      this.#stale.delete(call.view);
      this.#calls.delete(id);
    }
    this.#now("Starting this step again");
  }

  /** @param {unknown} metadata */
  #about(metadata) {
    this.#body.append(aboutRun(metadata, this.#timeline, this.#traceID, () => this.answer, this.runID, () => this.#page.exported(this.runID)));
  }

  /** Tells a screen reader, unless all of this is past. @param {string} text */
  #announce(text) {
    if (this.#live) this.#page.announce(text);
  }

  /** @param {ConnectionEvent} event */
  #connection(event) {
    const text = event.up ? this.#activity || "Asking" : `No connection, trying again in ${duration(Math.max(1000, event.wait))}`;
    this.#status.classList.toggle("lost", !event.up);
    this.#status.textContent = text;
    if (!event.up) this.#announce("The connection is lost. Trying again.");
  }

  /** @param {string} activity */
  #now(activity) {
    this.#activity = activity;
    this.#status.textContent = activity;
  }

  /** Says something beside the answer. @param {string} text */
  note(text) {
    const shown = element("p", { class: "notice" }, text);
    this.#body.append(shown);
    return shown;
  }

  /**
   * @template {{root: HTMLElement}} V
   * @param {V} view
   * @returns {V}
   */
  #add(view) {
    this.#body.append(view.root);
    return view;
  }

  /**
   * @param {Part | undefined} part
   * @param {string} delta
   */
  #grow(part, delta) {
    if (!part) return;
    part.text += delta;
    this.#drawSoon(part);
  }

  /** Text comes faster than it can be read; it is drawn once a frame.
   * @param {{draw: () => void}} view
   */
  #drawSoon(view) {
    if (this.#stale.size === 0) this.#frame = requestAnimationFrame(() => this.#draw());
    this.#stale.add(view);
  }

  #draw() {
    for (const part of this.#stale) part.draw();
    this.#stale.clear();
  }
}
