// MCP hosts: the protocol's own clients, the older SDK and the newer, in both of its ways.
import assert from "node:assert/strict";
import { test } from "node:test";
import * as v2 from "@modelcontextprotocol/client";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { cutting, goOn, slowQuestion, url } from "./service.js";

const self = { name: "host", version: "1" };

/** Each host, as a function that makes one whose person answers with `person`; without one it cannot elicit. */
const hosts = {
  "sdk": (person, options) => {
    const client = new Client(self, { capabilities: person ? { elicitation: {} } : {} });
    if (person) client.setRequestHandler(ElicitRequestSchema, (request) => person(request.params));
    return [client, (base) => new StreamableHTTPClientTransport(new URL(`${base}/mcp`), options)];
  },
  "client, 2025-11-25": (person, options) => newer({ mode: "legacy" }, person, options),
  "client, 2026-07-28": (person, options) => newer({ mode: { pin: "2026-07-28" } }, person, options),
};

function newer(versionNegotiation, person, options) {
  const client = new v2.Client(self, { capabilities: person ? { elicitation: { form: {} } } : {}, versionNegotiation });
  if (person) client.setRequestHandler("elicitation/create", (request) => person(request.params));
  return [client, (base) => new v2.StreamableHTTPClientTransport(new URL(`${base}/mcp`), options)];
}

/** A host that is connected for the time of a test. */
async function join(t, name, person, base = url) {
  const [client, transport] = hosts[name](person, { reconnectionOptions: { maxRetries: 0, initialReconnectionDelay: 1, maxReconnectionDelay: 1, reconnectionDelayGrowFactor: 1 } });
  client.onerror = () => {}; // a connection that is cut is said here too
  await client.connect(transport(base));
  t.after(() => client.close());
  return client;
}

/** Calls the tool, which both SDKs spell differently. */
const call = (client, question, options, more) => {
  const params = { name: "answer", arguments: { question, ...more } };
  return client instanceof v2.Client ? client.callTool(params, options) : client.callTool(params, undefined, options);
};

/** The run, once it has ended. */
async function ended(run) {
  const events = await (await fetch(`${url}/runs/${run}/events`)).text();
  return events.match(/^event: (final_answer|run_error|cancelled)$/m)?.[1];
}

for (const name of Object.keys(hosts)) {
  test(`${name}: progress, and a structured result that fits`, async (t) => {
    const client = await join(t, name);
    assert.deepEqual((await client.listTools()).tools.map((tool) => tool.name), ["answer"]); // and its output schema is known
    const told = [];
    const result = await call(client, "tool", { onprogress: (progress) => told.push(progress) });
    assert.equal(result.content[0].text, "It is 3.");
    assert.deepEqual(result.structuredContent.metadata.tool_results, [{ sum: 3 }]);
    assert.ok(told.some(({ message }) => message === "add is called."), JSON.stringify(told));
    assert.ok(told.every(({ progress }, i) => i === 0 || progress > told[i - 1].progress));
  });

  test(`${name}: what fails is a result`, async (t) => {
    const client = await join(t, name);
    await client.listTools();
    for (const [args, code] of [[{ question: "broken" }, "model_error"], [{ question: "plain", max_turns: 0 }, "invalid_request"]]) {
      const result = await client.callTool({ name: "answer", arguments: args });
      assert.equal(result.isError, true);
      assert.equal(result.structuredContent.error.code, code);
    }
    await assert.rejects(client.callTool({ name: "other", arguments: {} }).then((result) => result.isError && Promise.reject(new Error(result.content[0].text))));
  });

  for (const [about, tool] of [["approval", "echo"], ["form", "ask"]]) {
    for (const action of ["accept", "decline"]) {
      test(`${name}: ${about}, ${action}`, async (t) => {
        const asked = [];
        const client = await join(t, name, (params) => {
          asked.push(params.message);
          return action === "accept" ? { action, content: about === "form" ? { people: 3 } : { approved: true } } : { action };
        });
        const result = await call(client, about);
        assert.equal(result.structuredContent.answer, "Well.");
        assert.equal(asked.length, 1);
        const told = JSON.stringify(result.structuredContent.metadata.tool_results);
        assert.equal(result.structuredContent.metadata.tool_names[0], tool);
        assert.match(told, about === "form" ? new RegExp(action) : action === "accept" ? /now/ : /error/);
      });
    }
  }

  test(`${name}: an approval that cannot be asked for waits`, async (t) => {
    const client = await join(t, name);
    await client.listTools();
    const { structuredContent } = await call(client, "approval");
    assert.equal(structuredContent.status, "suspended");
    const { run_id, interrupts } = structuredContent;
    const answer = await fetch(`${url}/runs/${run_id}/input`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ id: interrupts[0].id, approved: true }) });
    assert.equal(answer.status, 200);
    assert.equal(await ended(run_id), "final_answer");
  });

  test(`${name}: cancel`, async (t) => {
    const client = await join(t, name);
    const stop = new AbortController();
    let run;
    const onprogress = ({ message }) => {
      run ??= message.match(/run_\w+/)?.[0];
      if (message === "wait is called.") stop.abort();
    };
    await assert.rejects(call(client, "stuck", { signal: stop.signal, onprogress }));
    assert.equal(await ended(run), "cancelled");
  });

  test(`${name}: a connection that is cut cancels, and the next call works`, async (t) => {
    const question = slowQuestion();
    const cutOff = Promise.withResolvers?.() ?? deferred();
    const base = await cutting(t, "Wait", cutOff.resolve);
    const client = await join(t, name, undefined, base);
    const rejected = assert.rejects(call(client, question, { timeout: 1500, onprogress: () => {} }, { thread_id: question.slice(5) }));
    await cutOff.promise;
    const { runs } = await (await fetch(`${url}/runs?thread_id=${question.slice(5)}`)).json();
    assert.equal(runs.length, 1);
    assert.equal(await ended(runs[0].run_id), "cancelled");
    await goOn(question);
    await rejected;
    assert.equal((await call(client, "plain")).structuredContent.answer, "Hello there.");
  });
}

/** Promise.withResolvers, which Node 20 lacks. */
function deferred() {
  const out = {};
  out.promise = new Promise((resolve, reject) => Object.assign(out, { resolve, reject }));
  return out;
}
