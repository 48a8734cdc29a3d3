// The AI SDK's providers for OpenAI's interfaces: it asks the service as it asks a model.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { begun, cutting, endOf, goOn, ran, slowQuestion, url } from "./service.js";

const providers = {
  "openai responses": (base, more) => createOpenAI({ baseURL: `${base}/v1`, apiKey: "none", ...more }).responses("scripted"),
  "openai chat": (base, more) => createOpenAI({ baseURL: `${base}/v1`, apiKey: "none", ...more }).chat("scripted"),
  "openai-compatible": (base, more) => createOpenAICompatible({ name: "answerd", baseURL: `${base}/v1`, includeUsage: true, ...more })("scripted"),
  "open-responses": (base, more) => createOpenResponses({ name: "answerd", url: `${base}/v1/responses`, apiKey: "none", ...more })("scripted"),
};

/** Requests in a thread of a name that the test knows. */
const inThread = (thread) => ({
  fetch: (url, init) => fetch(url, { ...init, body: JSON.stringify({ ...JSON.parse(init.body), answerd: { thread_id: thread } }) }),
});

/** The questions that name scenarios of the table. */
const scenarios = { plain: "plain", tool: "tool", parallel: "parallel tools", failing: "failing tool", form: "elicitation", approval: "approval no" };

/** Asks by streaming, and fails if a part of the stream is an error. */
async function stream(options) {
  const errors = [];
  const result = streamText({ maxRetries: 0, onError: ({ error }) => void errors.push(error), ...options });
  const parts = [];
  try {
    for await (const part of result.fullStream) parts.push(part);
  } catch (error) {
    errors.push(error);
  }
  return { result, parts, errors };
}

for (const [name, provider] of Object.entries(providers)) {
  const model = provider(url);
  const client = `ai-sdk ${name}`;

  // What needs an approval is declined in chats; Responses asks, see below.
  const declined = name.includes("responses") ? {} : { approval: "Well." };
  for (const [about, answer] of Object.entries({ plain: "Hello there.", tool: "It is 3.", parallel: "Done.", failing: "It failed.", form: "Well.", ...declined })) {
    test(`${name}: ${about}`, async (t) => {
      const whole = await generateText({ model, prompt: about, maxRetries: 0 });
      assert.equal(whole.text, answer);
      assert.equal(whole.finishReason, "stop");
      assert.ok(whole.usage.totalTokens > 0);
      assert.equal(whole.steps.length, 1); // what the service does is no step of the client's
      const { result, parts, errors } = await stream({ model, prompt: about });
      assert.deepEqual(errors, []);
      assert.deepEqual(parts.filter((part) => part.type === "tool-error" && !part.providerExecuted), []);
      assert.equal(await result.text, answer);
      assert.ok((await result.usage).totalTokens > 0);
      ran(t, client, scenarios[about]);
    });
  }

  test(`${name}: cut off by the model's limit`, async (t) => {
    const whole = await generateText({ model, prompt: "length", maxRetries: 0 });
    assert.deepEqual([whole.text, whole.finishReason], ["So far", "length"]);
    const { result, errors } = await stream({ model, prompt: "length" });
    assert.deepEqual(errors, []);
    assert.equal(await result.finishReason, "length");
    ran(t, client, "truncated");
  });

  test(`${name}: cancelled`, async (t) => {
    const question = slowQuestion();
    const thread = crypto.randomUUID();
    const leaving = new AbortController();
    const answer = generateText({ model: provider(url, inThread(thread)), prompt: question, maxRetries: 0, abortSignal: leaving.signal });
    const end = assert.rejects(answer);
    await begun(question);
    leaving.abort();
    await end;
    assert.equal(await endOf(thread), "cancelled");
    ran(t, client, "cancel");
  });

  test(`${name}: a tool of the client's, there and back`, async (t) => {
    const asked = [];
    const tools = {
      colour: tool({
        inputSchema: jsonSchema({ type: "object", properties: { of: { type: "string" } } }),
        execute: async (input) => (asked.push(input), "blue"),
      }),
    };
    const options = { model, prompt: "client", tools, stopWhen: stepCountIs(5) };
    const whole = await generateText({ ...options, maxRetries: 0 });
    assert.equal(whole.text, "It is blue.");
    assert.equal(whole.steps.length, 2);
    const { result, errors } = await stream(options);
    assert.deepEqual(errors, []);
    assert.equal(await result.text, "It is blue.");
    assert.deepEqual(asked, [{ of: "sky" }, { of: "sky" }]);
    ran(t, client, "client tool");
  });

  test(`${name}: the conversation goes on`, async () => {
    const messages = [{ role: "user", content: "tool" }];
    const one = await generateText({ model, messages, maxRetries: 0 });
    messages.push(...one.response.messages, { role: "user", content: "plain" });
    const two = await generateText({ model, messages, maxRetries: 0 });
    assert.equal(two.text, "Hello there.");
  });

  test(`${name}: a model that fails`, async (t) => {
    await assert.rejects(generateText({ model, prompt: "broken", maxRetries: 0 }), (error) => error.statusCode === 502);
    for (const about of ["broken", "late"]) {
      const { errors } = await stream({ model, prompt: about });
      assert.equal(errors.length, 1, JSON.stringify(errors));
    }
    ran(t, client, "model failure");
  });

  test(`${name}: cut in the middle`, async (t) => {
    const question = slowQuestion();
    const { errors } = await stream({ model: provider(await cutting(t, "Wait")), prompt: question });
    await goOn(question);
    assert.ok(errors.length > 0);
    ran(t, client, "cut");
  });
}

for (const approve of [true, false]) {
  test(`openai responses: approval ${approve}`, async (t) => {
    const model = providers["openai responses"](url);
    const messages = [{ role: "user", content: "approval" }];
    const one = await generateText({ model, messages, maxRetries: 0 });
    const request = one.content.find((part) => part.type === "tool-approval-request");
    assert.ok(request, JSON.stringify(one.content));
    messages.push(...one.response.messages, {
      role: "tool",
      content: [{ type: "tool-approval-response", approvalId: request.approvalId, approved: approve, providerExecuted: true }],
    });
    const { result, errors } = await stream({ model, messages });
    assert.deepEqual(errors, []);
    assert.equal(await result.text, "Well.");
    ran(t, "ai-sdk openai responses", `approval ${approve ? "yes" : "no"}`);
  });
}
