// OpenAI's own client, on both of its interfaces.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI, { APIError } from "openai";
import { begun, begunThread, cutting, endOf, goOn, heldQuestion, ran, ranCut, askedBefore, slowQuestion, url } from "./service.js";

const clientOf = (base) => new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", maxRetries: 0 });
const client = clientOf(url);
const model = "scripted";
const ask = (content) => [{ role: "user", content }];
/** The questions that name scenarios of the table. */
const scenarios = { plain: "plain", tool: "tool", parallel: "parallel tools", failing: "failing tool", form: "elicitation", approval: "approval no" };
const colour = { name: "colour", parameters: { type: "object", properties: { of: { type: "string" } } } };

/** Everything that an iterable gives. */
async function all(iterable) {
  const out = [];
  for await (const one of iterable) out.push(one);
  return out;
}

/**
 * Asks for a response that is cut behind the first event with a text, and goes on with it:
 * every event, and the response at its end.
 */
async function cutAndGoOn(t, text, body, between) {
  const away = clientOf(await cutting(t, text));
  const seen = [];
  await assert.rejects(async () => {
    for await (const event of await away.responses.create({ model, stream: true, ...body })) seen.push(event);
  });
  const { id } = seen[0].response;
  await between?.(id);
  const events = [...seen, ...(await all(await client.responses.retrieve(id, { stream: true, starting_after: seen.at(-1).sequence_number })))];
  assert.deepEqual(events, await all(await client.responses.retrieve(id, { stream: true })));
  return { events, end: events.at(-1).response };
}

test("models", async () => {
  assert.equal((await client.models.retrieve("scripted:no-tools")).id, "scripted:no-tools");
  await assert.rejects(client.models.retrieve("other"), (error) => error.status === 404 && error.code === "model_not_found");
  assert.deepEqual((await all(client.models.list())).map((one) => one.id), ["scripted", "scripted:no-tools"]);
});

test("chat: a thread that another format began", async (t) => {
  const answer = await client.chat.completions.create({ model, messages: ask("recall"), answerd: { thread_id: await begunThread() } });
  assert.equal(answer.choices[0].message.content, askedBefore);
  ran(t, "openai chat", "thread");
});

test("responses: a thread that another format began, and a response that is no longer there", async (t) => {
  const conversation = await begunThread();
  const first = await client.responses.create({ model, input: "recall", conversation });
  assert.equal(first.output_text, askedBefore);
  assert.equal(first.conversation.id, conversation);
  const next = await client.responses.create({ model, input: "recall", previous_response_id: first.id });
  assert.equal(next.output_text, "You asked: recall");
  assert.equal((await fetch(`${url}/threads/${conversation}`, { method: "DELETE" })).status, 204);
  await assert.rejects(client.responses.create({ model, input: "recall", previous_response_id: first.id }), (error) => error.status === 404 && error.param === "previous_response_id");
  ran(t, "openai responses", "thread");
});

for (const [about, answer] of Object.entries({ plain: "Hello there.", tool: "It is 3.", parallel: "Done.", failing: "It failed.", form: "Well.", approval: "Well." })) {
  test(`chat: ${about}`, async (t) => {
    const whole = await client.chat.completions.create({ model, messages: ask(about) });
    assert.equal(whole.choices[0].message.content, answer);
    assert.equal(whole.choices[0].finish_reason, "stop");
    assert.ok(whole.usage.total_tokens > 0);
    const helper = client.chat.completions.stream({ model, messages: ask(about), stream_options: { include_usage: true } });
    assert.equal((await helper.finalChatCompletion()).choices[0].message.content, answer);
    assert.deepEqual((await helper.totalUsage()).total_tokens, whole.usage.total_tokens);
    const chunks = await all(await client.chat.completions.create({ model, messages: ask(about), stream: true }));
    assert.equal(chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join(""), answer);
    assert.ok(chunks.every((chunk) => chunk.usage === undefined));
    ran(t, "openai chat", scenarios[about]);
  });
}

test("chat: cut off by the model's limit", async (t) => {
  const whole = await client.chat.completions.create({ model, messages: ask("length"), max_tokens: 5 });
  assert.deepEqual([whole.choices[0].finish_reason, whole.choices[0].message.content], ["length", "So far"]);
  const streamed = await client.chat.completions.stream({ model, messages: ask("length") }).finalChatCompletion();
  assert.deepEqual([streamed.choices[0].finish_reason, streamed.choices[0].message.content], ["length", "So far"]);
  ran(t, "openai chat", "truncated");
});

test("chat: cancelled, by the caller who leaves and from outside", async (t) => {
  for (const stream of [false, true]) {
    const question = slowQuestion();
    const thread = crypto.randomUUID();
    const leaving = new AbortController();
    const answer = client.chat.completions.create({ model, messages: ask(question), stream, answerd: { thread_id: thread } }, { signal: leaving.signal });
    const end = stream ? answer.then(all) : assert.rejects(answer, (error) => error.name.includes("Abort") || /abort/i.test(error.message));
    await begun(question);
    if (!stream) {
      leaving.abort();
      await end;
    } else {
      const { runs } = await (await fetch(`${url}/runs?thread_id=${thread}`)).json();
      await fetch(`${url}/runs/${runs[0].run_id}/cancel`, { method: "POST" });
      assert.equal((await end).at(-1).choices[0].finish_reason, "stop");
    }
    assert.equal(await endOf(thread), "cancelled");
  }
  ran(t, "openai chat", "cancel");
});

test("chat: what an answer would lack is refused by name", async () => {
  for (const [param, value] of Object.entries({ n: 2, logprobs: true, modalities: ["audio"], logit_bias: { 1: 1 } })) {
    await assert.rejects(client.chat.completions.create({ model, messages: ask("plain"), [param]: value }), (error) => error.status === 400 && error.param === param);
  }
});

test("chat: a tool of the client's, there and back, by its own runner", async (t) => {
  const asked = [];
  const tools = [{ type: "function", function: { ...colour, parse: JSON.parse, function: (args) => (asked.push(args), "blue") } }];
  for (const stream of [false, true]) {
    const runner = client.chat.completions.runTools({ model, messages: ask("client"), tools, stream });
    assert.equal(await runner.finalContent(), "It is blue.");
  }
  assert.deepEqual(asked, [{ of: "sky" }, { of: "sky" }]);
  ran(t, "openai chat", "client tool");
});

test("chat: a server's tool and the client's in one turn", async () => {
  const answer = await client.chat.completions.create({ model, messages: ask("both"), tools: [{ type: "function", function: colour }] });
  assert.equal(answer.choices[0].finish_reason, "tool_calls");
  assert.deepEqual(answer.choices[0].message.tool_calls.map((call) => call.function.name), ["colour"]);
  assert.match(answer.choices[0].message.reasoning_content, /\[add: \{"sum":3\}\]/);
});

test("chat: a model that fails", async (t) => {
  const failed = (error) => error instanceof APIError && error.status === 502 && error.code === "model_error";
  await assert.rejects(client.chat.completions.create({ model, messages: ask("broken") }), failed);
  await assert.rejects(all(await client.chat.completions.create({ model, messages: ask("broken"), stream: true })), (error) => error instanceof APIError && error.code === "model_error");
  await assert.rejects(client.chat.completions.stream({ model, messages: ask("late") }).finalContent(), APIError);
  await assert.rejects(client.chat.completions.create({ model: "other", messages: ask("plain") }), (error) => error.status === 404 && error.code === "model_not_found");
  ran(t, "openai chat", "model failure");
});

test("chat: what ran tools, and what a retry cannot fix, is not repeated", async () => {
  for (const [about, posts] of Object.entries({ late: 1, broken: 1 })) {
    let count = 0;
    const eager = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 2, fetch: (...args) => (count++, fetch(...args)) });
    await assert.rejects(eager.chat.completions.create({ model, messages: ask(about) }), APIError);
    assert.equal(count, posts, about);
  }
});

test("chat: cut in the middle", async (t) => {
  const away = clientOf(await cutting(t, "Wait"));
  const question = slowQuestion();
  const seen = [];
  await assert.rejects(async () => {
    for await (const chunk of await away.chat.completions.create({ model, messages: ask(question), stream: true })) seen.push(chunk);
  });
  await goOn(question);
  // The run went on: whoever asked with the run's id at hand can read it natively.
  const run = seen[0].id.replace("chatcmpl-", "");
  const events = await (await fetch(`${url}/runs/${run}/events`)).text();
  assert.match(events, /"answer":"Wait for it\."/);
  ran(t, "openai chat", "cut");
});

for (const [about, answer] of Object.entries({ plain: "Hello there.", tool: "It is 3.", parallel: "Done.", failing: "It failed.", form: "Well." })) {
  test(`responses: ${about}`, async (t) => {
    const whole = await client.responses.create({ model, input: about });
    assert.equal(whole.output_text, answer);
    assert.equal(whole.status, "completed");
    const calls = whole.output.filter((item) => item.type === "mcp_call");
    assert.deepEqual(calls.map((call) => call.status), { plain: [], tool: ["completed"], parallel: ["completed", "completed"], failing: ["failed"], form: ["completed"] }[about]);
    const helper = client.responses.stream({ model, input: about });
    const events = await all(helper);
    assert.equal((await helper.finalResponse()).output_text, answer);
    assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, i) => i));
    const { id } = await helper.finalResponse();
    assert.equal((await client.responses.retrieve(id)).output_text, answer);
    for (const after of [0, 3, events.length - 2]) {
      const rest = await all(await client.responses.retrieve(id, { stream: true, starting_after: after }));
      assert.deepEqual(rest, events.slice(after + 1).map(({ snapshot, ...event }) => event));
    }
    assert.equal((await client.responses.stream({ response_id: id }).finalResponse()).output_text, answer);
    ran(t, "openai responses", scenarios[about]);
  });

  test(`responses: ${about}, cut in the middle, and gone on from there`, async (t) => {
    const { end } = await cutAndGoOn(t, about === "plain" ? "output_text.delta" : "output_item.done", { input: about });
    assert.equal((await client.responses.retrieve(end.id)).output_text, answer);
    ranCut(t, "openai responses", scenarios[about]);
  });
}

test("responses: cut off by the model's limit", async (t) => {
  const whole = await client.responses.create({ model, input: "length" });
  assert.deepEqual([whole.status, whole.incomplete_details.reason, whole.output_text], ["incomplete", "max_output_tokens", "So far"]);
  assert.equal((await client.responses.stream({ model, input: "length" }).finalResponse()).status, "incomplete");
  ran(t, "openai responses", "truncated");
});

test("responses: what it was asked with, and deleted", async () => {
  const { id } = await client.responses.create({ model, input: [{ role: "user", content: "one" }, { role: "assistant", content: "two" }, { role: "user", content: "plain" }] });
  const items = await all(client.responses.inputItems.list(id, { order: "asc", limit: 2 })); // turns the pages itself
  assert.deepEqual(items.map((item) => `${item.role}: ${item.content[0].text}`), ["user: one", "assistant: two", "user: plain"]);
  await client.responses.delete(id);
  await assert.rejects(client.responses.retrieve(id), (error) => error.status === 404);
});

test("responses: previous_response_id", async () => {
  const one = await client.responses.create({ model, input: "My name is Ada." });
  const two = await client.responses.create({ model, input: "tool", previous_response_id: one.id });
  assert.equal(two.output_text, "It is 3.");
  assert.equal(two.previous_response_id, one.id);
});

for (const approve of [true, false]) {
  test(`responses: approval ${approve}`, async (t) => {
    const one = await client.responses.create({ model, input: "approval" });
    const [request] = one.output;
    assert.equal(request.type, "mcp_approval_request");
    const input = [{ type: "mcp_approval_response", approval_request_id: request.id, approve }];
    const helper = client.responses.stream({ model, previous_response_id: one.id, input });
    const two = await helper.finalResponse();
    assert.equal(two.output_text, "Well.");
    const call = two.output.find((item) => item.type === "mcp_call");
    assert.equal(call.approval_request_id, request.id);
    assert.equal(call.status, approve ? "completed" : "failed");
    assert.equal((await client.responses.retrieve(two.id)).output_text, "Well.");
    assert.equal((await client.responses.inputItems.list(two.id)).data[0].approve, approve);
    ran(t, "openai responses", `approval ${approve ? "yes" : "no"}`);
  });
}

for (const approve of [true, false]) {
  test(`responses: approval ${approve}, cut before the question and behind the answer`, async (t) => {
    const question = heldQuestion("approval");
    const one = (await cutAndGoOn(t, "response.in_progress", { input: question })).end;
    const [request] = one.output;
    assert.equal(request.type, "mcp_approval_request");
    const input = [{ type: "mcp_approval_response", approval_request_id: request.id, approve }];
    const { end } = await cutAndGoOn(t, "output_item.done", { previous_response_id: one.id, input }, () => goOn(question));
    assert.deepEqual(end.output.map((item) => `${item.type} ${item.status}`), [`mcp_call ${approve ? "completed" : "failed"}`, "message completed"]);
    assert.equal((await client.responses.retrieve(end.id)).output_text, "Well.");
    ranCut(t, "openai responses", `approval ${approve ? "yes" : "no"}`);
  });
}

test("responses: a function of the client's, cut before the call and behind the output", async (t) => {
  const tools = [{ type: "function", ...colour, strict: false }];
  const one = (await cutAndGoOn(t, "response.in_progress", { input: "client", tools })).end;
  const input = [{ type: "function_call_output", call_id: one.output[0].call_id, output: "blue" }];
  const { end } = await cutAndGoOn(t, "response.in_progress", { previous_response_id: one.id, input, tools });
  assert.equal((await client.responses.retrieve(end.id)).output_text, "It is blue.");
  ranCut(t, "openai responses", "client tool");
});

test("responses: cut in the middle, and ended otherwise than by an answer", async (t) => {
  const late = heldQuestion("late");
  const failed = (await cutAndGoOn(t, "output_item.done", { input: late }, () => goOn(late))).end;
  assert.deepEqual([failed.status, failed.error.code], ["failed", "model_error"]);
  ranCut(t, "openai responses", "model failure");
  const long = heldQuestion("length");
  const limited = (await cutAndGoOn(t, "response.in_progress", { input: long }, () => goOn(long))).end;
  assert.deepEqual([limited.status, limited.incomplete_details.reason], ["incomplete", "max_output_tokens"]);
  ranCut(t, "openai responses", "truncated");
  const { end } = await cutAndGoOn(t, "output_text.delta", { input: slowQuestion(), background: true }, (id) => client.responses.cancel(id));
  assert.equal(end.status, "cancelled");
  ranCut(t, "openai responses", "cancel");
});

test("responses: two approvals at once", async () => {
  const one = await client.responses.create({ model, input: "twice" });
  assert.deepEqual(one.output.map((item) => item.type), ["mcp_approval_request", "mcp_approval_request"]);
  const input = one.output.map(({ id }, i) => ({ type: "mcp_approval_response", approval_request_id: id, approve: i === 0 }));
  const two = await client.responses.create({ model, previous_response_id: one.id, input });
  assert.deepEqual(two.output.map((item) => `${item.type} ${item.status}`).sort(), ["mcp_call completed", "mcp_call failed", "message completed"]);
});

test("responses: a function of the client's, there and back", async (t) => {
  const tools = [{ type: "function", ...colour, strict: false }];
  const helper = client.responses.stream({ model, input: "client", tools });
  const one = await helper.finalResponse();
  const [call] = one.output;
  assert.equal(call.type, "function_call");
  const output = { type: "function_call_output", call_id: call.call_id, output: "blue" };
  const two = await client.responses.create({ model, tools, previous_response_id: one.id, input: [output] });
  assert.equal(two.output_text, "It is blue.");
  const three = await client.responses.create({ model, tools, store: false, input: [{ role: "user", content: "client" }, call, output] });
  assert.equal(three.output_text, "It is blue.");
  ran(t, "openai responses", "client tool");
});

test("responses: a model that fails", async (t) => {
  await assert.rejects(client.responses.create({ model, input: "broken" }), (error) => error.status === 502 && error.code === "model_error");
  const failed = await client.responses.stream({ model, input: "late" }).finalResponse();
  assert.equal(failed.status, "failed");
  assert.equal(failed.error.code, "model_error");
  ran(t, "openai responses", "model failure");
});

test("responses: cut in the middle, and gone on from there", async (t) => {
  const away = clientOf(await cutting(t, "Wait"));
  const question = slowQuestion();
  const seen = [];
  await assert.rejects(async () => {
    for await (const event of await away.responses.create({ model, input: question, stream: true })) seen.push(event);
  });
  await goOn(question);
  const rest = await all(await client.responses.retrieve(seen[0].response.id, { stream: true, starting_after: seen.at(-1).sequence_number }));
  const text = [...seen, ...rest].filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join("");
  assert.equal(text, "Wait for it.");
  assert.equal(rest.at(-1).response.output_text ?? rest.at(-1).response.output[0].content[0].text, "Wait for it.");
  ran(t, "openai responses", "cut");
  ran(t, "openai responses", "resume");
});

test("responses: background and cancel", async (t) => {
  const begun = await client.responses.create({ model, input: slowQuestion(), background: true });
  assert.equal(begun.status, "in_progress");
  const helper = client.responses.stream({ response_id: begun.id });
  for await (const event of helper) {
    if (event.type === "response.output_text.delta") break;
  }
  assert.equal((await client.responses.cancel(begun.id)).status, "cancelled");
  const events = await all(await client.responses.retrieve(begun.id, { stream: true }));
  assert.equal(events.at(-1).response.status, "cancelled");
  ran(t, "openai responses", "cancel");
});
