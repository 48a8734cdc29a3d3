// AG-UI's own client, in the versions that people have, against a whole service.
import assert from "node:assert/strict";
import { test } from "node:test";
import { AgentCapabilitiesSchema } from "@ag-ui/core/schemas";
import { begunThread, cutting, goOn, heldQuestion, ran, ranCut, askedBefore, slowQuestion, url } from "./service.js";

const versions = { "0.0.59": await import("@ag-ui/client-0.0"), "1.0.0": await import("@ag-ui/client") };
const colour = { name: "colour", description: "the colour of a thing", parameters: { type: "object", properties: { of: { type: "string" } } } };

/** What an agent has: messages and tool results as one line each. */
const lines = (agent) =>
  agent.messages.filter((message) => message.role !== "activity").map((message) => {
    const calls = (message.toolCalls ?? []).map((call) => ` ${call.function.name}(${call.function.arguments})`).join("");
    return `${message.role}: ${message.content ?? ""}${calls}`;
  });

/**
 * The client cancels the body of a response that broke off and leaves the rejection of
 * that to nobody, which ends a Node process and fails a test.
 */
function tolerateCuts(t) {
  const real = globalThis.fetch;
  t.mock.method(globalThis, "fetch", async (...args) => {
    const response = await real(...args);
    const getReader = response.body.getReader.bind(response.body);
    response.body.getReader = () => {
      const reader = getReader();
      const cancel = reader.cancel.bind(reader);
      reader.cancel = () => cancel().catch(() => {});
      return reader;
    };
    return response;
  });
}

for (const [version, sdk] of Object.entries(versions)) {
  const v1 = version === "1.0.0";
  const client = `ag-ui ${version}`;

  /** An agent that has been told something. */
  function open(t, text, { base = url, headers } = {}) {
    t.mock.method(console, "warn", (...args) => assert.fail(`the client warns: ${args.join(" ")}`));
    return new sdk.HttpAgent({ url: `${base}/agui`, headers, initialMessages: [{ id: crypto.randomUUID(), role: "user", content: text }] });
  }

  /** Runs the agent: how the run ended, and what came of its own. */
  async function run(agent, parameters, onRun) {
    const seen = { custom: [] };
    await agent.runAgent(parameters, {
      onCustomEvent: ({ event }) => void (event.name === "run" ? onRun?.(event.value.run_id) : seen.custom.push(event.name)),
      onRunErrorEvent: ({ event }) => void (seen.error = event),
      onRunFinishedEvent: ({ event }) => void Object.assign(seen, { outcome: event.outcome, result: event.result, usage: event.usage }),
    });
    return seen;
  }

  /**
   * Asks through a cut behind a text, and again with the same key, which attaches: the
   * agent that was told all, how the run ended, and how to be told once more.
   */
  async function cutAndTold(t, text, messages, { parameters, threadId, between } = {}) {
    const asked = { runId: crypto.randomUUID(), ...parameters };
    const headers = { "Idempotency-Key": crypto.randomUUID() };
    const away = new sdk.HttpAgent({ url: `${await cutting(t, text)}/agui`, headers, threadId, initialMessages: messages });
    let id;
    await assert.rejects(run(away, asked, (run) => (id = run)), "a cut must not look like an end");
    const again = async (onRun) => {
      const agent = new sdk.HttpAgent({ url: `${url}/agui`, headers, threadId: away.threadId, initialMessages: messages });
      return { agent, end: await run(agent, asked, onRun) };
    };
    await between?.(id);
    return { ...(await again()), again };
  }

  const user = (content) => [{ id: crypto.randomUUID(), role: "user", content }];

  for (const [scenario, about, payload, said] of [
    ["approval yes", "approval", { approved: true }, "now"],
    ["approval no", "approval", { approved: false }, "Error: A person refused this call."],
    ["elicitation", "form", { people: 4 }, '"people":4'],
  ]) {
    test(`AG-UI ${version}: ${scenario}, cut before the question and behind the answer`, async (t) => {
      tolerateCuts(t);
      const question = heldQuestion(about);
      const { agent, end, again } = await cutAndTold(t, '"STEP_STARTED"', user(question));
      assert.equal(end.outcome.type, "interrupt");
      const resume = [{ interruptId: end.outcome.interrupts[0].id, status: "resolved", payload }];
      const away = new sdk.HttpAgent({ url: `${await cutting(t, '"TOOL_CALL_RESULT"', () => goOn(question))}/agui`, threadId: agent.threadId, initialMessages: agent.messages });
      away.pendingInterrupts = agent.pendingInterrupts;
      await assert.rejects(run(away, { resume }), "a cut must not look like an end");
      // The question's key leads to the run that the answer went on with.
      const told = await again();
      assert.equal(told.end.outcome.type, "success");
      const [call, result, answer] = lines(told.agent).slice(1);
      assert.match(call, /^assistant:  (echo|ask)/);
      assert.ok(result.startsWith("tool: ") && result.includes(said), result);
      assert.equal(answer, "assistant: Well.");
      assert.equal(told.agent.messages.length, 4);
      ranCut(t, client, scenario);
    });
  }

  test(`AG-UI ${version}: a tool of the client's, cut before the call and behind its result`, async (t) => {
    tolerateCuts(t);
    const parameters = { tools: [colour] };
    const { agent } = await cutAndTold(t, '"STEP_STARTED"', user("client"), { parameters });
    const [call] = agent.messages.at(-1).toolCalls;
    const messages = [...agent.messages, { id: "result", role: "tool", toolCallId: call.id, content: "blue" }];
    const told = await cutAndTold(t, '"STEP_STARTED"', messages, { parameters, threadId: agent.threadId });
    assert.equal(told.end.outcome.type, "success");
    assert.deepEqual(lines(told.agent).slice(1), ['assistant:  colour({"of":"sky"})', "tool: blue", "assistant: It is blue."]);
    ranCut(t, client, "client tool");
  });

  test(`AG-UI ${version}: cut in the middle, and ended otherwise than by an answer`, async (t) => {
    tolerateCuts(t);
    const late = heldQuestion("late");
    const failed = await cutAndTold(t, '"TOOL_CALL_RESULT"', user(late), { between: () => goOn(late) });
    assert.deepEqual([failed.end.error.code, lines(failed.agent).at(-1)], ["model_error", 'tool: {"sum":3}']);
    ranCut(t, client, "model failure");
    const long = heldQuestion("length");
    const limited = await cutAndTold(t, '"STEP_STARTED"', user(long), { between: () => goOn(long) });
    assert.deepEqual([limited.end.outcome.type, limited.end.result.finish_reason], ["success", "length"]);
    ranCut(t, client, "truncated");
    const { end } = await cutAndTold(t, '"STEP_STARTED"', user("stuck"), { between: (id) => fetch(`${url}/runs/${id}/cancel`, { method: "POST" }) });
    assert.equal(v1 ? end.outcome.type : end.error.code, "cancelled");
    ranCut(t, client, "cancel");
  });

  for (const [about, said] of Object.entries({
    plain: ["assistant: Hello there."],
    tool: ['assistant:  add({"a":1,"b":2})', 'tool: {"sum":3}', "assistant: It is 3."],
    parallel: ['assistant:  add({"a":1,"b":2}) add({"a":3,"b":4})', /tool: {"sum":[37]}/, /tool: {"sum":[37]}/, "assistant: Done."],
    failing: ["assistant:  fail({})", "tool: Error: the tool is out of order", "assistant: It failed."],
  })) {
    test(`AG-UI ${version}: ${about}`, async (t) => {
      const agent = open(t, about);
      const { outcome, result, usage, error } = await run(agent);
      assert.equal(error, undefined);
      assert.equal(outcome.type, "success");
      assert.equal(result.answer, said.at(-1).replace("assistant: ", ""));
      assert.equal(usage?.[0].totalTokens > 0, v1);
      for (const [i, line] of lines(agent).slice(1).entries()) assert.match(line, said[i] instanceof RegExp ? said[i] : new RegExp(`^${RegExp.escape?.(said[i]) ?? said[i].replace(/[^\w]/g, "\\$&")}$`));
      assert.equal(agent.messages.length, said.length + 1);
      agent.addMessage({ id: "next", role: "user", content: "plain" });
      assert.equal((await run(agent)).outcome.type, "success");
      assert.equal(lines(agent).at(-1), "assistant: Hello there.");
      ran(t, client, { plain: "plain", tool: "tool", parallel: "parallel tools", failing: "failing tool" }[about]);
    });

    test(`AG-UI ${version}: ${about}, cut in the middle and told again`, async (t) => {
      tolerateCuts(t);
      const headers = { "Idempotency-Key": crypto.randomUUID() };
      const away = open(t, about, { base: await cutting(t, '"STEP_STARTED"'), headers });
      const before = structuredClone(away.messages);
      await assert.rejects(run(away, { runId: "run-1" }), "a cut must not look like an end");
      const agent = new sdk.HttpAgent({ url: `${url}/agui`, headers, threadId: away.threadId, initialMessages: before });
      assert.equal((await run(agent, { runId: "run-1" })).outcome.type, "success");
      assert.equal(agent.messages.length, said.length + 1);
      assert.equal(lines(agent).at(-1), said.at(-1));
      ranCut(t, client, { plain: "plain", tool: "tool", parallel: "parallel tools", failing: "failing tool" }[about]);
    });
  }

  test(`AG-UI ${version}: a thread that another format began`, async (t) => {
    const agent = new sdk.HttpAgent({ url: `${url}/agui`, threadId: await begunThread(), initialMessages: [{ id: "u", role: "user", content: "recall" }] });
    assert.equal((await run(agent)).result.answer, askedBefore);
    ran(t, client, "thread");
  });

  test(`AG-UI ${version}: progress and log messages`, async (t) => {
    const agent = open(t, "steps");
    const { custom } = await run(agent);
    const activities = agent.messages.filter((message) => message.role === "activity");
    assert.deepEqual(activities.map((message) => [message.activityType, message.content.progress, message.content.total]), [["tool_progress", 3, 3]]);
    assert.deepEqual(custom, ["log", "log", "log"]);
  });

  for (const [name, payload, result] of [
    ["yes", { approved: true }, "tool: now"],
    ["yes, with other arguments", { approved: true, editedArgs: { text: "later" } }, "tool: later"],
    ["no", { approved: false, reason: "not today" }, "tool: Error: A person refused this call. Their reason: not today"],
    ["never mind", undefined, "tool: Error: A person refused this call."],
  ]) {
    test(`AG-UI ${version}: an approval, ${name}`, async (t) => {
      const agent = open(t, "approval");
      const { outcome } = await run(agent);
      assert.equal(outcome.type, "interrupt");
      const [asked] = outcome.interrupts;
      assert.deepEqual([asked.reason, asked.toolCallId, asked.responseSchema.required], ["tool_call", "call_1", ["approved"]]);
      const resume = [{ interruptId: asked.id, ...(payload ? { status: "resolved", payload } : { status: "cancelled" }) }];
      const end = await run(agent, { resume });
      assert.equal(end.error, undefined);
      assert.equal(end.outcome.type, "success");
      const [call, told, answer] = lines(agent).slice(1);
      assert.equal(call, 'assistant:  echo({"text":"now"})');
      assert.ok(told.startsWith(result), told);
      assert.equal(answer, "assistant: Well.");
      ran(t, client, payload?.approved ? "approval yes" : "approval no");
    });
  }

  for (const [name, answer, said] of [["accepted", { status: "resolved", payload: { people: 4 } }, /"people":4/], ["cancelled", { status: "cancelled" }, /cancel/]]) {
    test(`AG-UI ${version}: an elicitation, ${name}`, async (t) => {
      const agent = open(t, "form");
      const { outcome } = await run(agent);
      const [asked] = outcome.interrupts;
      assert.deepEqual([asked.reason, asked.message, asked.responseSchema.required], ["input_required", "For how many?", ["people"]]);
      if (name === "accepted") {
        await assert.rejects(run(agent, { resume: [{ interruptId: asked.id, status: "resolved", payload: { people: "x" } }] }), /422/);
      }
      assert.equal((await run(agent, { resume: [{ interruptId: asked.id, ...answer }] })).outcome.type, "success");
      assert.match(lines(agent)[2], said);
      assert.equal(lines(agent)[3], "assistant: Well.");
      ran(t, client, "elicitation");
    });
  }

  test(`AG-UI ${version}: two things to answer at once`, async (t) => {
    const agent = open(t, "two");
    const { outcome } = await run(agent);
    assert.equal(outcome.interrupts.length, 2);
    const resume = outcome.interrupts.map(({ id, reason }) => ({ interruptId: id, status: "resolved", payload: reason === "tool_call" ? { approved: true } : { people: 4 } }));
    const body = { threadId: agent.threadId, runId: "half", messages: [], state: {}, tools: [], context: [], forwardedProps: {}, resume: resume.slice(1) };
    const half = await fetch(`${url}/agui`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
    assert.deepEqual([half.status, (await half.json()).errors[0].pointer], [400, "/resume"]);
    assert.equal((await run(agent, { resume })).outcome.type, "success");
    assert.equal(lines(agent).at(-1), "assistant: Both.");
    // The client forgot; the service did not.
    const again = await fetch(`${url}/agui`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ ...body, resume }) });
    assert.equal(again.status, 409);
  });

  for (const about of ["client", "both"]) {
    test(`AG-UI ${version}: a tool of the client's, there and back: ${about}`, async (t) => {
      const agent = open(t, about);
      const { outcome, result } = await run(agent, { tools: [colour] });
      assert.equal(outcome.type, "success");
      assert.equal(result.finish_reason, "tool_calls");
      const call = agent.messages.flatMap((message) => message.toolCalls ?? []).find((call) => call.function.name === "colour");
      assert.deepEqual(outcome.pendingToolCallIds, v1 ? [call.id] : undefined);
      agent.addMessage({ id: "result", role: "tool", toolCallId: call.id, content: "blue" });
      assert.equal((await run(agent, { tools: [colour] })).outcome.type, "success");
      assert.equal(lines(agent).at(-1), { client: "assistant: It is blue.", both: "assistant: Both." }[about]);
      ran(t, client, "client tool");
    });
  }

  test(`AG-UI ${version}: a model that fails`, async (t) => {
    const { error, outcome } = await run(open(t, "late"));
    assert.equal(error.code, "model_error");
    assert.equal(outcome, undefined);
    ran(t, client, "model failure");
  });

  test(`AG-UI ${version}: cut off by the model's limit`, async (t) => {
    const { outcome, result } = await run(open(t, "length"));
    assert.deepEqual([outcome.type, result.finish_reason, result.answer], ["success", "length", "So far"]);
    ran(t, client, "truncated");
  });

  test(`AG-UI ${version}: a request that is refused`, async (t) => {
    await assert.rejects(run(open(t, " ")), /400/);
    await assert.rejects(run(open(t, "plain"), { forwardedProps: { answerd: { servers: ["nosuch"] } } }), /forwardedProps\/answerd\/servers\/0/);
  });

  test(`AG-UI ${version}: cancelled`, async (t) => {
    const agent = open(t, "stuck");
    const { error, outcome } = await run(agent, {}, (id) => fetch(`${url}/runs/${id}/cancel`, { method: "POST" }));
    assert.equal(v1 ? outcome.type : error.code, "cancelled");
    ran(t, client, "cancel");
  });

  test(`AG-UI ${version}: cut in the middle, and told again`, async (t) => {
    tolerateCuts(t);
    const question = slowQuestion();
    const headers = { "Idempotency-Key": crypto.randomUUID() };
    const away = open(t, question, { base: await cutting(t, "Wait"), headers });
    const before = structuredClone(away.messages);
    await assert.rejects(run(away, { runId: "run-1" }), "a cut must not look like an end");
    const agent = new sdk.HttpAgent({ url: `${url}/agui`, headers, threadId: away.threadId, initialMessages: before });
    const resumed = run(agent, { runId: "run-1" });
    await goOn(question);
    assert.equal((await resumed).outcome.type, "success");
    assert.deepEqual(lines(agent).slice(1), ["assistant: Wait for it."]);
    ran(t, client, "cut");
    ran(t, client, "resume");
  });

}

test("AG-UI: capabilities", async () => {
  const capabilities = await (await fetch(`${url}/agui/capabilities`)).json();
  assert.deepEqual(AgentCapabilitiesSchema.parse(capabilities), capabilities);
  assert.equal(capabilities.humanInTheLoop.approveWithEdits, true);
});
