// @ts-check
// Requests to the service that serves this page, and its errors. Paths are relative, so that the page
// works behind a proxy that adds a prefix.

import { parseExact } from "./json.js";

/** An error response: its problem document (RFC 9457), or a text if it has none. */
export class Problem extends Error {
  /**
   * @param {number} status
   * @param {{detail?: string, title?: string, code?: string, trace_id?: string, errors?: {pointer: string, detail: string}[]}} document
   * @param {number} retryAfter in seconds, 0 if the service names none
   */
  constructor(status, document, retryAfter = 0) {
    const fields = (document.errors ?? []).map((e) => ` ${e.pointer}: ${e.detail}.`);
    super((document.detail || document.title || `The service answered with status ${status}.`) + fields.join(""));
    this.status = status;
    this.code = document.code || (status ? `http_${status}` : "unreachable");
    this.traceID = document.trace_id ?? "";
    this.retryAfter = retryAfter;
  }
}

/** Sends requests to the service, with a token if the service requires one. */
export class Client {
  #token;
  /** @type {WeakMap<Response, string>} the token that was sent for it */
  #sent = new WeakMap();

  /** @param {import("./token.js").Token} token */
  constructor(token) {
    this.#token = token;
  }

  /**
   * Sends a request. After a 401 it asks the person for a token and sends the request again, until the
   * token is accepted or signal is aborted.
   *
   * @param {string} path relative to the page
   * @param {RequestInit} options
   * @returns {Promise<Response>} of a status below 300
   * @throws {Problem} for any other status; TypeError if there was no response
   */
  async send(path, options = {}) {
    await this.#token.ready;
    for (;;) {
      const token = this.#token.value;
      const headers = new Headers(options.headers);
      if (token) headers.set("Authorization", `Bearer ${token}`);
      const response = await fetch(path, { ...options, headers, cache: "no-store", redirect: "manual" });
      if (response.ok) {
        this.#sent.set(response, token);
        this.#token.accepted(token);
        return response;
      }
      const problem = await readProblem(response);
      if (response.status !== 401) throw problem;
      // Another request may have got a new token in the meantime.
      if (this.#token.value === token) await this.#token.ask(token ? `The token was not accepted. ${problem.message}` : problem.message, options.signal);
    }
  }

  /**
   * Asks the person for a new token after that of this response has expired, unless there is one already.
   *
   * @param {Response} response
   * @param {AbortSignal} signal stops waiting for the person
   */
  async renew(response, signal) {
    if (this.#token.value !== this.#sent.get(response)) return;
    await this.#token.ask("Your token has expired. The run continues for a while. With a new token you see the rest of it.", signal);
  }

  /**
   * @param {string} path
   * @param {RequestInit} [options]
   * @returns {Promise<any>}
   */
  async json(path, options) {
    const response = await this.send(path, options);
    return response.json();
  }

  /**
   * As json, for what tools have written: large integers are not rounded.
   *
   * @param {string} path
   * @param {RequestInit} [options]
   * @returns {Promise<any>}
   */
  async exact(path, options) {
    const response = await this.send(path, options);
    return parseExact(await response.text());
  }

  /** @param {string} run */
  cancel(run) {
    return this.json(`runs/${encodeURIComponent(run)}/cancel`, { method: "POST" });
  }

  /**
   * Loads a run as one document.
   *
   * @param {string} run
   */
  async exported(run) {
    const response = await this.send(`runs/${encodeURIComponent(run)}/export`);
    return response.blob();
  }

  /**
   * Sends a person's answer to an interrupt of a run.
   *
   * @param {string} run
   * @param {object} answer
   */
  answer(run, answer) {
    return this.json(`runs/${encodeURIComponent(run)}/input`, { method: "POST", body: JSON.stringify(answer), headers: { "Content-Type": "application/json" } });
  }

  /** @param {string} server */
  refresh(server) {
    return this.json(`servers/${encodeURIComponent(server)}/refresh`, { method: "POST" });
  }
}

/**
 * @param {Response} response
 * @returns {Promise<Problem>}
 */
async function readProblem(response) {
  if (response.type === "opaqueredirect") {
    return new Problem(0, { code: "redirect", detail: "A proxy in front of the service redirects this request. If it wants you to sign in, load this page again." });
  }
  const retryAfter = Number(response.headers.get("Retry-After")) || 0;
  const type = response.headers.get("Content-Type") ?? "";
  if (!type.startsWith("application/problem+json")) {
    // The page of a proxy does not help the person, so it is not read.
    await response.body?.cancel();
    return new Problem(response.status, {}, retryAfter);
  }
  return new Problem(response.status, await response.json().catch(() => ({})), retryAfter);
}
