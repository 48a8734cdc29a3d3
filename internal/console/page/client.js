// @ts-check
// Requests to the service that this page came from, and what it answers when it
// refuses. Paths are relative, so that the page works under any prefix.

/** A refusal: the problem document (RFC 9457), or what can be said without one. */
export class Problem extends Error {
  /**
   * @param {number} status
   * @param {{detail?: string, title?: string, code?: string, trace_id?: string, errors?: {pointer: string, detail: string}[]}} document
   * @param {number} retryAfter in seconds, 0 where the service names none
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

/** Speaks to the service, with a token where it wants one. */
export class Client {
  #token;
  /** @type {WeakMap<Response, string>} the token that was sent for it */
  #sent = new WeakMap();

  /** @param {import("./token.js").Token} token */
  constructor(token) {
    this.#token = token;
  }

  /**
   * One request. When the service wants to know who asks, the reader is asked for a
   * token and the request is made again, as often as it takes or until signal.
   *
   * @param {string} path relative to the page
   * @param {RequestInit} options
   * @returns {Promise<Response>} of a status below 300
   * @throws {Problem} for any other status; TypeError if there was no answer at all
   */
  async send(path, options = {}) {
    for (;;) {
      const token = this.#token.value;
      const headers = new Headers(options.headers);
      if (token) headers.set("Authorization", `Bearer ${token}`);
      const response = await fetch(path, { ...options, headers, cache: "no-store", redirect: "manual" });
      if (response.ok) {
        this.#sent.set(response, token);
        return response;
      }
      const problem = await readProblem(response);
      if (response.status !== 401) throw problem;
      // Another request may have got a new token meanwhile.
      if (this.#token.value === token) await this.#token.ask(token ? `The token was not accepted. ${problem.message}` : problem.message, options.signal);
    }
  }

  /**
   * Asks the reader for another token than the one of this response, which has ended in
   * the middle of it; not if there is another already.
   *
   * @param {Response} response
   * @param {AbortSignal} signal ends the waiting
   */
  async renew(response, signal) {
    if (this.#token.value !== this.#sent.get(response)) return;
    await this.#token.ask("Your token has expired. With a new one you see the rest of the run, which goes on for a while without you.", signal);
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

  /** @param {string} run */
  cancel(run) {
    return this.json(`runs/${encodeURIComponent(run)}/cancel`, { method: "POST" });
  }

  /**
   * Answers what a run waits for.
   *
   * @param {string} run
   * @param {object} answer
   */
  answer(run, answer) {
    return this.json(`runs/${encodeURIComponent(run)}/input`, { method: "POST", body: JSON.stringify(answer), headers: { "Content-Type": "application/json" } });
  }

  /** Has the service forget a run. @param {string} run */
  forget(run) {
    return this.send(`runs/${encodeURIComponent(run)}`, { method: "DELETE" });
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
    return new Problem(0, { code: "redirect", detail: "Something in front of the service redirects elsewhere. If it wants you to sign in, load this page again." });
  }
  const retryAfter = Number(response.headers.get("Retry-After")) || 0;
  const type = response.headers.get("Content-Type") ?? "";
  if (!type.startsWith("application/problem+json")) {
    // A proxy's own page says nothing that a reader could use.
    await response.body?.cancel();
    return new Problem(response.status, {}, retryAfter);
  }
  return new Problem(response.status, await response.json().catch(() => ({})), retryAfter);
}
