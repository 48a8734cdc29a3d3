// @ts-check
// The conversations of this browser. What was asked and answered is kept here, because
// the service forgets a run after a while; the steps of a run are the service's to tell.

/** One question. Without a run it is not known to have reached the service.
 * @typedef {{question: string, key: string, at: number, run: string, answer: string}} Turn
 *
 * id is this browser's name for it, threadID the service's, which comes with the first run.
 * @typedef {{id: string, threadID: string, at: number, turns: Turn[]}} Thread
 */

const storageKey = "answerd.threads";
const mostThreads = 60;
const mostTurns = 100; // of one conversation
const mostText = 2_000_000; // characters of all; browsers keep some five million
const mostMessages = 16; // what the service looks at, if it is not set otherwise
const mostHistory = 200_000; // characters; the service takes 1 MiB for a whole request

/** @returns {string} that nobody can guess; randomUUID exists in secure contexts only, and a LAN address is none */
export function random() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
}

/** All conversations, newest first. Other tabs write them too, so each change reads what
 * is there, changes one conversation, and writes. */
export class Threads {
  /** What is kept when storage is switched off: as long as the page lives.
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

  /** Keeps a conversation as it is now, as the newest. @param {Thread} thread */
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
      return i === 0 || rest > 0; // the oldest go first
    });
    this.#kept = threads;
    try {
      localStorage.setItem(storageKey, JSON.stringify(threads));
      this.#stored = true;
    } catch {
      this.#stored = false; // switched off, or full of something else
    }
  }
}

/** @returns {Thread} */
export function newThread() {
  return { id: random(), threadID: "", at: Date.now(), turns: [] };
}

/** What a conversation is called: its first question. @param {Thread} thread */
export function titleOf(thread) {
  return thread.turns[0]?.question.replace(/\s+/g, " ").trim().slice(0, 120) || "Conversation";
}

/**
 * The body that asks the question of the thread's turn at that index. Of the past it
 * takes the newest answered turns, as much as fits: always the same for the same turn,
 * so that its key attaches to the same run.
 *
 * @param {Thread} thread
 * @param {number} index
 */
export function requestOf(thread, index) {
  const past = thread.turns.slice(0, index).filter((t) => t.answer !== "").slice(-mostMessages / 2);
  let size = past.reduce((n, t) => n + t.question.length + t.answer.length, 0);
  // Whole exchanges go, so that no answer is left without its question.
  while (size > mostHistory) {
    const oldest = /** @type {Turn} */ (past.shift());
    size -= oldest.question.length + oldest.answer.length;
  }
  const history = past.flatMap((t) => [{ role: "user", content: t.question }, { role: "assistant", content: t.answer }]);
  return { question: thread.turns[index].question, ...(history.length && { history }), ...(index > 0 && thread.threadID && { thread_id: thread.threadID }) };
}

/**
 * What was stored may be of another version, or somebody else's.
 *
 * @param {unknown} stored
 * @returns {Thread[]}
 */
function checked(stored) {
  /** @param {any} o @param {string[]} names */
  const texts = (o, ...names) => typeof o === "object" && o !== null && names.every((name) => typeof o[name] === "string");
  if (!Array.isArray(stored)) return [];
  return stored.filter((t) => texts(t, "id", "threadID") && Number.isFinite(t.at) && Array.isArray(t.turns) && t.turns.length <= mostTurns
    && t.turns.every((/** @type {any} */ turn) => texts(turn, "question", "key", "run", "answer") && Number.isFinite(turn.at)));
}

/** @param {Thread} thread */
export function full(thread) {
  return thread.turns.length >= mostTurns;
}
