// @ts-check
// The menus of agents and models. Each is hidden while there is nothing to choose.
import { element } from "./element.js";

/** @typedef {{id: string, description: string, model: string, default: boolean, examples: string[]}} Agent */

const withoutTools = ":no-tools"; // /v1/models lists each model and agent with this variant too

/** Who answers the next question. */
export class Choices {
  /** @type {Agent[]} */
  #agents = [];
  #client;
  #changed;
  #agent = new Menu("agent");
  #model = new Menu("model");

  /**
   * @param {import("./client.js").Client} client
   * @param {() => void} changed is called when the lists are there and when another agent is chosen
   */
  constructor(client, changed) {
    this.#client = client;
    this.#changed = changed;
    this.#agent.select.addEventListener("change", () => {
      this.#nameDefault();
      changed();
    });
  }

  async load() {
    try {
      const [{ agents }, { data }] = await Promise.all([this.#client.json("agents"), this.#client.json("v1/models")]);
      this.#agents = agents;
      const ids = new Set(this.#agents.map((a) => a.id));
      const models = data.map((/** @type {{id: string}} */ m) => m.id).filter((/** @type {string} */ id) => !ids.has(id) && !id.endsWith(withoutTools));
      this.#agent.fill(this.#agents.map((a) => element("option", { value: a.id, title: a.description }, a.id)), 2);
      this.#model.fill([element("option", { value: "" }, ""), ...models.map((/** @type {string} */ id) => element("option", { value: id }, id))], 3);
    } catch {
      return; // the panel says what is wrong; the default agent and model answer
    }
    this.#nameDefault();
    this.#changed();
  }

  /** Says which model answers if none is chosen: that of the agent. */
  #nameDefault() {
    const agent = this.#agents.find((a) => a.id === this.agent) ?? this.#agents.find((a) => a.default);
    const [option] = this.#model.select.options;
    if (option) option.textContent = agent?.model ? `Default (${agent.model})` : "Default";
  }

  /** The id of the chosen agent; "" if there is nothing to choose. */
  get agent() {
    return this.#agent.value;
  }

  /** The id of the chosen model; "" for the default one. */
  get model() {
    return this.#model.value;
  }

  /** The questions that the chosen agent can answer. */
  get examples() {
    return this.#agents.find((a) => a.id === this.#agent.select.value)?.examples ?? [];
  }

  /** Chooses the agent of a conversation, if the menu has it. @param {{agent: string}} conversation */
  choose({ agent }) {
    this.#agent.choose(agent);
    this.#nameDefault();
    this.#changed();
  }
}

/** One menu with its label. index.html has both. */
class Menu {
  #box;

  /** @param {string} id */
  constructor(id) {
    this.select = /** @type {HTMLSelectElement} */ (document.getElementById(id));
    this.#box = /** @type {HTMLElement} */ (document.getElementById(`${id}-box`));
  }

  /**
   * @param {HTMLOptionElement[]} options
   * @param {number} fewest options that make a choice
   */
  fill(options, fewest) {
    const chosen = this.select.value;
    this.select.replaceChildren(...options);
    this.choose(chosen);
    this.#box.hidden = options.length < fewest;
  }

  /** @param {string} value */
  choose(value) {
    if ([...this.select.options].some((o) => o.value === value)) this.select.value = value;
  }

  get value() {
    return this.#box.hidden ? "" : this.select.value;
  }
}
