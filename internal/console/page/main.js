// @ts-check
// The entry point of the page: it creates the parts and connects them.
import { Attachments } from "./attach.js";
import { Choices } from "./choices.js";
import { Client } from "./client.js";
import { Conversation } from "./conversation.js";
import { drawer } from "./drawer.js";
import { showExamples } from "./examples.js";
import { NotSent } from "./notsent.js";
import { Panel } from "./panel.js";
import { stickToEnd } from "./scroll.js";
import { ThreadList } from "./threadlist.js";
import { newThread, Threads, titleOf } from "./threads.js";
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
const root = byID("conversation");

/** @param {string} text */
const announce = (text) => void (byID("announcer").textContent = text);

const notSent = new NotSent();
const client = new Client(new Token());
const threads = new Threads();
/** @type {Set<string>} */
let knownTools = new Set();
const choices = new Choices(client, () => showExamples(knownTools, ask, choices.examples));
const panel = new Panel(client, announce, (tools) => {
  knownTools = tools;
  showExamples(tools, ask, choices.examples);
});
/** Sends what the reader answers to a run that waits.
 * @param {string} run
 * @param {object} answer
 */
const send = (run, answer) => {
  notSent.hide();
  return client.answer(run, answer);
};
const side = drawer("side", "side-open", "side-close");
drawer("panel", "panel-open", "panel-close");
const toEnd = stickToEnd(root);
const conversation = new Conversation(root, client, threads, { announce, load: (path) => client.json(path), send }, show);
const files = /** @type {HTMLInputElement} */ (byID("files"));
const attachments = new Attachments(byID("attached"), files, document.body, announce);
const list = new ThreadList((thread) => void forget(thread));

const drawList = () => list.show(threads.all(), conversation.thread.id, conversation.running);

let ran = false; // whether a run was in progress when show was called last

/** Updates everything that depends on the current conversation and on whether its run is in progress. */
function show() {
  const { current, thread } = conversation;
  const empty = thread.turns.length === 0;
  byID("welcome").hidden = !empty;
  document.title = empty ? "answerd" : `${titleOf(thread)} · answerd`;
  byID("title").textContent = empty ? "New conversation" : titleOf(thread);
  if (!empty && location.hash !== `#thread-${thread.id}`) history.replaceState(null, "", `#thread-${thread.id}`);
  drawList();
  sendButton.hidden = current !== undefined;
  stopButton.hidden = current === undefined;
  stopButton.disabled = false;
  if (ran && !current) {
    const last = thread.turns.at(-1);
    if (last && !last.answer && field.value === "") field.value = last.question; // to ask it again or to change it
    void panel.load(); // the state of a server may have changed during a call
  }
  // At the end of a run, move the focus only if it is on a button that is now hidden: the person may be
  // selecting text.
  if ((current && !ran) || document.activeElement?.closest("[hidden]")) field.focus({ preventScroll: true });
  if (!current) notSent.hide();
  ran = current !== undefined;
}

/**
 * @param {string} question
 * @param {import("./attach.js").Attachment[]} [files]
 */
function ask(question, files = []) {
  void conversation.ask(question, { files, agent: choices.agent, model: choices.model });
  toEnd();
}

/** Lets the agent and the model of the last question answer the next one. */
function chooseLast() {
  const last = conversation.thread.turns.at(-1);
  if (last) choices.choose(last);
}

/** Opens the conversation in the URL's fragment, or a new one if there is none. */
function openAddress() {
  const id = location.hash.startsWith("#thread-") ? location.hash.slice("#thread-".length) : "";
  if (id !== "" && id === conversation.thread.id) return;
  ran = false;
  conversation.open(threads.get(id) ?? newThread());
  chooseLast();
  toEnd();
  side.close();
}

function startAfresh() {
  history.pushState(null, "", location.pathname + location.search);
  openAddress();
  announce("A new conversation");
  field.focus();
}

/** Deletes a conversation from this browser, and its runs from the service.
 * @param {import("./threads.js").Thread} thread */
async function forget(thread) {
  threads.remove(thread.id);
  const dropped = conversation.drop(thread);
  if (thread.id === conversation.thread.id) startAfresh();
  else show();
  announce("The conversation is deleted");
  await dropped;
  await Promise.allSettled(thread.turns.filter((t) => t.run).map((t) => client.forget(t.run)));
}

composer.addEventListener("submit", (event) => {
  event.preventDefault();
  if (conversation.current) return notSent.show(conversation.current.view);
  const question = field.value.trim();
  if (question === "") return;
  field.value = "";
  ask(question, attachments.take());
});
field.addEventListener("keydown", (event) => {
  // Enter also ends the composition of an input method, which must not send the question.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  composer.requestSubmit();
});
field.addEventListener("input", () => notSent.hide());
byID("attach").addEventListener("click", () => files.click());
stopButton.addEventListener("click", () => {
  stopButton.disabled = true;
  void conversation.stop();
});
byID("fresh").addEventListener("click", startAfresh);
byID("threads").addEventListener("click", (event) => {
  if (event.target instanceof Element && event.target.closest("a")) side.close(); // without a hashchange event, if the URL stays the same
});
byID("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment of the URL identifies the conversation
  field.focus();
});
window.addEventListener("hashchange", openAddress);
window.addEventListener("popstate", openAddress);
window.addEventListener("storage", drawList);
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && !conversation.current) void panel.load();
});

openAddress();
void panel.load();
void choices.load().then(chooseLast);
