// @ts-check
// The side panel: the MCP servers, how they stand, and the tools that they give.
import { Problem } from "./client.js";
import { element, valueBlock } from "./element.js";

/** @typedef {{name: string, type: string, state: string, reason?: string, protocol_version?: string, tools: number}} Server */
/** @typedef {{name: string, server: string, title?: string, description?: string, input_schema: object, annotations?: {read_only?: boolean, destructive?: boolean}, needs_approval?: boolean}} Tool */

const mostLooks = 8; // at servers that are still connecting, each after twice the time

/** Shows servers and tools, and tells who wants to know which tools there are. */
export class Panel {
  #client;
  #announce;
  #onTools;
  #looks = 0;
  #timer = 0;
  #servers = /** @type {HTMLElement} */ (document.querySelector("#servers"));
  #tools = /** @type {HTMLElement} */ (document.querySelector("#tools"));
  #count = /** @type {HTMLElement} */ (document.querySelector("#tools-count"));
  #problem = /** @type {HTMLElement} */ (document.querySelector("#panel-problem"));
  #shown = ""; // the tools on show; drawing them again would close what the reader opened

  /**
   * @param {import("./client.js").Client} client
   * @param {(text: string) => void} announce
   * @param {(names: Set<string>) => void} onTools
   */
  constructor(client, announce, onTools) {
    this.#client = client;
    this.#announce = announce;
    this.#onTools = onTools;
  }

  /** Asks the service how things stand. The service does not wait for its servers when
   * it starts, so while one is connecting this looks again by itself. */
  async load() {
    clearTimeout(this.#timer);
    try {
      const [{ servers }, { tools }] = await Promise.all([this.#client.json("servers"), this.#client.json("tools")]);
      this.#showServers(servers);
      this.#showTools(tools);
      this.#showProblem("");
      const unsettled = servers.some((/** @type {Server} */ s) => s.state === "connecting");
      if (unsettled && this.#looks < mostLooks) this.#timer = setTimeout(() => this.load(), 500 * 2 ** this.#looks++);
      if (!unsettled) this.#looks = 0;
    } catch (error) {
      this.#showProblem(reason(error));
    }
  }

  /** @param {Server} server
   * @param {HTMLButtonElement} button
   */
  async #refresh(server, button) {
    button.disabled = true;
    let problem = "";
    try {
      await this.#client.refresh(server.name);
      this.#announce(`The tools of ${server.name} are listed again`);
    } catch (error) {
      problem = `${server.name}: ${reason(error)}`;
    }
    await this.load();
    if (problem) this.#showProblem(problem);
    // The list was drawn anew, and the reader's place in it must not be lost.
    /** @type {HTMLElement | null} */ (this.#servers.querySelector(`[data-server="${CSS.escape(server.name)}"] button`))?.focus();
  }

  /** @param {Server[]} servers */
  #showServers(servers) {
    if (servers.length === 0) {
      this.#servers.replaceChildren(element("li", { class: "small" }, "None is configured."));
      return;
    }
    this.#servers.replaceChildren(...servers.map((s) => this.#serverItem(s)));
  }

  /** @param {Server} server */
  #serverItem(server) {
    const button = element("button", { type: "button", class: "quiet", "aria-label": `Refresh the tools of ${server.name}` }, "Refresh");
    button.addEventListener("click", () => this.#refresh(server, button));
    const stands = `${server.state} · ${server.tools} ${server.tools === 1 ? "tool" : "tools"}`;
    const speaks = server.protocol_version ? `${server.type}, MCP ${server.protocol_version}` : server.type;
    const item = element("li", { class: "server", "data-server": server.name, "data-state": server.state });
    item.append(
      element("p", { class: "server-name" }, server.name),
      button,
      element("p", { class: "small" }, stands),
      element("p", { class: "small" }, speaks),
    );
    if (server.reason) item.append(element("p", { class: "small bad" }, server.reason));
    return item;
  }

  /** @param {Tool[]} tools */
  #showTools(tools) {
    const serialised = JSON.stringify(tools);
    if (serialised === this.#shown) return;
    this.#shown = serialised;
    this.#count.textContent = String(tools.length);
    this.#tools.replaceChildren(...tools.map(toolItem));
    if (tools.length === 0) this.#tools.append(element("li", { class: "small" }, "The model has no tools at the moment."));
    this.#onTools(new Set(tools.map((t) => t.name)));
  }

  /** @param {string} text */
  #showProblem(text) {
    this.#problem.textContent = text;
    this.#problem.hidden = text === "";
  }
}

/** @param {Tool} tool */
function toolItem(tool) {
  const kind = tool.annotations?.read_only ? "read only" : tool.annotations?.destructive ? "destructive" : "";
  const hint = [kind, tool.needs_approval ? "asks first" : ""].filter(Boolean).join(", ");
  return element(
    "li",
    { class: "tool" },
    element("p", { class: "tool-name" }, tool.name, " ", ...(hint ? [element("span", { class: kind === "destructive" ? "small bad" : "small" }, hint)] : [])),
    element("p", { class: "small tool-description" }, tool.description ?? tool.title ?? ""),
    element("details", {}, element("summary", { class: "small" }, "Schema"), valueBlock(`Input schema of ${tool.name}`, tool.input_schema)),
  );
}

/** @param {unknown} error */
function reason(error) {
  return error instanceof Problem ? `${error.message} (${error.code})` : "The service cannot be reached.";
}
