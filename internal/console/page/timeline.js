// @ts-check
// Where the time of a run went, by the service's clock: model calls, tool calls, and
// waiting for a person.
import { limitName } from "./limit.js";

/** @typedef {import("./run.js").RunEvent} RunEvent */
/** @typedef {"model" | "tool" | "wait"} Kind */
/** From and to are ms since the run began; to is NaN while it goes on.
 * @typedef {{kind: Kind, from: number, to: number}} Span
 * @typedef {{name: string, kind: Kind, spans: Span[], failed: boolean}} Row
 */

const mostRows = 200; // the rest of a very long run is left out

/** Takes a run's events and keeps what took time. */
export class Timeline {
  /** @type {Row[]} */
  rows = [];
  /** ms of the run so far */
  length = 0;
  #started = NaN;
  /** @type {Row | null} */
  #step = null;
  /** @type {Map<string, Row>} by call_id, or interrupt_id of a limit */
  #calls = new Map();

  /** @param {RunEvent} event */
  apply(event) {
    if (Number.isNaN(this.#started)) this.#started = event.ts;
    const at = Math.max(this.length, event.ts - this.#started); // clocks of two replicas may differ
    this.length = at;
    switch (event.type) {
      case "step_start":
      case "step_reset":
        this.#end(this.#step, at);
        this.#step = this.#row(`Model, step ${event.step}`, "model", at);
        break;
      case "step_end":
        this.#end(this.#step, at);
        break;
      case "tool_call":
        this.#calls.set(event.call_id, this.#row(event.tool, "tool", at));
        break;
      case "approval_required":
      case "elicitation":
        this.#turn(event.call_id, "wait", at);
        break;
      case "approval_resolved":
      case "elicitation_resolved":
        this.#turn(event.call_id, "tool", at);
        break;
      case "budget_required":
        this.#calls.set(event.interrupt_id, this.#row(`Limit of ${limitName(event)}`, "wait", at));
        break;
      case "budget_resolved":
        this.#end(this.#calls.get(event.interrupt_id) ?? null, at);
        break;
      case "tool_result":
      case "tool_error":
        this.#endCall(event, at);
        break;
      case "final_answer":
      case "run_error":
      case "cancelled":
        for (const row of this.rows) this.#end(row, at);
        break;
    }
  }

  /**
   * @param {string} name
   * @param {Kind} kind
   * @param {number} at
   */
  #row(name, kind, at) {
    /** @type {Row} */
    const row = { name, kind, spans: [{ kind, from: at, to: NaN }], failed: false };
    if (this.rows.length < mostRows) this.rows.push(row);
    return row;
  }

  /**
   * @param {string} call
   * @param {Kind} kind
   * @param {number} at
   */
  #turn(call, kind, at) {
    const row = this.#calls.get(call);
    if (!row) return;
    this.#end(row, at);
    row.spans.push({ kind, from: at, to: NaN });
  }

  /**
   * @param {RunEvent} event
   * @param {number} at
   */
  #endCall(event, at) {
    const row = this.#calls.get(event.call_id);
    if (row && event.type === "tool_error") row.failed = true;
    this.#end(row ?? null, at);
  }

  /**
   * @param {Row | null} row
   * @param {number} at
   */
  #end(row, at) {
    const span = row?.spans.at(-1);
    if (span && Number.isNaN(span.to)) span.to = at;
  }

  /** ms of each kind; parallel calls count one by one. @returns {Record<Kind, number>} */
  sums() {
    const sums = { model: 0, tool: 0, wait: 0 };
    for (const { spans } of this.rows) for (const s of spans) sums[s.kind] += (Number.isNaN(s.to) ? this.length : s.to) - s.from;
    return sums;
  }
}
