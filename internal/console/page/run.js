// @ts-check
// One run, from its question to its last event, over as many connections as it takes.
import { Problem } from "./client.js";
import { readFrames } from "./sse.js";

/**
 * An event of the service (its contract, section 4).
 * @typedef {{type: string, run_id: string, seq: number, ts: number, [field: string]: any}} RunEvent
 *
 * What this page adds: the connection is gone, and is tried again after wait
 * milliseconds, or it is back.
 * @typedef {{type: "connection", up: boolean, wait: number}} ConnectionEvent
 */

const silence = 75_000; // ms without a byte; heartbeats come every 15 s
const patience = 180_000; // ms of trying before a lost connection is given up
const steady = 5_000; // ms that a connection must last to count as one
const firstWait = 400; // ms, doubled each time
const longestWait = 10_000; // ms

const terminal = new Set(["final_answer", "run_error", "cancelled"]);

/** Where the events of a run come from: a request that may be repeated.
 * @typedef {{path: string, method: "GET" | "POST", body?: string, headers: Record<string, string>}} Source
 */

/**
 * Asks. The key attaches to the same run however often this is sent, so a cut before the
 * first event asks no question twice.
 *
 * @param {object} request the body of POST /answer/stream
 * @param {string} key
 * @returns {Source}
 */
export function asking(request, key) {
  return { path: "answer/stream", method: "POST", body: JSON.stringify(request), headers: { "Content-Type": "application/json", Accept: "text/event-stream", "Idempotency-Key": key } };
}

/**
 * Follows a run that was begun before, from its first event.
 *
 * @param {string} run
 * @returns {Source}
 */
export function following(run) {
  return { path: `runs/${encodeURIComponent(run)}/events`, method: "GET", headers: { Accept: "text/event-stream" } };
}

/**
 * Yields what happens in a run, every event once and in order. A cut connection is
 * taken up again at the last position.
 *
 * It ends after the run's last event. At one that waits for a person the service ends the
 * stream, and goes on with it in the next: this waits there. Where the token ends before
 * the run, the reader is asked for another, after a token_expired event without a place
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
  let lost = 0; // since when there is no connection worth the name
  for (let attempt = 0; ; attempt++) {
    let retryAfter = 0;
    let suspended = false;
    let up = Infinity;
    try {
      if (position.id) request.headers["Last-Event-ID"] = position.id;
      const response = await client.send(path, request);
      let expired = false;
      if (response.status === 204 || !response.body) return; // ended, and all of it was seen
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
      throw new Problem(0, { detail: "The connection to the service was lost and did not come back." });
    }
    // The spread keeps readers who were cut off together from returning together.
    const backoff = Math.min(longestWait, firstWait * 2 ** attempt) * (0.75 + Math.random() / 2);
    const wait = Math.max(backoff, Math.min(retryAfter, 3 * longestWait));
    yield { type: "connection", up: false, wait };
    await pause(wait, signal);
  }
}

/**
 * The events of one connection after position, which moves along. One that was seen
 * is left out; one that is missing ends the run here, for a gap is never silent.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @param {{id: string, seq: number}} position
 * @returns {AsyncGenerator<RunEvent, void, void>}
 */
async function* newEvents(body, position) {
  for await (const frame of readFrames(body, silence)) {
    const event = decode(frame.data);
    if (event.type === "token_expired") return yield event; // none of the run's: its seq is the last one's
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
    if (Number.isSafeInteger(event?.seq) && typeof event.type === "string") return event;
  } catch {
    // Told below, as is JSON that is no event.
  }
  throw new Problem(0, { code: "unreadable", detail: "The service sent something that is not an event." });
}

/**
 * Whether trying again can help. The first answer of a service that is busy is for
 * the reader to act on; later ones are waited out.
 *
 * @param {unknown} error
 * @param {boolean} underWay
 */
function passes(error, underWay) {
  if (error instanceof TypeError) return true; // fetch's word for any failure of the network
  if (!(error instanceof Problem)) return false;
  return underWay && (error.status >= 500 || error.status === 429 || error.status === 408);
}

/**
 * Waits, but not longer than it takes the browser to be online again.
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
