// @ts-check
// The conversations of this browser. It stores questions and answers, because the service deletes runs
// after a while. The steps of a run are only in the service.

/** One question. Without a run, the service may not have received it.
 * @typedef {{question: string, key: string, at: number, run: string, answer: string, agent?: string, model?: string}} Turn
 *
 * id identifies the thread in this browser, threadID in the service; the first run has it.
 * @typedef {{id: string, threadID: string, at: number, turns: Turn[]}} Thread
 */

const storageKey = "answerd.threads";
const mostThreads = 60;
const mostTurns = 100; // of one conversation
const mostText = 2_000_000; // characters of all threads; browsers store about five million
const mostMessages = 16; // the default of MAX_HISTORY
const mostHistory = 200_000; // characters; the service accepts 1 MiB for a whole request

/** @returns {string} that cannot be guessed; randomUUID exists only in secure contexts, not on plain HTTP in a LAN */
export function random() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
}

/** All conversations, newest first. Other tabs change them too, so each change reads what is stored,
 * changes one conversation, and writes it back. */
export class Threads {
  /** The conversations while storage is disabled: they last as long as the page.
   * @type {Thread[]} */
  #kept = [];
  #stored = true;

  /** @returns {Thread[]} */
  all() {
    if (!this.#stored) return this.#kept;
    try {
      return checked(JSON.parse(localStorage.getItem(storageKey) ?? "[]"));
    } catch {
      return this.#kept;
    }
  }

  /**
   * @param {string} id
   * @returns {Thread | undefined}
   */
  get(id) {
    return this.all().find((t) => t.id === id);
  }

  /** Stores a conversation as the newest one. @param {Thread} thread */
  put(thread) {
    this.#write([thread, ...this.all().filter((t) => t.id !== thread.id)]);
  }

  /** @param {string} id */
  remove(id) {
    this.#write(this.all().filter((t) => t.id !== id));
  }

  clear() {
    this.#write([]);
  }

  /** @param {Thread[]} threads */
  #write(threads) {
    let rest = mostText;
    threads = threads.slice(0, mostThreads).filter((t, i) => {
      rest -= t.turns.reduce((n, turn) => n + turn.question.length + turn.answer.length + 200, 0);
      return i === 0 || rest > 0; // the oldest ones are dropped first
    });
    this.#kept = threads;
    try {
      localStorage.setItem(storageKey, JSON.stringify(threads));
      this.#stored = true;
    } catch {
      this.#stored = false; // storage is disabled, or full
    }
  }
}

/** @returns {Thread} */
export function newThread() {
  return { id: random(), threadID: "", at: Date.now(), turns: [] };
}

/** Returns the title of a conversation: its first question. @param {Thread} thread */
export function titleOf(thread) {
  return thread.turns[0]?.question.replace(/\s+/g, " ").trim().slice(0, 120) || "Conversation";
}

/**
 * Returns the request body for the question of the turn at that index. Its history has the newest
 * answered turns that fit. It is always the same for the same turn, so that a repeated request with the
 * turn's key attaches to the same run.
 *
 * @param {Thread} thread
 * @param {number} index
 */
export function requestOf(thread, index) {
  const past = thread.turns.slice(0, index).filter((t) => t.answer !== "").slice(-mostMessages / 2);
  let size = past.reduce((n, t) => n + t.question.length + t.answer.length, 0);
  // Drop question and answer together, so that no answer lacks its question.
  while (size > mostHistory) {
    const oldest = /** @type {Turn} */ (past.shift());
    size -= oldest.question.length + oldest.answer.length;
  }
  const history = past.flatMap((t) => [{ role: "user", content: t.question }, { role: "assistant", content: t.answer }]);
  const { question, agent, model } = thread.turns[index];
  return { question, ...(agent && { agent }), ...(model && { model }), ...(history.length && { history }), ...(index > 0 && thread.threadID && { thread_id: thread.threadID }) };
}

/**
 * Returns the valid threads of what was stored, which another version or another page may have written.
 *
 * @param {unknown} stored
 * @returns {Thread[]}
 */
function checked(stored) {
  /** @param {any} o @param {string[]} names */
  const texts = (o, ...names) => typeof o === "object" && o !== null && names.every((name) => typeof o[name] === "string");
  if (!Array.isArray(stored)) return [];
  return stored.filter((t) => texts(t, "id", "threadID") && Number.isFinite(t.at) && Array.isArray(t.turns) && t.turns.length <= mostTurns
    && t.turns.every((/** @type {any} */ turn) => texts(turn, "question", "key", "run", "answer") && Number.isFinite(turn.at)
    && [turn.agent, turn.model].every((id) => id === undefined || typeof id === "string")));
}

/** @param {Thread} thread */
export function full(thread) {
  return thread.turns.length >= mostTurns;
}
