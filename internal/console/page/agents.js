// @ts-check
// The menu of named agents. It is hidden while the service has fewer than two.
import { element } from "./element.js";

/** @typedef {{id: string, description: string, default: boolean, examples: string[]}} Agent */

const box = /** @type {HTMLElement} */ (document.getElementById("agent-box"));
const menu = /** @type {HTMLSelectElement} */ (document.getElementById("agent"));

export class Agents {
  /** @type {Agent[]} */
  #list = [];
  #client;

  /**
   * @param {import("./client.js").Client} client
   * @param {() => void} changed is called when the list is there and when another agent is chosen
   */
  constructor(client, changed) {
    this.#client = client;
    menu.addEventListener("change", changed);
    this.changed = changed;
  }

  async load() {
    try {
      const { agents } = await this.#client.json("agents");
      this.#list = agents;
    } catch {
      return; // the panel says what is wrong; the default agent answers
    }
    const chosen = menu.value;
    menu.replaceChildren(...this.#list.map((a) => element("option", { value: a.id, title: a.description }, a.id)));
    if (this.#list.some((a) => a.id === chosen)) menu.value = chosen;
    box.hidden = this.#list.length < 2;
    this.changed();
  }

  /** The id of the chosen agent; "" if there is nothing to choose. */
  get chosen() {
    return box.hidden ? "" : menu.value;
  }

  /** The questions that the chosen agent can answer. */
  get examples() {
    return this.#list.find((a) => a.id === menu.value)?.examples ?? [];
  }
}
