// @ts-check
// One run, from its question to its last event, with as many connections as that needs.
import { Problem } from "./client.js";
import { isInteger, parseExact } from "./json.js";
import { readFrames } from "./sse.js";

/**
 * An event of the service (its contract, section 4).
 * @typedef {{type: string, run_id: string, seq: number, ts: number, [field: string]: any}} RunEvent
 *
 * Added by this page: the connection is lost and is tried again after wait milliseconds, or it is back.
 * @typedef {{type: "connection", up: boolean, wait: number}} ConnectionEvent
 */

const silence = 75_000; // ms without a byte; heartbeats come every 15 s
const patience = 180_000; // ms until a lost connection is no longer tried again
const steady = 5_000; // ms after which a connection counts as restored
const firstWait = 400; // ms before the first attempt, doubled each time
const longestWait = 10_000; // ms

const terminal = new Set(["final_answer", "run_error", "cancelled"]);

/** A request that returns the events of a run, and may be repeated.
 * @typedef {{path: string, method: "GET" | "POST", body?: string, headers: Record<string, string>}} Source
 */

/**
 * Returns the request that asks a question. The idempotency key makes a repeated request attach to the
 * same run, so the question is asked once even if the connection is cut before the first event.
 *
 * @param {object} request the body of POST /answer/stream
 * @param {string} key
 * @returns {Source}
 */
export function asking(request, key) {
  return { path: "answer/stream", method: "POST", body: JSON.stringify(request), headers: { "Content-Type": "application/json", Accept: "text/event-stream", "Idempotency-Key": key } };
}

/**
 * Returns the request for the events of an existing run, from the first one.
 *
 * @param {string} run
 * @returns {Source}
 */
export function following(run) {
  return { path: `runs/${encodeURIComponent(run)}/events`, method: "GET", headers: { Accept: "text/event-stream" } };
}

/**
 * Yields the events of a run, each once and in order. After a cut connection it resumes at the last
 * position (Last-Event-ID).
 *
 * It ends after the run's terminal event. When the run is suspended, the service ends the stream; this
 * function opens the next one, which waits for the person's input. If the token expires before the run
 * ends, it asks the person for another token, after a token_expired event, which has no sequence number
 * of its own.
 *
 * @param {import("./client.js").Client} client
 * @param {Source} source
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<RunEvent | ConnectionEvent, void, void>}
 * @throws {Problem} when the run cannot be followed any further
 */
export async function* follow(client, source, signal) {
  const position = { id: "", seq: 0 };
  const { path, headers, ...rest } = source;
  const request = { ...rest, headers: { ...headers }, signal };
  let lost = 0; // time since when there is no steady connection
  for (let attempt = 0; ; attempt++) {
    let retryAfter = 0;
    let suspended = false;
    let up = Infinity;
    try {
      if (position.id) request.headers["Last-Event-ID"] = position.id;
      const response = await client.send(path, request);
      let expired = false;
      if (response.status === 204 || !response.body) return; // the run has ended at this position
      up = Date.now();
      if (attempt > 0) yield { type: "connection", up: true, wait: 0 };
      for await (const event of newEvents(response.body, position)) {
        lost = attempt = 0;
        yield event;
        if (terminal.has(event.type)) return;
        suspended = event.type === "suspended";
        expired = event.type === "token_expired";
      }
      if (expired) {
        await client.renew(response, signal);
        yield { type: "connection", up: true, wait: 0 };
        attempt = -1;
        continue;
      }
      if (suspended) {
        attempt = -1;
        continue;
      }
    } catch (error) {
      if (!passes(error, attempt > 0 || position.seq > 0)) throw error;
      if (error instanceof Problem) retryAfter = error.retryAfter * 1000;
    }
    if (Date.now() - up > steady) lost = attempt = 0;
    lost ||= Date.now();
    if (Date.now() - lost > patience) {
      throw new Problem(0, { detail: "The connection to the service was lost and could not be restored." });
    }
    // The random part keeps clients that were cut off together from reconnecting together.
    const backoff = Math.min(longestWait, firstWait * 2 ** attempt) * (0.75 + Math.random() / 2);
    const wait = Math.max(backoff, Math.min(retryAfter, 3 * longestWait));
    yield { type: "connection", up: false, wait };
    await pause(wait, signal);
  }
}

/**
 * Yields the events of one connection that follow position, and advances it. It skips events that were
 * seen before, and throws if one is missing: an incomplete run must not look complete.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @param {{id: string, seq: number}} position
 * @returns {AsyncGenerator<RunEvent, void, void>}
 */
async function* newEvents(body, position) {
  for await (const frame of readFrames(body, silence)) {
    const event = decode(frame.data);
    if (event.type === "token_expired") return yield event; // not an event of the run: its seq is that of the last one
    if (event.seq <= position.seq) continue;
    if (event.seq !== position.seq + 1) {
      throw new Problem(0, { code: "gap", detail: "A part of the run is missing from the stream." });
    }
    position.seq = event.seq;
    position.id = frame.id;
    yield event;
  }
}

/**
 * @param {string} data
 * @returns {RunEvent}
 */
function decode(data) {
  try {
    const event = JSON.parse(data);
    if (Number.isSafeInteger(event?.seq) && typeof event.type === "string") return withExact(event, parseExact(data));
  } catch {
    // Reported below, like JSON that is not an event.
  }
  throw new Problem(0, { code: "unreadable", detail: "The service sent something that is not an event." });
}

/**
 * Returns an event with the values of exact that the page shows or sends back: those of tools and of the model, and the
 * defaults of a form. The page computes with the other fields, or takes them for texts.
 *
 * @param {any} event
 * @param {any} exact the same event
 */
function withExact(event, exact) {
  for (const name of ["args", "payload", "output"]) if (name in event) event[name] = exact[name];
  for (const [name, field] of Object.entries(event.schema?.properties ?? {})) {
    const value = exact.schema.properties[name]?.default;
    if (isInteger(value)) field.default = value;
  }
  return event;
}

/**
 * Reports whether to try again. If the service refuses the first request because it is busy, the person
 * decides; later refusals are retried.
 *
 * @param {unknown} error
 * @param {boolean} underWay
 */
function passes(error, underWay) {
  if (error instanceof TypeError) return true; // fetch throws it for all failures of the network
  if (!(error instanceof Problem)) return false;
  return underWay && (error.status >= 500 || error.status === 429 || error.status === 408);
}

/**
 * Waits, or returns earlier when the browser is online again.
 *
 * @param {number} ms
 * @param {AbortSignal} signal
 * @returns {Promise<void>}
 */
function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const done = new AbortController();
    const timer = setTimeout(() => finish(resolve), ms);
    /** @param {(reason?: any) => void} settle */
    function finish(settle) {
      clearTimeout(timer);
      done.abort();
      settle(signal.reason);
    }
    window.addEventListener("online", () => finish(resolve), { signal: done.signal });
    signal.addEventListener("abort", () => finish(reject), { signal: done.signal });
    if (signal.aborted) finish(reject);
  });
}
