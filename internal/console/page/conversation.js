// @ts-check
// The conversation on the page: its questions in order, and the run that may be in progress.
import { AnswerView } from "./answer.js";
import { Problem } from "./client.js";
import { element } from "./element.js";
import { asking, follow, following } from "./run.js";
import { newThread, random, titleOf } from "./threads.js";

/** @typedef {import("./threads.js").Thread} Thread */
/** @typedef {import("./threads.js").Turn} Turn */
/** @typedef {import("./threads.js").Pending} Pending */
/** @typedef {import("./attach.js").Attachment} Attachment */
/** A run in progress. left is aborted when the page stops following it.
 * @typedef {{thread: Thread, turn: Turn, view: AnswerView, left: AbortController}} Run
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
  /** @type {WeakMap<Turn, AnswerView>} */
  #views = new WeakMap();
  /** The files of questions that were asked on this page and have no answer yet.
   * @type {WeakMap<Turn, Attachment[]>} */
  #files = new WeakMap();
  #older = element("button", { type: "button", class: "quiet older" }, "Show earlier questions");

  /**
   * @param {HTMLElement} root
   * @param {import("./client.js").Client} client
   * @param {import("./threads.js").Threads} threads
   * @param {import("./answer.js").Page} page
   * @param {() => void} changed is called when a run begins, is received or ends, and when a thread is
   *   opened or has been read
   */
  constructor(root, client, threads, page, changed) {
    this.#root = root;
    this.#client = client;
    this.#threads = threads;
    this.#page = page;
    this.#changed = changed;
    this.#older.addEventListener("click", () => void this.#showOlder());
  }

  /** The run in progress in this conversation; undefined if a question can be asked. */
  get current() {
    return this.running.get(this.thread.id);
  }

  /**
   * @param {string} question
   * @param {{files: Attachment[], agent: string, model: string}} how agent and model
   *   are ids; "" for the default ones
   */
  async ask(question, { files, agent, model }) {
    if (this.current || question.trim() === "") return;
    const { thread } = this;
    const request = { question, thread_id: thread.id, ...(agent && { agent }), ...(model && { model }), ...(files.length && { attachments: files }) };
    const key = random();
    // This browser does not store files. A question with files is not sent again after a reload.
    this.#threads.keep(files.length ? null : { thread: thread.id, key, at: Date.now(), request });
    await this.#send(thread, request, key, files);
  }

  /** Returns the files of a question that got no answer, once. @param {Turn} turn */
  takeFiles(turn) {
    const files = this.#files.get(turn) ?? [];
    this.#files.delete(turn);
    return files;
  }

  /**
   * Shows another conversation. A run of the current one continues. The questions and answers come from
   * the service, and the steps of their runs as long as it has them.
   *
   * @param {string} id "" for a new one
   */
  async open(id) {
    this.#opened.abort(new DOMException("another conversation was opened", "AbortError"));
    this.#opened = new AbortController();
    const { signal } = this.#opened;
    const running = this.running.get(id);
    this.thread = running?.thread ?? newThread(id || undefined);
    this.#root.replaceChildren();
    if (running) this.#root.append(running.view.root);
    this.#changed();
    if (!id) return;
    const status = element("p", { class: "status" }, "Loading");
    if (!running) this.#root.append(status);
    try {
      const read = await this.#threads.read(id, "", signal);
      status.remove();
      this.#show(read, running);
    } catch (error) {
      if (signal.aborted) return;
      status.remove();
      this.#failed(id, error, running);
    }
    this.#changed();
  }

  /**
   * Shows what was read of the current conversation, around the run that this page follows already.
   *
   * @param {Thread} read
   * @param {Run | undefined} running
   */
  #show(read, running) {
    const { thread } = this;
    const turns = running ? read.turns.filter((t) => t.run !== running.turn.run) : read.turns;
    const count = Math.max(read.count, turns.length);
    Object.assign(thread, read, { turns: running ? [...turns, running.turn] : turns, count: count + (running && turns.length === read.turns.length ? 1 : 0) });
    const first = thread.count - thread.turns.length + 1;
    const pending = this.#threads.pending(thread.id);
    const again = pending && !running && Date.now() - pending.at < stillOnItsWay;
    const views = turns.map((turn, i) => this.#turn(thread, turn, first + i, turn === turns.at(-1) && !running && !again));
    this.#root.prepend(...(thread.before ? [this.#older] : []), ...views);
    running?.view.number(thread.count);
    if (pending && !running) this.#sendAgain(thread, pending);
  }

  /**
   * @param {string} id of the conversation that could not be read
   * @param {unknown} error
   * @param {Run | undefined} running
   */
  #failed(id, error, running) {
    const missing = error instanceof Problem && error.status === 404;
    const pending = this.#threads.pending(id);
    if (running) return; // its run is on the page; it may not have been received yet
    if (missing && pending) return this.#sendAgain(this.thread, pending);
    if (missing) {
      this.thread = newThread();
      this.#root.append(element("p", { class: "notice", role: "status" }, "This conversation does not exist, or is no longer kept."));
      return;
    }
    const again = element("button", { type: "button", class: "link" }, "Try again");
    again.addEventListener("click", () => void this.open(id));
    this.#root.append(element("p", { class: "problem", role: "alert" }, "The conversation cannot be loaded. ", error instanceof Problem ? error.message : "The service cannot be reached.", " ", again));
  }

  /** Puts the questions before the first one on the page. What the reader looks at stays where it is. */
  async #showOlder() {
    const { thread } = this;
    const { signal } = this.#opened;
    this.#older.disabled = true;
    try {
      const read = await this.#threads.read(thread.id, thread.before, signal);
      thread.before = read.before;
      const first = thread.count - thread.turns.length - read.turns.length + 1;
      thread.turns.unshift(...read.turns);
      const views = read.turns.map((turn, i) => this.#turn(thread, turn, Math.max(first + i, 1), false));
      this.#older.after(...views);
      if (!thread.before) this.#older.remove();
      views[0]?.querySelector("h2")?.focus();
      this.#page.announce(`${views.length} earlier questions are shown`);
    } catch (error) {
      if (!signal.aborted) this.#page.announce(error instanceof Problem ? error.message : "The service cannot be reached.");
    }
    this.#older.disabled = false;
  }

  /**
   * Returns the view of a turn of the thread and begins to fill it.
   *
   * @param {Thread} thread
   * @param {Turn} turn
   * @param {number} number
   * @param {boolean} newest whether its run may be in progress
   */
  #turn(thread, turn, number, newest) {
    const live = newest && (turn.status === "running" || turn.status === "suspended");
    const view = new AnswerView(turn.question, number, this.#page, live);
    this.#views.set(turn, view);
    if (turn.files.length) view.note(`Attached: ${turn.files.join(", ")}`);
    if (live) void this.#run(thread, turn, view, following(turn.run));
    else void this.#again(turn, view);
    return view.root;
  }

  /**
   * Sends a question that was asked before the page was loaded. If the service has it already, the key
   * attaches to its run.
   *
   * @param {Thread} thread
   * @param {Pending} pending
   */
  #sendAgain(thread, { key, at, request }) {
    if (Date.now() - at < stillOnItsWay) return void this.#send(thread, request, key, []);
    this.#threads.keep(null);
    const view = this.#add(request.question, ++thread.count, false);
    view.note("This question was not sent.");
    view.close();
  }

  /**
   * @param {Thread} thread
   * @param {{question: string}} request
   * @param {string} key
   * @param {Attachment[]} files
   */
  async #send(thread, request, key, files) {
    /** @type {Turn} */
    const turn = { question: request.question, run: "", status: "running", content: "", calls: [], files: files.map((f) => f.name) };
    this.#files.set(turn, files);
    if (this.thread === thread && thread.turns.length === 0) this.#root.replaceChildren(); // what was said about another one
    thread.turns.push(turn);
    thread.title ||= titleOf(turn.question);
    const view = this.#add(turn.question, ++thread.count, true);
    if (files.length) view.note(`Attached: ${turn.files.join(", ")}`);
    this.#threads.asked(thread);
    await this.#run(thread, turn, view, asking(request, key));
  }

  /**
   * Shows a run until it ends.
   *
   * @param {Thread} thread
   * @param {Turn} turn
   * @param {AnswerView} view
   * @param {import("./run.js").Source} source
   */
  async #run(thread, turn, view, source) {
    const left = new AbortController();
    this.running.set(thread.id, { thread, turn, view, left });
    this.#changed();
    try {
      for await (const event of follow(this.#client, source, left.signal)) {
        view.apply(event);
        if (event.type !== "start") continue;
        turn.run = view.runID;
        this.#removeTwin(thread, turn);
        this.#received(thread);
      }
    } catch (error) {
      view.fail(left.signal.aborted ? left.signal.reason : error);
      if (!turn.run) this.#received(thread); // it was refused or stopped, so it is not sent again
    }
    view.close();
    turn.content = view.answer;
    if (turn.content) this.#files.delete(turn);
    if (this.running.delete(thread.id)) this.#changed();
  }

  /** Removes what was read of a run that a question, sent again, has turned out to be.
   * @param {Thread} thread @param {Turn} turn */
  #removeTwin(thread, turn) {
    const twin = thread.turns.find((t) => t !== turn && t.run === turn.run);
    if (!twin) return;
    this.#views.get(twin)?.root.remove();
    thread.turns = thread.turns.filter((t) => t !== twin);
    this.running.get(thread.id)?.view.number(--thread.count);
  }

  /** Forgets the question that was kept for a thread. @param {Thread} thread */
  #received(thread) {
    if (this.#threads.pending(thread.id)) this.#threads.keep(null);
    this.#changed();
  }

  /** Shows a turn whose run has ended. @param {Turn} turn @param {AnswerView} view */
  async #again(turn, view) {
    const opened = this.#opened.signal;
    try {
      for await (const event of follow(this.#client, following(turn.run), opened)) view.apply(event);
    } catch (error) {
      if (opened.aborted) return;
      // The service no longer has the events, or cannot be reached. The thread has the answer.
      if (view.runID) view.fail(error);
      else view.recall(turn.content, turn.calls, turn.status);
    }
    view.close();
  }

  /**
   * @param {string} question
   * @param {number} number
   * @param {boolean} live
   */
  #add(question, number, live) {
    const view = new AnswerView(question, number, this.#page, live);
    this.#root.append(view.root);
    return view;
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
      left.abort(error instanceof Problem ? error : new Problem(0, { detail: "The service cannot be reached. It cancels a run that nobody reads." }));
    }
  }

  /** Stops following the run of a conversation that is deleted, which cancels it. @param {string} id */
  drop(id) {
    const run = this.running.get(id);
    if (!run) return;
    this.running.delete(id);
    if (this.#threads.pending(id)) this.#threads.keep(null);
    run.left.abort(new Problem(0, { code: "deleted", detail: "The conversation was deleted." }));
  }
}
