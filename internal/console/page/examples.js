// @ts-check
import { element } from "./element.js";

/** Questions to begin with, for a service that has these tools: the demo's. Elsewhere
 * a made-up question would promise what nobody can keep. */
const examples = [
  { question: "What time is it in Tokyo, and what is 12.5 * 8?", shows: "two tools at once", tools: ["current_time", "calculate"] },
  { question: "Write a slow report about tea", shows: "progress, and stop", tools: ["slow_report"] },
  { question: "Delete note 2", shows: "a call that needs your approval", tools: ["delete_note"] },
  { question: "Book a table", shows: "a tool that asks you", tools: ["book_table"] },
  { question: "Connect my calendar", shows: "a tool that sends you to a page", tools: ["connect_calendar"] },
  { question: "Call the flaky service", shows: "a failure", tools: ["flaky_service"] },
];

/**
 * @param {Set<string>} tools that there are
 * @param {(question: string) => void} ask
 * @param {string[]} own the examples of the chosen agent, which come first
 */
export function showExamples(tools, ask, own = []) {
  const list = /** @type {HTMLElement} */ (document.querySelector("#examples"));
  const fitting = own.length > 0 ? own.map((question) => ({ question, shows: "" })) : examples.filter((e) => e.tools.every((t) => tools.has(t)));
  list.hidden = fitting.length === 0;
  list.replaceChildren(
    ...fitting.map(({ question, shows }) => {
      const button = element("button", { type: "button", class: "example" }, element("span", { class: "example-question" }, question), " ", element("span", { class: "small" }, shows));
      button.addEventListener("click", () => ask(question));
      return element("li", {}, button);
    }),
  );
}
