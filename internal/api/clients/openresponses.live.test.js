// The core rules of Open Responses (its specification, OpenAPI of 2026-04-24), restated: what
// its acceptance test asks for, over plain fetch. Its items mcp_* are OpenAI's, not its own.
import assert from "node:assert/strict";
import { test } from "node:test";
import { z } from "zod";
import { url } from "./service.js";

const nullable = (schema) => z.union([schema, z.null()]);
const status = z.enum(["in_progress", "completed", "incomplete"]);
const text = z.strictObject({ type: z.literal("output_text"), text: z.string(), annotations: z.array(z.any()), logprobs: z.array(z.any()) });
const summary = z.strictObject({ type: z.literal("summary_text"), text: z.string() });
const item = z.discriminatedUnion("type", [
  z.strictObject({ type: z.literal("message"), id: z.string(), status, role: z.literal("assistant"), content: z.array(text) }),
  z.strictObject({ type: z.literal("function_call"), id: z.string(), status, call_id: z.string(), name: z.string(), arguments: z.string() }),
  z.strictObject({ type: z.literal("reasoning"), id: z.string(), status, summary: z.array(summary) }),
]);
const tokens = z.int().nonnegative();
const functionTool = z.strictObject({ type: z.literal("function"), name: z.string(), description: nullable(z.string()), parameters: nullable(z.record(z.string(), z.any())), strict: nullable(z.boolean()) });
const resource = z.strictObject({
  id: z.string(), object: z.literal("response"), created_at: z.int(), completed_at: nullable(z.int()), status: z.string(), incomplete_details: nullable(z.strictObject({ reason: z.string() })),
  model: z.string(), previous_response_id: nullable(z.string()), instructions: nullable(z.string()), output: z.array(item), error: nullable(z.strictObject({ code: z.string(), message: z.string() })),
  tools: z.array(functionTool), tool_choice: z.union([z.enum(["none", "auto", "required"]), z.looseObject({ type: z.string() })]), truncation: z.enum(["auto", "disabled"]), parallel_tool_calls: z.boolean(),
  text: z.looseObject({ format: z.discriminatedUnion("type", [
    z.strictObject({ type: z.literal("text") }),
    z.strictObject({ type: z.literal("json_object") }),
    z.looseObject({ type: z.literal("json_schema"), name: z.string(), description: nullable(z.string()), schema: z.any(), strict: z.boolean() }),
  ]) }),
  top_p: z.number(), presence_penalty: z.number(), frequency_penalty: z.number(), top_logprobs: z.int(), temperature: z.number(),
  reasoning: nullable(z.strictObject({ effort: nullable(z.string()), summary: nullable(z.string()) })), user: nullable(z.string()),
  usage: nullable(z.strictObject({ input_tokens: tokens, output_tokens: tokens, total_tokens: tokens, input_tokens_details: z.strictObject({ cached_tokens: tokens, cache_write_tokens: tokens }), output_tokens_details: z.strictObject({ reasoning_tokens: tokens }) })),
  max_output_tokens: nullable(z.int()), max_tool_calls: nullable(z.int()), store: z.boolean(), background: z.boolean(), service_tier: z.string(), metadata: z.record(z.string(), z.string()),
  safety_identifier: nullable(z.string()), prompt_cache_key: nullable(z.string()),
});

const about = { item_id: z.string(), output_index: z.int() };
const part = { ...about, content_index: z.int() };
const events = {
  ...Object.fromEntries(["created", "in_progress", "completed", "incomplete", "failed"].map((name) => [`response.${name}`, { response: resource }])),
  "response.output_item.added": { output_index: z.int(), item },
  "response.output_item.done": { output_index: z.int(), item },
  "response.content_part.added": { ...part, part: text },
  "response.content_part.done": { ...part, part: text },
  "response.output_text.delta": { ...part, delta: z.string(), logprobs: z.array(z.any()) },
  "response.output_text.done": { ...part, text: z.string(), logprobs: z.array(z.any()) },
  "response.function_call_arguments.delta": { ...about, delta: z.string() },
  "response.function_call_arguments.done": { ...about, arguments: z.string(), name: z.string() },
};

const post = (body) => fetch(`${url}/v1/responses`, { method: "POST", headers: { "content-type": "application/json", authorization: "Bearer none" }, body: JSON.stringify({ model: "scripted", ...body }) });
const message = (role, content) => ({ type: "message", role, content });
const weather = { type: "function", name: "colour", description: "the colour of a thing", parameters: { type: "object", properties: { of: { type: "string" } }, required: ["of"] } };
const pixel = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/** Asks without and with a stream, and gives the response once it was the same both ways. */
async function ask(body) {
  const whole = await post(body);
  assert.equal(whole.status, 200, await whole.clone().text());
  assert.match(whole.headers.get("content-type"), /^application\/json/);
  const response = resource.parse(await whole.json());
  const streamed = await post({ ...body, stream: true });
  assert.match(streamed.headers.get("content-type"), /^text\/event-stream/);
  const frames = (await streamed.text()).split("\n\n");
  assert.deepEqual(frames.splice(-2), ["data: [DONE]", ""]);
  const open = new Set();
  const seen = frames.map((frame, i) => {
    const [, name, data] = frame.match(/^event: (.*)\ndata: (.*)$/); // no id:, no comments
    const event = z.strictObject({ type: z.literal(name), sequence_number: z.literal(i), ...events[name] }).parse(JSON.parse(data));
    if (name === "response.output_item.added") open.add(event.item.id);
    if (event.item_id) assert.ok(open.has(event.item_id), data);
    if (name === "response.output_item.done") assert.ok(open.delete(event.item.id), data);
    return event;
  });
  assert.equal(open.size, 0);
  const last = seen.at(-1).response;
  const shape = ({ output, status }) => [status, output.map(({ id, ...rest }) => rest)];
  assert.deepEqual(shape(last), shape(response));
  return response;
}

test("Open Responses: a text", async () => {
  const response = await ask({ input: [message("user", "plain")] });
  assert.deepEqual([response.status, response.output.map((item) => item.type)], ["completed", ["message"]]);
});

test("Open Responses: a system message", async () => {
  assert.equal((await ask({ input: [message("system", "Rhyme."), message("user", "plain")] })).status, "completed");
});

test("Open Responses: a function is called, and its output comes back", async () => {
  const body = { tools: [weather], tool_choice: "required" };
  const { output, tools } = await ask({ ...body, input: [message("user", "client")] });
  assert.deepEqual(tools, [{ ...weather, strict: null }]);
  assert.deepEqual([output[0].type, output[0].status, output[0].name, JSON.parse(output[0].arguments)], ["function_call", "completed", "colour", { of: "sky" }]);
  const back = { type: "function_call_output", call_id: output[0].call_id, output: "blue" };
  const end = await ask({ tools: [weather], input: [message("user", "client"), output[0], back] });
  assert.equal(end.output[0].content[0].text, "It is blue.");
});

test("Open Responses: an image", async () => {
  const content = [{ type: "input_text", text: "What is it?" }, { type: "input_image", image_url: pixel }];
  assert.equal((await ask({ input: [message("user", content)] })).status, "completed");
});

test("Open Responses: a file", async () => {
  const content = [{ type: "input_text", text: "What is it?" }, { type: "input_file", filename: "a.pdf", file_data: "data:application/pdf;base64,JVBERi0xLjQ=" }];
  assert.equal((await ask({ input: [message("user", content)] })).status, "completed");
});

test("Open Responses: a file that is not of its type is refused by name", async () => {
  const content = [{ type: "input_text", text: "What is it?" }, { type: "input_file", filename: "a.pdf", file_data: "data:application/pdf;base64,JVBERg==" }];
  const response = await post({ input: [message("user", content)] });
  const { error } = await response.json();
  assert.deepEqual([response.status, error.param, typeof error.message, typeof error.type, typeof error.code], [400, "input[0].content[1].file_data", "string", "string", "string"]);
});

test("Open Responses: several turns, and one after another response", async () => {
  const turns = [message("user", "My name is Ada."), message("assistant", [{ type: "output_text", text: "Hello Ada." }]), message("user", "plain")];
  const { id } = await ask({ input: turns });
  const next = await ask({ input: "plain", previous_response_id: id });
  assert.equal(next.previous_response_id, id);
});

test("Open Responses: what was asked for is repeated whole", async () => {
  const format = { type: "json_schema", name: "n", schema: { type: "object" } };
  const response = await ask({ input: "plain", instructions: "Rhyme.", text: { format, verbosity: "low" }, reasoning: { effort: "low" }, tool_choice: "none", truncation: "auto", temperature: 0.5, metadata: { k: "v" }, max_output_tokens: 50 });
  assert.deepEqual(response.text, { format: { ...format, description: null, strict: false }, verbosity: "low" });
  assert.deepEqual([response.instructions, response.reasoning, response.tool_choice, response.truncation, response.temperature, response.metadata, response.max_output_tokens], ["Rhyme.", { effort: "low", summary: null }, "none", "auto", 0.5, { k: "v" }, 50]);
});

test("Open Responses: a failure and a limit end the response", async () => {
  const failed = (await (await post({ input: "late", stream: true })).text()).split("\n\n").at(-3);
  assert.match(failed, /^event: response\.failed\n/);
  assert.deepEqual((await ask({ input: "length" })).incomplete_details, { reason: "max_output_tokens" });
});
