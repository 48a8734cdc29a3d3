// @ts-check
// What a run waits for the reader to decide: the approval of a call, what an MCP server
// asks, or more of a limit. All of it is hostile text about to be agreed to.
import { element, visible } from "./element.js";
import { fieldsOf } from "./fields.js";
import { parseExact } from "./json.js";

/** @typedef {import("./run.js").RunEvent} RunEvent */
/** @typedef {(input: object) => Promise<unknown>} Send gives the answer; it throws a Problem */

/**
 * The form for one approval_required event.
 *
 * @param {RunEvent} event
 * @param {Send} send
 */
export function approvalForm(event, send) {
  const written = JSON.stringify(event.args, null, 2);
  const args = element("textarea", { rows: 6, spellcheck: "false", "aria-label": `Arguments of ${event.tool} to approve` });
  args.value = written;
  const reason = element("input", { type: "text", maxlength: 500 });
  const approve = element("button", { type: "submit" }, "Approve");
  const refuse = element("button", { type: "button", class: "quiet" }, "Refuse");
  const form = question(event, whoAsks(event), [
    element("details", {}, element("summary", { class: "small" }, "Change the arguments"), args),
    element("label", { class: "field" }, element("span", {}, "Reason, for the model"), reason),
  ], [approve, refuse]);
  const because = () => (reason.value ? { reason: reason.value } : {});
  form.onAnswer(approve, () => {
    const changed = args.value === written ? {} : { args: object(args.value) };
    return send({ id: event.interrupt_id, approved: true, ...because(), ...changed });
  });
  form.onAnswer(refuse, () => send({ id: event.interrupt_id, approved: false, ...because() }));
  return form.root;
}

/**
 * The form for one elicitation event.
 *
 * @param {RunEvent} event
 * @param {Send} send
 */
export function elicitationForm(event, send) {
  const url = event.mode === "url" ? webAddress(event.url) : null;
  const fields = fieldsOf(event.schema);
  const accept = element("button", { type: "submit" }, event.mode === "url" ? "I have done it" : "Send");
  const decline = element("button", { type: "button", class: "quiet" }, "Decline");
  const form = question(event, whoAsks(event), event.mode === "url" ? address(event.url, url) : [element("div", { class: "fields" }, ...fields.map((f) => f.root))], [accept, decline]);
  form.onAnswer(accept, () => {
    const content = event.mode === "url" ? {} : { content: Object.fromEntries(fields.flatMap((f) => f.entry())) };
    return send({ id: event.interrupt_id, action: "accept", ...content });
  });
  form.onAnswer(decline, () => send({ id: event.interrupt_id, action: "decline" }));
  return form.root;
}

/**
 * The form for one budget_required event.
 *
 * @param {RunEvent} event
 * @param {string} name of the limit, as people read it
 * @param {Send} send
 */
export function limitForm(event, name, send) {
  const whole = event.limit !== "seconds" && event.limit !== "cost";
  const reached = Math.max(event.max, event.used);
  // Whether it is enough, and not beyond the operator's own limit, the service says.
  const most = element("input", { type: "number", required: true, min: whole ? Math.floor(reached) + 1 : reached, step: whole ? 1 : "any" });
  most.value = String(2 * reached);
  const reason = element("input", { type: "text", maxlength: 500 });
  const allow = element("button", { type: "submit" }, "Allow more");
  const deny = element("button", { type: "button", class: "quiet" }, "Deny");
  const form = question(event, "The run waits for you", [element("div", { class: "fields" },
    element("label", { class: "field" }, element("span", {}, `New limit of ${name}`), most),
    element("label", { class: "field" }, element("span", {}, "Reason (optional)"), reason))], [allow, deny]);
  const because = () => (reason.value ? { reason: reason.value } : {});
  form.onAnswer(allow, () => send({ id: event.interrupt_id, approved: true, ...because(), args: { max: Number(most.value) } }));
  form.onAnswer(deny, () => send({ id: event.interrupt_id, approved: false, ...because() }));
  return form.root;
}

/** The time until which an answer counts, with its date unless that is today. @param {number} at ms since 1970 */
function deadline(at) {
  const date = new Date(at);
  const today = date.toDateString() === new Date().toDateString();
  return today ? date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }) : date.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}

/** @param {RunEvent} event of a call */
function whoAsks(event) {
  return `${event.tool} of ${event.server} waits for you`;
}

/**
 * @param {RunEvent} event
 * @param {string} who waits, as the beginning of a sentence
 * @param {Node[]} parts
 * @param {HTMLButtonElement[]} buttons
 */
function question(event, who, parts, buttons) {
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  const root = element("form", { class: "ask", autocomplete: "off" },
    element("p", { class: "ask-message" }, visible(event.message)),
    element("p", { class: "small" }, `${who} until ${deadline(event.expires_at)}.`),
    ...parts, problem, element("div", { class: "row" }, ...buttons));
  /** @type {() => Promise<void>} of the button that Enter stands for */
  let submit = async () => {};
  root.addEventListener("submit", (e) => {
    e.preventDefault();
    void submit();
  });
  /**
   * @param {HTMLButtonElement} button
   * @param {() => Promise<unknown>} answer
   */
  function onAnswer(button, answer) {
    const act = async () => {
      for (const b of buttons) b.disabled = true;
      problem.hidden = true;
      try {
        await answer(); // the form goes with the event that says how it was answered
      } catch (error) {
        problem.textContent = error instanceof Error && error.message ? error.message : "The service cannot be reached.";
        problem.hidden = false;
        for (const b of buttons) b.disabled = false;
      }
    };
    if (button.type === "submit") submit = act;
    else button.addEventListener("click", () => void act());
  }
  return { root, onAnswer };
}

/**
 * The reader goes there on his own account: the whole address is shown, its host first.
 *
 * @param {string} text
 * @param {URL | null} url
 */
function address(text, url) {
  if (!url) return [element("p", { class: "problem" }, "The address cannot be used: ", visible(text))];
  const link = element("a", { href: url.href, class: "ask-link", target: "_blank", rel: "noopener noreferrer nofollow" }, `Open ${url.host}`);
  return [element("p", {}, link), element("p", { class: "small" }, url.href)];
}

/** @param {string} text */
function webAddress(text) {
  const url = URL.canParse(text) ? new URL(text) : null;
  return url && /^https?:$/.test(url.protocol) && !url.username && !url.password ? url : null;
}

/** @param {string} text */
function object(text) {
  try {
    const value = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return parseExact(text);
  } catch {
    // Told below, as is JSON that is no object.
  }
  throw new Error("The arguments are not a JSON object.");
}
