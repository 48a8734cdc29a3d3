// @ts-check
// The conversation on the page: its questions in order, and the run that may be in progress.
import { AnswerView } from "./answer.js";
import { Problem } from "./client.js";
import { asking, follow, following } from "./run.js";
import { full, newThread, random, requestOf } from "./threads.js";

/** @typedef {import("./threads.js").Thread} Thread */
/** @typedef {import("./threads.js").Turn} Turn */
/** A run in progress. left is aborted when the page stops following it.
 * @typedef {{thread: Thread, view: AnswerView, left: AbortController}} Run
 */

const stillOnItsWay = 60_000; // ms; an older question without a run was not received

/** Asks questions, shows earlier ones, and stops runs. */
export class Conversation {
  /** @type {Thread} */
  thread = newThread();
  /** Runs in progress, by the id of their thread. The page also follows those of other conversations,
   * because the service cancels a run without readers.
   * @type {Map<string, Run>} */
  running = new Map();
  #opened = new AbortController(); // aborted when another conversation is opened
  #root;
  #client;
  #threads;
  #page;
  #changed;

  /** @type {WeakMap<Turn, import("./attach.js").Attachment[]>} the files of questions that this page has asked */
  #files = new WeakMap();

  /**
   * @param {HTMLElement} root
   * @param {import("./client.js").Client} client
   * @param {import("./threads.js").Threads} threads
   * @param {import("./answer.js").Page} page
   * @param {() => void} changed is called when a run begins or ends, or another thread is opened
   */
  constructor(root, client, threads, page, changed) {
    this.#root = root;
    this.#client = client;
    this.#threads = threads;
    this.#page = page;
    this.#changed = changed;
  }

  /** The run in progress in this conversation; undefined if a question can be asked. */
  get current() {
    return this.running.get(this.thread.id);
  }

  /**
   * @param {string} question
   * @param {{files: import("./attach.js").Attachment[], agent: string, model: string}} how agent and model
   *   are ids; "" for the default ones
   */
  async ask(question, { files, agent, model }) {
    if (this.current || question.trim() === "") return;
    if (full(this.thread)) this.open(newThread());
    // This browser does not store files. A question with files is not sent again after a reload, hence
    // its time.
    const at = files.length ? 0 : Date.now();
    const turn = { question, key: random(), at, run: "", answer: "", ...(agent && { agent }), ...(model && { model }) };
    if (files.length) this.#files.set(turn, files);
    this.thread.turns.push(turn);
    await this.#run(this.thread, turn);
  }

  /**
   * Shows another conversation. A run of the current one continues. The questions appear at once and in
   * order; their steps are read from the service.
   *
   * @param {Thread} thread
   */
  open(thread) {
    this.#opened.abort(new DOMException("another conversation was opened", "AbortError"));
    this.#opened = new AbortController();
    const running = this.running.get(thread.id);
    this.thread = thread = running?.thread ?? thread;
    this.#root.replaceChildren();
    const last = thread.turns.at(-1);
    for (const turn of thread.turns) {
      if (turn === last && running) this.#root.append(running.view.root);
      else if (turn === last && this.#mayGoOn(turn)) void this.#run(thread, turn);
      else void this.#again(turn);
    }
    this.#changed();
  }

  /** @param {Turn} turn without an answer yet, that may get one */
  #mayGoOn(turn) {
    return turn.answer === "" && (turn.run !== "" || (turn.key !== "" && Date.now() - turn.at < stillOnItsWay));
  }

  /**
   * Asks a question, or resumes its run, and shows the run until it ends.
   *
   * @param {Thread} thread
   * @param {Turn} turn
   */
  async #run(thread, turn) {
    const view = this.#add(turn, true);
    const left = new AbortController();
    this.running.set(thread.id, { thread, view, left });
    this.#keep(thread);
    this.#changed();
    const files = this.#files.get(turn);
    if (files) view.note(`Attached: ${files.map((f) => f.name).join(", ")}`);
    const request = requestOf(thread, thread.turns.indexOf(turn));
    const source = turn.run ? following(turn.run) : asking(files ? { ...request, attachments: files } : request, turn.key);
    try {
      for await (const event of follow(this.#client, source, left.signal)) {
        view.apply(event);
        if (event.type !== "start") continue;
        [turn.run, thread.threadID] = [view.runID, view.threadID];
        this.#keep(thread);
      }
    } catch (error) {
      view.fail(left.signal.aborted ? left.signal.reason : error);
      if (!turn.run) turn.key = ""; // it was refused or stopped, so do not send it again
    }
    view.close();
    turn.answer = view.answer;
    if (!this.running.delete(thread.id)) return; // drop was called
    this.#keep(thread);
    this.#changed();
  }

  /** Shows a turn whose run has ended. @param {Turn} turn */
  async #again(turn) {
    const view = this.#add(turn, false);
    const opened = this.#opened.signal;
    try {
      if (!turn.run) throw new Problem(404, {});
      for await (const event of follow(this.#client, following(turn.run), opened)) view.apply(event);
    } catch (error) {
      if (opened.aborted) return;
      // The service no longer has the run or cannot be reached. This browser has the answer.
      if (view.runID) view.fail(error);
      else if (turn.answer) view.recall(turn.answer);
      else view.note(turn.run ? "This run is no longer kept." : "This question was not sent.");
    }
    view.close();
  }

  /**
   * @param {Turn} turn
   * @param {boolean} live
   */
  #add(turn, live) {
    const view = new AnswerView(turn.question, this.#root.childElementCount + 1, this.#page, live);
    this.#root.append(view.root);
    return view;
  }

  /** Stores the thread. @param {Thread} thread */
  #keep(thread) {
    thread.at = Date.now();
    this.#threads.put(thread);
  }

  /** Cancels the run. The stream then has its terminal event. If the service cannot be reached, the page
   * only stops following the run, and the service cancels it because it has no readers. */
  async stop(run = this.current) {
    if (!run) return;
    const { view, left } = run;
    try {
      if (!view.runID) throw new Problem(0, { code: "stopped", detail: "Stopped before the run had begun." });
      await this.#client.cancel(view.runID);
    } catch (error) {
      left.abort(error instanceof Problem ? error : new Problem(0, { detail: "The service cannot be reached. It ends a run that nobody follows." }));
    }
  }

  /** Cancels the run of a conversation that is deleted, so that nothing of it is stored.
   * @param {Thread} thread */
  async drop(thread) {
    const run = this.running.get(thread.id);
    if (!run) return;
    this.running.delete(thread.id);
    await this.stop(run);
    run.left.abort(new Problem(0, { code: "deleted", detail: "The conversation was deleted." }));
  }
}
