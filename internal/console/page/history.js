// @ts-check
// What was said on this page, as it goes along with the next question.

const mostMessages = 16; // what the service looks at, if it is not set otherwise
const mostText = 200_000; // characters; the service takes 1 MiB for a whole request

/** The conversation so far. */
export class History {
  /** @type {{role: "user" | "assistant", content: string}[]} */
  #messages = [];
  #threadID = "";

  /**
   * Keeps a question that got an answer, be it only half of one.
   *
   * @param {string} question
   * @param {string} answer
   * @param {string} threadID
   */
  add(question, answer, threadID) {
    this.#threadID = threadID;
    this.#messages.push({ role: "user", content: question }, { role: "assistant", content: answer });
  }

  clear() {
    this.#messages = [];
    this.#threadID = "";
  }

  /**
   * The body that asks question. Of the past it takes the newest, as much as fits.
   *
   * @param {string} question
   */
  request(question) {
    let from = Math.max(0, this.#messages.length - mostMessages);
    let size = this.#messages.slice(from).reduce((n, m) => n + m.content.length, 0);
    // Whole exchanges go, so that no answer is left without its question.
    for (; size > mostText; from += 2) size -= this.#messages[from].content.length + this.#messages[from + 1].content.length;
    const history = this.#messages.slice(from);
    return { question, ...(history.length && { history }), ...(this.#threadID && { thread_id: this.#threadID }) };
  }
}
