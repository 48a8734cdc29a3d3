// @ts-check
// The caller's conversations. The service keeps them; without authentication all callers are one, so
// this browser keeps the ids of those that were started in it, and lists no others.

import { Problem } from "./client.js";

/** A conversation in the list.
 * @typedef {{thread_id: string, title: string, updated_at: string, status: string}} Listed
 *
 * One question of a conversation. run is "" until the service has received it; content and calls are
 * what the thread has of the answer.
 * @typedef {{question: string, run: string, status: string, content: string, calls: Call[], files: string[]}} Turn
 *
 * @typedef {{call_id: string, tool: string, server?: string, args?: object, args_text?: string, payload?: unknown, error?: string}} Call
 *
 * What the page has of one conversation. turns are the newest ones; before leads to older ones, "" if
 * there are none.
 * @typedef {{id: string, title: string, agent: string, count: number, turns: Turn[], before: string}} Thread
 *
 * A question that the service may not have received, with what is needed to send it again.
 * @typedef {{thread: string, key: string, at: number, request: {question: string}}} Pending
 */

const pageLength = 50; // of the list
const messagesLength = 20; // two for each question
const idsKey = "answerd.threads";
const pendingKey = "answerd.pending";
const mostKept = 500; // ids in this browser
const titleLength = 120;

/** @returns {string} that cannot be guessed; randomUUID exists only in secure contexts, not on plain HTTP in a LAN */
export function random() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
}

/** @param {string} [id] @returns {Thread} without questions */
export function newThread(id = `thr_${random()}`) {
  return { id, title: "", agent: "", count: 0, turns: [], before: "" };
}

/** The title of a conversation until it gets another one. @param {string} question */
export function titleOf(question) {
  return question.trim().split("\n")[0].slice(0, titleLength) || "Conversation";
}

export class Threads {
  #client;
  #browser = document.querySelector('meta[name="threads"]')?.getAttribute("content") === "browser" ? new BrowserThreads() : null;

  /** @param {import("./client.js").Client} client */
  constructor(client) {
    this.#client = client;
  }

  /**
   * Returns a page of the list, the conversation that was continued last first.
   *
   * @param {string} words of the title; "" for all
   * @param {string} after the next of the page before; "" for the first page
   * @returns {Promise<{threads: Listed[], next?: string}>}
   */
  async list(words, after) {
    if (this.#browser) return { threads: this.#browser.all().filter((t) => t.title.toLowerCase().includes(words.toLowerCase())) };
    const query = new URLSearchParams({ limit: String(pageLength), ...(words && { q: words }), ...(after && { after }) });
    return this.#client.json(`threads?${query}`);
  }

  /**
   * Returns a conversation with its newest questions, or with those before.
   *
   * @param {string} id
   * @param {string} before of what is on the page; "" for the newest
   * @param {AbortSignal} signal
   * @returns {Promise<Thread>}
   */
  async read(id, before, signal) {
    const query = new URLSearchParams({ limit: String(messagesLength), ...(before && { before }) });
    const { title, agent, runs, messages, next = "" } = await this.#client.exact(`${path(id)}?${query}`, { signal });
    /** @type {Turn[]} */
    const turns = [];
    for (const m of messages) {
      if (m.role === "user") {
        const files = (m.attachments ?? []).map((/** @type {{name?: string, media_type?: string}} */ a) => a.name || a.media_type || "a file");
        turns.push({ question: m.content, run: m.run_id, status: "running", content: "", calls: [], files });
      } else Object.assign(turns.at(-1) ?? {}, { status: m.status, content: m.content, calls: m.calls ?? [] });
    }
    return { id, title, agent, count: runs, turns, before: next };
  }

  /** @param {string} id @param {string} title */
  async rename(id, title) {
    const thread = await this.#client.json(path(id), { method: "PATCH", body: JSON.stringify({ title }), headers: { "Content-Type": "application/json" } });
    this.#browser?.put(id, thread.title);
    return thread.title;
  }

  /** Deletes a conversation with its runs. @param {string} id */
  async remove(id) {
    let gone = true;
    try {
      await this.#client.send(path(id), { method: "DELETE" });
    } catch (error) {
      gone = error instanceof Problem && error.status === 404;
      throw error;
    } finally {
      if (gone) this.#browser?.remove(id); // and not before: it would no longer be listed, and still be kept
    }
  }

  /** Notes that a question of this conversation was asked here. @param {Thread} thread */
  asked(thread) {
    this.#browser?.put(thread.id, thread.title);
  }

  /** Keeps a question until the service has received it. @param {Pending | null} pending */
  keep(pending) {
    try {
      if (pending) sessionStorage.setItem(pendingKey, JSON.stringify(pending));
      else sessionStorage.removeItem(pendingKey);
    } catch {
      // Storage is switched off or full: a reload before the first event loses the question.
    }
  }

  /** @param {string} id of a conversation @returns {Pending | null} the question that was kept for it */
  pending(id) {
    try {
      const kept = JSON.parse(sessionStorage.getItem(pendingKey) ?? "null");
      return kept?.thread === id && typeof kept.key === "string" && typeof kept.request?.question === "string" ? kept : null;
    } catch {
      return null;
    }
  }
}

/** @param {string} id */
function path(id) {
  return `threads/${encodeURIComponent(id)}`;
}

/** The conversations that were started in this browser. Other tabs change them too, so each change reads
 * what is stored, changes one conversation, and writes it back. */
class BrowserThreads {
  /** What lasts as long as the page, while storage is disabled.
   * @type {Listed[]} */
  #kept = [];
  #stored = true;

  /** @returns {Listed[]} newest first */
  all() {
    if (!this.#stored) return this.#kept;
    try {
      return checked(JSON.parse(localStorage.getItem(idsKey) ?? "[]"));
    } catch {
      return this.#kept;
    }
  }

  /** @param {string} id @param {string} title */
  put(id, title) {
    this.#write([{ thread_id: id, title, updated_at: new Date().toISOString(), status: "" }, ...this.all().filter((t) => t.thread_id !== id)]);
  }

  /** @param {string} id */
  remove(id) {
    this.#write(this.all().filter((t) => t.thread_id !== id));
  }

  /** @param {Listed[]} threads */
  #write(threads) {
    this.#kept = threads.slice(0, mostKept);
    try {
      localStorage.setItem(idsKey, JSON.stringify(this.#kept));
      this.#stored = true;
    } catch {
      this.#stored = false;
    }
  }
}

/**
 * Returns the valid entries of what was stored, which another version or another page may have written.
 *
 * @param {unknown} stored
 * @returns {Listed[]}
 */
function checked(stored) {
  if (!Array.isArray(stored)) return [];
  return stored.filter((t) => typeof t === "object" && t !== null && ["thread_id", "title", "updated_at", "status"].every((name) => typeof t[name] === "string")
    && t.thread_id !== "" && !Number.isNaN(Date.parse(t.updated_at)));
}
