// What the browser tests stand on: the demo as it ships, a real Chromium, a proxy that
// cuts connections, and answers written out by hand for what the demo never says.
import { spawn, execFileSync } from "node:child_process";
import { generateKeyPairSync, sign } from "node:crypto";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import http from "node:http";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import assert from "node:assert/strict";

const root = fileURLToPath(new URL("../../../", import.meta.url));
const browsers = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
const executable = browsers.find((path) => path && existsSync(path));
const require = createRequire(import.meta.url);

/** Why the tests cannot run on this machine; false if they can. */
export const missing = whatIsMissing();

function whatIsMissing() {
  try {
    require.resolve("playwright-core");
    require.resolve("axe-core");
  } catch {
    return "node_modules is missing: run npm ci in internal/console/browser";
  }
  return executable ? false : "no Chromium found: install it, or name it in CHROMIUM";
}

const patience = 20_000; // ms that anything on a page, or a process, may take

/** The binary: the one that ANSWERD names, or else one built now. */
let binary = process.env.ANSWERD;

/** Starts answerd with these arguments, waits until it says what matches, and gives that
 * and what ends it. */
async function startAnswerd(args, env, says) {
  if (!binary) {
    const dir = mkdtempSync(path.join(tmpdir(), "answerd-browser-"));
    process.once("exit", () => rmSync(dir, { recursive: true }));
    binary = path.join(dir, "answerd");
    // go run would leave its child behind when it is ended.
    execFileSync("go", ["build", "-o", binary, "./cmd/server"], { cwd: root, stdio: "inherit" });
  }
  const child = spawn(binary, args, { env: { ...process.env, ADDR: "127.0.0.1:0", DRAIN_TIMEOUT: "1s", LOG_LEVEL: "error", ...env }, stdio: ["ignore", "pipe", "inherit"] });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const url = await new Promise((resolve, reject) => {
    const late = setTimeout(() => reject(new Error(`answerd ${args} did not say its address`)), patience);
    createInterface({ input: child.stdout }).on("line", (line) => {
      const found = says.exec(line);
      if (found) clearTimeout(late), resolve(found[1]);
    });
    ended.then((code) => reject(new Error(`answerd ${args} ended with ${code} before it said its address`)));
  });
  const stop = async () => {
    child.kill("SIGTERM");
    await ended;
  };
  return { url, stop };
}

/** Starts `answerd demo`. */
export function startDemo(env = {}) {
  return startAnswerd(["demo"], env, /^Console: (http\S+)/);
}

/** Starts an IAM that issues tokens to whoever may use the demo in front of which it stands. */
export async function startIAM() {
  const { url, stop } = await startAnswerd(["demo", "-only", "iam"], { IAM_CLIENT_SECRET: "demo-secret" }, /iam at (http\S+)/);
  const token = async () => {
    const reply = await fetch(`${url}/oauth2/v1/token`, {
      method: "POST", headers: { Authorization: `Basic ${btoa("answerd-demo:demo-secret")}`, "Content-Type": "application/x-www-form-urlencoded" },
      body: "grant_type=client_credentials&scope=urn:opc:idm:__myscopes__", signal: AbortSignal.timeout(patience),
    });
    return (await reply.json()).access_token;
  };
  return { url, stop, token };
}

/** Starts an MCP server like the demo's, and gives what mcp.json says about it. */
export async function startMCPServer() {
  const iam = await startIAM();
  const server = await startAnswerd(["demo", "-only", "mcp", "-iam", iam.url], {}, /mcp at (http\S+)/);
  const auth = { type: "client_credentials", tokenUrl: `${iam.url}/oauth2/v1/token`, clientId: "answerd-demo", clientSecret: "demo-secret" };
  return { url: server.url, config: (url) => ({ type: "http", url: `${url}mcp`, auth }), stop: () => Promise.all([server.stop(), iam.stop()]) };
}

/** Starts an issuer whose tokens live as long as a test wants: the demo's live for minutes. It publishes its
 * keys at every path that handle does not answer, which then returns true. */
export async function startIssuer(handle = () => false) {
  const { publicKey, privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
  const keys = JSON.stringify({ keys: [{ ...publicKey.export({ format: "jwk" }), kid: "k", alg: "RS256", use: "sig" }] });
  const server = http.createServer((request, reply) => handle(request, reply) || reply.setHeader("Content-Type", "application/json").end(keys));
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const url = `http://127.0.0.1:${server.address().port}`;
  /** A token that is taken for so many seconds: the service takes it a minute longer than it says. */
  function token(audience, seconds) {
    const now = Math.floor(Date.now() / 1000);
    const claims = { iss: url, aud: audience, sub: "ada", iat: now - 120, exp: now - 60 + seconds };
    const signed = [{ alg: "RS256", kid: "k", typ: "at+jwt" }, claims].map((part) => Buffer.from(JSON.stringify(part)).toString("base64url")).join(".");
    return `${signed}.${sign("sha256", Buffer.from(signed), privateKey).toString("base64url")}`;
  }
  const stop = () => new Promise((done) => (server.close(done), server.closeAllConnections()));
  return { url, stop, token };
}

/** Keeps what the page looks like, for people to look at: shots/, or SHOTS. */
export async function shoot(page, name) {
  await fadedIn(page);
  await page.screenshot({ path: path.join(process.env.SHOTS ?? fileURLToPath(new URL("shots", import.meta.url)), `${name}.png`) });
}

/** Waits for what fades in: halfway its colours are others. */
function fadedIn(page) {
  return page.evaluate(() => Promise.all(document.getAnimations().filter((a) => a.effect?.getTiming().iterations !== Infinity).map((a) => a.finished.catch(() => {}))));
}

/** A browser with an empty profile that talks to nobody on its own account. */
export async function startBrowser() {
  const { chromium } = await import("playwright-core");
  return chromium.launch({
    executablePath: executable,
    headless: true,
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
}

/**
 * A page that is watched: every error on its console, every exception, every violation
 * of its policy and every request to another origin ends up in faults.
 */
export async function openPage(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  context.setDefaultTimeout(patience);
  const page = await context.newPage();
  const faults = await watch(page, url);
  await page.goto(url);
  return { page, faults, close: () => context.close() };
}

/** What goes wrong on a page, as it comes. */
export async function watch(page, url) {
  const faults = [];
  await page.exposeFunction("tellViolation", (text) => faults.push(`violation of the policy: ${text}`));
  await page.addInitScript(() => document.addEventListener("securitypolicyviolation", (e) => window.tellViolation(`${e.violatedDirective} ${e.blockedURI} ${e.sample}`)));
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("dialog", (dialog) => faults.push(`dialog: ${dialog.message()}`));
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") faults.push(message.text());
  });
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== new URL(url).origin) faults.push(`request to ${request.url()}`);
  });
  return faults;
}

/** Asks as a person would: types and presses Enter. */
export async function ask(page, question) {
  await page.getByLabel("Your question").fill(question);
  await page.keyboard.press("Enter");
}

/** The conversation on the page, as the service without authentication has it. */
export function threadOf(page) {
  return page.evaluate(() => fetch(`threads/${location.hash.slice("#thread-".length)}`).then((r) => r.json()));
}

/** The runs of the conversation on the page. */
export async function runsOf(page) {
  const { messages } = await threadOf(page);
  return messages.filter((m) => m.role === "user").map((m) => m.run_id);
}

/** Lets the page read a conversation of these runs, as the service has it. */
export async function keepThread(page, ...runs) {
  await page.route("**/threads/thr_*", (route) => route.fulfill({ json: {
    thread_id: "thr_1", title: runs[0].question, agent: "default", runs: runs.length, status: "completed", created_at: "2026-01-01T00:00:00Z", updated_at: "2026-01-01T00:00:00Z",
    messages: runs.flatMap(({ run, question, answer, calls }) => [{ role: "user", content: question, run_id: run, ts: 1 }, { role: "assistant", content: answer, run_id: run, ts: 2, status: "completed", calls }]),
  } }));
}

/** Waits until no question is being answered. */
export async function answered(page) {
  await page.locator("#send").waitFor(); // by its id: forms may have a button of that name
}

/** Checks the page, as it is now, with all of axe's rules. */
export async function accessible(page) {
  const source = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
  await page.evaluate(source);
  await fadedIn(page);
  const { violations } = await page.evaluate(() => window.axe.run());
  const told = violations.map((v) => `${v.id}: ${v.help}\n  ${v.nodes.map((n) => n.html).join("\n  ")}`);
  assert.deepEqual(told, []);
}

/** Checks that nothing has to be scrolled sideways. */
export async function fits(page) {
  const [needed, there] = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
  assert.ok(needed <= there, `the page needs ${needed} pixels and has ${there}`);
}

/**
 * A proxy on loopback in front of url. cutAt(text) cuts the next connection on which
 * the service says text, a few bytes behind it, and so in the middle of an event;
 * while refusing is true new connections are cut at once. drop() cuts all of them.
 */
export async function startProxy(url) {
  const target = new URL(url);
  const proxy = { url: "", refusing: false, cutAt, drop, close };
  const sockets = new Set();
  let cut = null;
  const server = net.createServer((client) => {
    if (proxy.refusing) return void client.destroy();
    const upstream = net.connect(Number(target.port), target.hostname);
    for (const [socket, other] of [[client, upstream], [upstream, client]]) {
      sockets.add(socket);
      socket.on("error", () => {}); // the close that follows says it too
      socket.on("close", () => (sockets.delete(socket), other.destroy()));
    }
    client.pipe(upstream);
    upstream.on("data", (data) => {
      const at = cut ? data.indexOf(cut.text) : -1;
      if (at < 0) return void client.write(data);
      const { told } = cut;
      cut = null;
      proxy.refusing = true;
      client.write(data.subarray(0, at + 10), () => (client.destroy(), told()));
    });
  });
  function cutAt(text) {
    return new Promise((told) => (cut = { text, told }));
  }
  function drop() {
    proxy.refusing = true;
    for (const socket of sockets) socket.destroy();
  }
  async function close() {
    drop();
    await new Promise((done) => server.close(done));
  }
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  proxy.url = `http://127.0.0.1:${server.address().port}/`;
  return proxy;
}

/** Events as the service writes them. Numbers are given in order where none stands. */
export function sse(events, run = "run_script") {
  let seq = 0;
  return events
    .map((event) => {
      seq = event.seq ?? seq + 1;
      const data = JSON.stringify({ run_id: run, ts: 1_000 * seq, ...event, seq });
      return `id: ${run}:${seq}\nevent: ${event.type}\ndata: ${data}\n\n`;
    })
    .join("");
}

/** Answers the page's questions with these bodies, one after the other, the last one
 * again and again. Gives the requests as they come. */
export async function script(page, ...answers) {
  const requests = [];
  await page.route("**/answer/stream", (route) => {
    requests.push({ headers: route.request().headers(), body: route.request().postDataJSON() });
    const answer = answers[Math.min(requests.length, answers.length) - 1];
    if (answer === "cut") return route.abort("connectionreset");
    return route.fulfill(typeof answer === "string" ? { status: 200, contentType: "text/event-stream", body: answer } : answer);
  });
  return requests;
}

/** A problem document as the service sends it. */
export function problem(status, code, detail) {
  return { status, contentType: "application/problem+json", body: JSON.stringify({ status, code, detail, title: code, trace_id: "" }) };
}

export const start = { type: "start", question: "?", model: "m", thread_id: "thr_1", trace_id: "4bf92f3577b34da6a3ce929d0e0e4736" };

/** The last event of a run that says text, after this many events. */
export function finalAnswer(text) {
  return {
    type: "final_answer", answer: text, finish_reason: "stop",
    metadata: { tool_names: [], tool_params: [], tool_results: [], model: "m", steps: 1, finish_reason: "stop", usage: { input_tokens: 3, output_tokens: 4, total_tokens: 7 } },
  };
}

/** A whole run that only says text. */
export function says(text) {
  return sse([start, { type: "step_start", step: 1 }, { type: "text_start", part_id: "t" }, { type: "text_delta", part_id: "t", delta: text },
    { type: "text_end", part_id: "t" }, { type: "step_end", step: 1 }, finalAnswer(text)]);
}
