// @ts-check
// The entry point of the page: it creates the parts and connects them.
import { Attachments } from "./attach.js";
import { Choices } from "./choices.js";
import { Client, Problem } from "./client.js";
import { Conversation } from "./conversation.js";
import { drawer } from "./drawer.js";
import { composes } from "./element.js";
import { showExamples } from "./examples.js";
import { NotSent } from "./notsent.js";
import { Panel } from "./panel.js";
import { stickToEnd } from "./scroll.js";
import { ThreadList } from "./threadlist.js";
import { Threads } from "./threads.js";
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
const threads = new Threads(client);
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
const conversation = new Conversation(root, client, threads, { announce, load: (path) => client.exact(path), send, exported: (run) => client.exported(run) }, show);
const files = /** @type {HTMLInputElement} */ (byID("files"));
const attachments = new Attachments(byID("attached"), files, document.body, announce);
const list = new ThreadList(threads, announce, renamed, forget);

let ran = false; // whether a run was in progress when show was called last
let listed = ""; // what the list depends on, when it was read last

/** Updates everything that depends on the current conversation and on whether its run is in progress. */
function show() {
  const { current, thread } = conversation;
  const empty = thread.count === 0;
  byID("welcome").hidden = !empty;
  document.title = empty ? "answerd" : `${thread.title} · answerd`;
  byID("title").textContent = empty ? "New conversation" : thread.title;
  if (!empty && location.hash !== addressOf(thread.id)) history.replaceState(null, "", addressOf(thread.id));
  list.show(thread.id, conversation.running);
  const runs = JSON.stringify([...conversation.running.values()].map((r) => r.turn.run));
  if (runs !== listed) void list.load();
  listed = runs;
  sendButton.hidden = current !== undefined;
  stopButton.hidden = current === undefined;
  stopButton.disabled = false;
  if (ran && !current) {
    const last = thread.turns.at(-1);
    if (last && !last.content && field.value === "") {
      field.value = last.question; // to ask it again or to change it
      attachments.putBack(conversation.takeFiles(last));
    }
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

/** Lets the agent that answered last answer the next question. */
function chooseLast() {
  if (conversation.thread.agent) choices.choose(conversation.thread);
}

/** @param {string} id of a conversation */
function addressOf(id) {
  return `#thread-${encodeURIComponent(id)}`;
}

/** Opens the conversation in the URL's fragment, or a new one if there is none. */
function openAddress() {
  const id = idOf(location.hash);
  if (id !== "" && id === conversation.thread.id) return;
  ran = false;
  void conversation.open(id).then(() => {
    chooseLast();
    toEnd();
  });
  side.close();
}

/** @param {string} hash @returns {string} the conversation's id; "" if the fragment is none */
function idOf(hash) {
  if (!hash.startsWith("#thread-")) return "";
  try {
    return decodeURIComponent(hash.slice("#thread-".length));
  } catch {
    return "";
  }
}

function startAfresh() {
  history.pushState(null, "", location.pathname + location.search);
  openAddress();
  announce("A new conversation");
  field.focus();
}

/** Deletes a conversation, with its runs. One that the service no longer has is gone already.
 * @param {string} id */
async function forget(id) {
  const current = id === conversation.thread.id;
  conversation.drop(id);
  try {
    await threads.remove(id);
  } catch (error) {
    if (!(error instanceof Problem && error.status === 404)) {
      if (current) void conversation.open(id);
      throw error;
    }
  }
  if (current) {
    startAfresh();
    side.close();
  }
}

/** @param {string} id @param {string} title */
function renamed(id, title) {
  if (id !== conversation.thread.id) return;
  conversation.thread.title = title;
  show();
}

/** Leaves nothing of the person on the page who is signed out, or whose token is forgotten. */
function signedOut() {
  threads.keep(null);
  for (const id of conversation.running.keys()) conversation.drop(id);
  list.clear();
  startAfresh();
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
  if (event.key !== "Enter" || event.shiftKey || composes(event)) return;
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
byID("token-forget").addEventListener("click", signedOut);
window.addEventListener("hashchange", openAddress);
window.addEventListener("popstate", openAddress);
window.addEventListener("storage", () => void list.load());
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState !== "visible") return;
  if (!conversation.current) void panel.load();
  void list.load();
});

openAddress();
void panel.load();
void choices.load().then(chooseLast);
