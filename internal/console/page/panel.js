// @ts-check
// The side panel: the MCP servers, how they stand, and the tools that they give.
import { Problem } from "./client.js";
import { element } from "./element.js";
import { schemaView } from "./schema.js";

/** @typedef {{name: string, type: string, state: string, reason?: string, protocol_version?: string, tools: number}} Server */
/** @typedef {{name: string, server: string, title?: string, description?: string, input_schema: object, annotations?: {read_only?: boolean, destructive?: boolean}, needs_approval?: boolean}} Tool */

const mostLooks = 8; // at servers that are still connecting, each after twice the time
const lookAgain = 15_000; // ms until it looks again while the page is in view
const manyTools = 12; // from here on they can be searched

/** Shows servers and tools, and tells who wants to know which tools there are. */
export class Panel {
  #client;
  #announce;
  #onTools;
  #looks = 0;
  #timer = 0;
  #servers = /** @type {HTMLElement} */ (document.querySelector("#servers"));
  #brief = /** @type {HTMLElement} */ (document.querySelector("#panel-brief"));
  #search = /** @type {HTMLInputElement} */ (document.querySelector("#tool-search"));
  #problem = /** @type {HTMLElement} */ (document.querySelector("#panel-problem"));
  /** @type {string[]} names of the servers that were offline when it looked last */
  #offline = [];
  #states = ""; // of the servers, as they were shown last
  #offlineNote = /** @type {HTMLElement} */ (document.querySelector("#panel-offline"));
  #shown = ""; // what is on show; drawing it again would close what the reader opened

  /**
   * @param {import("./client.js").Client} client
   * @param {(text: string) => void} announce
   * @param {(names: Set<string>) => void} onTools
   */
  constructor(client, announce, onTools) {
    this.#client = client;
    this.#announce = announce;
    this.#onTools = onTools;
    this.#search.addEventListener("input", () => this.#filter());
  }

  /** Asks the service how things stand. The service does not wait for its servers when
   * it starts, so while one is connecting this looks again by itself. */
  async load() {
    clearTimeout(this.#timer);
    try {
      const [{ servers }, { tools }] = await Promise.all([this.#client.json("servers"), this.#client.json("tools")]);
      this.#states = JSON.stringify(servers);
      this.#show(servers, tools);
      this.#showProblem("");
      const unsettled = servers.some((/** @type {Server} */ s) => s.state === "connecting");
      this.#looks = unsettled ? this.#looks + 1 : 0;
      this.#timer = setTimeout(() => this.#lookAgain(), unsettled && this.#looks <= mostLooks ? 250 * 2 ** this.#looks : lookAgain);
    } catch (error) {
      this.#showProblem(reason(error));
      this.#timer = setTimeout(() => this.#lookAgain(), lookAgain);
    }
  }

  /** Asks for the servers only: their tools may be megabytes. Nobody sees the panel of a hidden page, and
   * that loads when it is visible again. */
  async #lookAgain() {
    if (document.visibilityState !== "visible") return;
    const { servers } = await this.#client.json("servers").catch(() => ({ servers: null }));
    if (JSON.stringify(servers) !== this.#states) return this.load();
    this.#timer = setTimeout(() => this.#lookAgain(), lookAgain);
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
    button.disabled = false;
    // The list may have been drawn anew, and the reader's place in it must not be lost.
    /** @type {HTMLElement | null} */ (this.#servers.querySelector(`[data-server="${CSS.escape(server.name)}"] .refresh`))?.focus();
  }

  /**
   * @param {Server[]} servers
   * @param {Tool[]} tools
   */
  #show(servers, tools) {
    const serialised = JSON.stringify([servers, tools]);
    if (serialised === this.#shown) return;
    this.#shown = serialised;
    const offline = servers.filter(isOffline).map((s) => s.name);
    this.#brief.textContent = `${tools.length} ${tools.length === 1 ? "tool" : "tools"}${offline.length > 0 ? `, ${offline.length} offline` : ""}`;
    /** @type {HTMLElement} */ (this.#brief.parentElement).dataset.state = offline.length > 0 ? "failed" : servers.some((s) => s.state === "connecting") ? "connecting" : "connected";
    this.#tellOffline(offline);
    this.#servers.replaceChildren(...servers.map((s) => this.#serverItem(s, tools.filter((t) => t.server === s.name))));
    const others = tools.filter((t) => !servers.some((s) => s.name === t.server));
    if (others.length > 0) this.#servers.append(element("li", { class: "server" }, element("ul", { class: "plain tools" }, ...others.map(toolItem))));
    if (servers.length === 0) this.#servers.append(element("li", { class: "small" }, "No MCP server is configured: the model answers without tools."));
    this.#search.hidden = tools.length < manyTools;
    this.#filter();
    this.#onTools(new Set(tools.map((t) => t.name)));
  }

  /** Says which servers are offline, and tells a screen reader which have gone offline or come back. @param {string[]} offline */
  #tellOffline(offline) {
    const gone = offline.filter((name) => !this.#offline.includes(name));
    const back = this.#offline.filter((name) => !offline.includes(name));
    this.#offline = offline;
    this.#offlineNote.textContent = `Offline: ${offline.join(", ")}`;
    this.#offlineNote.hidden = offline.length === 0;
    if (gone.length > 0) this.#announce(`Offline: ${gone.join(", ")}`);
    else if (back.length > 0) this.#announce(`No longer offline: ${back.join(", ")}`);
  }

  /**
   * @param {Server} server
   * @param {Tool[]} tools
   */
  #serverItem(server, tools) {
    const button = element("button", { type: "button", class: "icon-button refresh", "aria-label": `Refresh the tools of ${server.name}`, title: "List the tools again" }, element("span", { class: "icon icon-refresh" }));
    button.addEventListener("click", () => this.#refresh(server, button));
    const speaks = server.protocol_version ? `${server.type}, MCP ${server.protocol_version}` : server.type;
    const item = element("li", { class: "server", "data-server": server.name, "data-state": server.state });
    item.append(
      element("div", { class: "server-head" }, element("h3", { class: "server-name" }, server.name), button,
        element("p", { class: "small" }, element("span", { class: isOffline(server) ? "badge bad" : "" }, isOffline(server) ? "offline" : server.state), ` · ${server.tools} ${server.tools === 1 ? "tool" : "tools"} · `, element("span", { class: "server-type" }, speaks))),
    );
    if (server.reason) item.append(element("p", { class: "small bad" }, server.reason));
    item.append(element("ul", { class: "plain tools" }, ...tools.map(toolItem)));
    return item;
  }

  #filter() {
    const words = this.#search.hidden ? [] : this.#search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const tool of /** @type {NodeListOf<HTMLElement>} */ (this.#servers.querySelectorAll(".tool"))) {
      const text = (tool.textContent ?? "").toLowerCase();
      tool.hidden = !words.every((word) => text.includes(word));
    }
  }

  /** @param {string} text */
  #showProblem(text) {
    this.#problem.textContent = text;
    this.#problem.hidden = text === "";
  }
}

/** Reports whether calls to the server fail. Its last tools are still listed if it was connected before.
 * @param {Server} server
 */
function isOffline(server) {
  return server.state === "failed" || server.state === "degraded";
}

/** @param {Tool} tool */
function toolItem(tool) {
  const { read_only: readOnly, destructive } = tool.annotations ?? {};
  const badges = [destructive && !readOnly && element("span", { class: "badge bad" }, "destructive"), tool.needs_approval && element("span", { class: "badge" }, "asks first")].filter((b) => b instanceof HTMLElement);
  return element("li", { class: "tool" },
    element("details", {},
      element("summary", {}, element("span", { class: "tool-name" }, tool.name), ...badges),
      element("p", { class: "small tool-description" }, tool.description ?? tool.title ?? "This tool has no description."),
      ...schemaView(tool.name, tool.input_schema)));
}

/** @param {unknown} error */
function reason(error) {
  return error instanceof Problem ? `${error.message} (${error.code})` : "The service cannot be reached.";
}
