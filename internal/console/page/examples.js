// @ts-check
import { element } from "./element.js";

/** Questions to begin with, for a service that has these tools: the demo's. Elsewhere
 * a made-up question would promise what nobody can keep. */
const examples = [
  { question: "What time is it in Tokyo, and what is 12.5 * 8?", tools: ["current_time", "calculate"] },
  { question: "How does resume work in answerd?", tools: ["search_docs"] },
  { question: "Write a slow report about tea", tools: ["slow_report"] },
  { question: "Call the flaky service", tools: ["flaky_service"] },
];

/**
 * @param {Set<string>} tools that there are
 * @param {(question: string) => void} ask
 */
export function showExamples(tools, ask) {
  const list = /** @type {HTMLElement} */ (document.querySelector("#examples"));
  const fitting = examples.filter((e) => e.tools.every((t) => tools.has(t)));
  list.hidden = fitting.length === 0;
  list.replaceChildren(
    ...fitting.map(({ question }) => {
      const button = element("button", { type: "button", class: "example" }, question);
      button.addEventListener("click", () => ask(question));
      return element("li", {}, button);
    }),
  );
}
