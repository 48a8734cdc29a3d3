// @ts-check
// The page: joins its parts and keeps the one thing that they share, whether a
// question is being answered.
import { AnswerView } from "./answer.js";
import { Client, Problem } from "./client.js";
import { drawer } from "./drawer.js";
import { showExamples } from "./examples.js";
import { History } from "./history.js";
import { Panel } from "./panel.js";
import { follow } from "./run.js";
import { stickToEnd } from "./scroll.js";
import { Token } from "./token.js";

/**
 * @template {HTMLElement} T
 * @param {string} id of an element that index.html has
 * @returns {T}
 */
const byID = (id) => /** @type {T} */ (document.getElementById(id));

const composer = /** @type {HTMLFormElement} */ (byID("composer"));
const field = /** @type {HTMLTextAreaElement} */ (byID("question"));
const sendButton = /** @type {HTMLButtonElement} */ (byID("send"));
const stopButton = /** @type {HTMLButtonElement} */ (byID("stop"));
const freshButton = /** @type {HTMLButtonElement} */ (byID("fresh"));
const conversation = byID("conversation");

/** @param {string} text */
const announce = (text) => void (byID("announcer").textContent = text);

const client = new Client(new Token());
const history = new History();
const panel = new Panel(client, announce, (tools) => showExamples(tools, ask));
const toEnd = stickToEnd(conversation);

/** @typedef {{view: AnswerView, left: AbortController}} Run left is when the page follows it no more */

/** The run that goes on now; null when the page is free for a question.
 * @type {Run | null} */
let current = null;

/** @param {string} question */
async function ask(question) {
  if (current || question.trim() === "") return;
  const view = new AnswerView(question, conversation.childElementCount + 1, announce, (path) => client.json(path), (run, answer) => client.answer(run, answer));
  const left = new AbortController();
  show({ view, left });
  conversation.append(view.root);
  toEnd();
  try {
    for await (const event of follow(client, history.request(question), left.signal)) view.apply(event);
  } catch (error) {
    view.fail(left.signal.aborted ? left.signal.reason : error);
  }
  view.close();
  if (view.answer) history.add(question, view.answer, view.threadID);
  else if (field.value === "") field.value = question; // to ask it again, or otherwise
  show(null);
  void panel.load(); // a call may have found a server down, or up again
}

/** @param {Run | null} run */
function show(run) {
  current = run;
  byID("welcome").hidden = true;
  sendButton.hidden = run !== null;
  stopButton.hidden = run === null;
  stopButton.disabled = false;
  stopButton.textContent = "Stop";
  freshButton.disabled = run !== null;
  // The end of a run takes the focus only from a button that went away: the reader
  // may be selecting text.
  if (run || document.activeElement?.closest("[hidden]")) field.focus();
}

/** Ends the run at the service, which then says so in the stream. Where that cannot be
 * asked, the page only stops following; a run that nobody reads is cancelled there. */
async function stop() {
  if (!current) return;
  const { view, left } = current;
  stopButton.disabled = true;
  stopButton.textContent = "Stopping";
  try {
    if (!view.runID) throw new Problem(0, { code: "stopped", detail: "Stopped before the run had begun." });
    await client.cancel(view.runID);
  } catch (error) {
    const cause = error instanceof Problem ? error : new Problem(0, { detail: "The service cannot be reached. It ends a run that nobody follows." });
    left.abort(cause);
  }
}

function startAfresh() {
  history.clear();
  conversation.replaceChildren();
  byID("welcome").hidden = false;
  freshButton.disabled = true;
  announce("A new conversation");
  field.focus();
}

composer.addEventListener("submit", (event) => {
  event.preventDefault();
  if (current) return;
  const question = field.value.trim();
  field.value = "";
  void ask(question);
});
field.addEventListener("keydown", (event) => {
  // Enter that ends an input method's composition is not a wish to send.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  composer.requestSubmit();
});
stopButton.addEventListener("click", () => void stop());
freshButton.addEventListener("click", startAfresh);
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && !current) void panel.load();
});

drawer();
void panel.load();
