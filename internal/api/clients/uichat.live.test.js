// Chats of the AI SDK, as useChat makes them, against a whole service.
import assert from "node:assert/strict";
import { test } from "node:test";
import { newChat, settled, textOf, toolsOf, versions } from "./chat.js";
import { begunThread, cutting, goOn, haltingQuestion, heldQuestion, ran, ranCut, askedBefore, slowQuestion, url } from "./service.js";

const colour = { name: "colour", description: "the colour of a thing", parameters: { type: "object", properties: { of: { type: "string" } } } };

/** Whatever the last message asks. */
const asks = (chat) => chat.lastMessage.parts.filter((part) => part.state === "approval-requested" || (part.toolName === "elicitation" && part.state === "input-available"));

const fill = (chat, part, output) => chat.addToolOutput({ tool: part.toolName, toolCallId: part.toolCallId, output });
const people = { action: "accept", content: { people: 4 } };

for (const [major, sdk] of Object.entries(versions)) {
  const client = `ai ${major}`;
  const approves = major !== "5"; // which has no chunks for it
  const open = ({ body, ...options } = {}) => newChat(sdk, { id: crypto.randomUUID(), api: `${url}/api/chat`, body: { approvals: approves, ...body }, ...options });

  test(`ai ${major}: a thread that another format began`, async (t) => {
    const chat = newChat(sdk, { id: await begunThread(), api: `${url}/api/chat` });
    await chat.sendMessage({ text: "recall" });
    assert.equal(textOf(chat), askedBefore);
    ran(t, client, "thread");
  });

  for (const [about, end] of Object.entries({
    plain: ["Hello there."],
    tool: ["It is 3.", "add:output-available"],
    parallel: ["Done.", "add:output-available", "add:output-available"],
    failing: ["It failed.", "fail:output-error"],
    steps: ["Stepped.", "steps:output-available"],
  })) {
    test(`ai ${major}: ${about}`, async (t) => {
      const chat = open();
      await chat.sendMessage({ text: about });
      assert.equal(chat.status, "ready", String(chat.error));
      assert.equal(chat.posts.length, 1, "it must not send by itself");
      assert.deepEqual([textOf(chat), ...toolsOf(chat)], end);
      const { metadata, id } = chat.lastMessage;
      assert.equal(metadata.runId, id);
      assert.equal(metadata.threadId, chat.id);
      assert.ok(metadata.usage.totalTokens > 0);
      await chat.sendMessage({ text: "plain" });
      assert.equal(textOf(chat), "Hello there.");
      assert.equal(chat.messages.length, 4);
      const scenario = { plain: "plain", tool: "tool", parallel: "parallel tools", failing: "failing tool" }[about];
      if (scenario) ran(t, client, scenario);
    });

    test(`ai ${major}: ${about}, cut in the middle and resumed`, async (t) => {
      const chat = open();
      const question = heldQuestion(about);
      const proxy = await cutting(t, about === "plain" ? '"start-step"' : '"tool-output-', () => goOn(question));
      const away = newChat(sdk, { id: chat.id, api: `${proxy}/api/chat` });
      await away.sendMessage({ text: question });
      assert.equal(away.status, "error");
      chat.messages = major === "5" ? away.messages.slice(0, 1) : away.messages;
      await chat.resumeStream();
      assert.equal(chat.status, "ready", String(chat.error));
      assert.deepEqual([textOf(chat), ...toolsOf(chat)], end);
      assert.equal(chat.messages.length, 2);
      const scenario = { plain: "plain", tool: "tool", parallel: "parallel tools", failing: "failing tool" }[about];
      if (scenario) ranCut(t, client, scenario);
    });
  }

  /** A chat behind a proxy that cuts its streams behind a text. */
  const cutOpen = async (t, text, after, options) => open({ api: `${await cutting(t, text, after)}/api/chat`, ...options });

  /** What a chat that lost its stream is when its page comes back; see version 5 below. */
  const back = (chat, options) => open({ id: chat.id, messages: major === "5" ? chat.messages.slice(0, 1) : chat.messages, ...options });

  /** Comes back and resumes: a page that then shows what it did not get. */
  async function resumed(away, options) {
    assert.equal(away.status, "error", "a cut must not look like an end");
    const chat = back(away, options);
    await chat.resumeStream();
    return chat;
  }

  const questions = { "approval yes": [true, "output-available"], "approval no": [false, "output-denied"] };
  for (const [scenario, [approved, state]] of Object.entries(questions)) {
    test(`ai ${major}: ${scenario}, cut before the question and behind the answer`, { skip: !approves && "version 5 has none" }, async (t) => {
      const question = heldQuestion("approval");
      const away = await cutOpen(t, '"tool-input-available"');
      await away.sendMessage({ text: question });
      const asked = await resumed(away, { api: `${await cutting(t, '"tool-output-', () => goOn(question))}/api/chat` });
      assert.deepEqual(toolsOf(asked), ["echo:approval-requested"]);
      await asked.addToolApprovalResponse({ id: asks(asked)[0].approval.id, approved });
      await settled(asked, 1);
      const chat = await resumed(asked);
      assert.equal(chat.status, "ready", String(chat.error));
      assert.deepEqual([chat.messages.length, textOf(chat), ...toolsOf(chat)], [2, "Well.", `echo:${state}`]);
      assert.equal(chat.posts.length, 0, "it must not send by itself");
      ranCut(t, client, scenario);
    });
  }

  test(`ai ${major}: an approval of a page that cannot ask, cut in the middle and resumed`, async (t) => {
    const question = heldQuestion("approval");
    const away = await cutOpen(t, '"tool-output-', () => goOn(question), { body: { approvals: false } });
    await away.sendMessage({ text: question });
    const chat = await resumed(away);
    assert.deepEqual([chat.status, textOf(chat), ...toolsOf(chat)], ["ready", "Well.", "echo:output-error"]);
    if (!approves) ranCut(t, client, "approval no");
  });

  test(`ai ${major}: an elicitation, cut before the question and behind the answer`, async (t) => {
    const question = heldQuestion("form");
    const away = await cutOpen(t, '"tool-input-available"');
    await away.sendMessage({ text: question });
    const asked = await resumed(away, { api: `${await cutting(t, '"tool-output-', () => goOn(question))}/api/chat` });
    await fill(asked, asks(asked)[0], people);
    await settled(asked, 1);
    const chat = await resumed(asked);
    assert.equal(chat.status, "ready", String(chat.error));
    assert.deepEqual([chat.messages.length, textOf(chat), ...toolsOf(chat)], [2, "Well.", "ask:output-available", "elicitation:output-available"]);
    const [call, form] = chat.lastMessage.parts.filter((part) => "toolCallId" in part);
    assert.match(call.output, /"people":4/);
    assert.equal(form.output.action, "accept"); // the run does not keep what was filled in
    assert.equal(chat.posts.length, 0, "it must not send by itself");
    ranCut(t, client, "elicitation");
  });

  test(`ai ${major}: a tool of the page's, cut before the call and behind its result`, async (t) => {
    const question = haltingQuestion("client");
    const body = { tools: [colour] };
    const away = await cutOpen(t, '"start-step"', () => goOn(`${question} 0`), { body });
    await away.sendMessage({ text: question });
    const called = await resumed(away, { body });
    assert.deepEqual([called.status, ...toolsOf(called)], ["ready", "tool-colour:input-available"]);
    const answering = await cutOpen(t, '"start-step"', () => goOn(`${question} 1`), { id: away.id, body, messages: called.messages });
    await answering.addToolOutput({ tool: "colour", toolCallId: called.lastMessage.parts.at(-1).toolCallId, output: "blue" });
    await settled(answering, 1);
    const chat = await resumed(answering, { body, messages: answering.messages });
    assert.equal(chat.status, "ready", String(chat.error));
    assert.equal(textOf(chat), "It is blue.");
    const calls = chat.messages.flatMap((message) => message.parts).filter((part) => part.type === "tool-colour");
    assert.deepEqual(calls.map(({ state, output }) => [state, output]), [["output-available", "blue"]], "the call and its result stay");
    ranCut(t, client, "client tool");
  });

  test(`ai ${major}: cut in the middle, and ended otherwise than by an answer`, async (t) => {
    const late = heldQuestion("late");
    const failing = await cutOpen(t, '"tool-output-', () => goOn(late));
    await failing.sendMessage({ text: late });
    const failed = await resumed(failing);
    assert.deepEqual([failed.status, failed.lastMessage.metadata.error.code, ...toolsOf(failed)], ["error", "model_error", "add:output-available"]);
    ranCut(t, client, "model failure");
    const long = heldQuestion("length");
    const limiting = await cutOpen(t, '"start-step"', () => goOn(long));
    await limiting.sendMessage({ text: long });
    const limited = await resumed(limiting);
    assert.deepEqual([textOf(limited), limited.lastMessage.metadata.finishReason], ["So far", "length"]);
    ranCut(t, client, "truncated");
    const stuck = await cutOpen(t, '"tool-input-available"');
    await stuck.sendMessage({ text: "stuck" });
    const chat = back(stuck);
    const answer = chat.resumeStream();
    await chat.state.until(() => chat.status === "streaming");
    assert.equal((await fetch(`${url}/api/chat/${chat.id}/stop`, { method: "POST" })).status, 204);
    await answer;
    assert.deepEqual([chat.status, ...toolsOf(chat)], ["ready", "wait:output-error"]);
    ranCut(t, client, "cancel");
  });

  test(`ai ${major}: progress and log messages`, async () => {
    const logs = [];
    const chat = open({ onData: (part) => logs.push(part) });
    await chat.sendMessage({ text: "steps" });
    const progress = chat.lastMessage.parts.filter((part) => part.type === "data-tool-progress");
    assert.deepEqual(progress.map((part) => [part.data.progress, part.data.total]), [[3, 3]], "one part per call, renewed");
    assert.ok(logs.some((part) => part.type === "data-log" && part.data.logger === "steps"));
    assert.ok(chat.lastMessage.parts.every((part) => part.type !== "data-log"));
  });

  for (const approved of [true, false]) {
    test(`ai ${major}: an approval, ${approved ? "yes" : "no"}`, { skip: !approves && "version 5 has none" }, async (t) => {
      const chat = open();
      await chat.sendMessage({ text: "approval" });
      const id = chat.lastMessage.id;
      assert.deepEqual(toolsOf(chat), ["echo:approval-requested"]);
      await chat.addToolApprovalResponse({ id: asks(chat)[0].approval.id, approved, reason: "so be it" });
      await settled(chat, 2);
      assert.equal(chat.status, "ready", String(chat.error));
      assert.equal(chat.posts.length, 2);
      assert.deepEqual([chat.lastMessage.id, textOf(chat), ...toolsOf(chat)], [id, "Well.", `echo:${approved ? "output-available" : "output-denied"}`]);
      ran(t, client, approved ? "approval yes" : "approval no");
    });
  }

  test(`ai ${major}: two approvals at once`, { skip: !approves && "version 5 has none" }, async () => {
    const chat = open();
    await chat.sendMessage({ text: "twice" });
    const [one, two] = asks(chat);
    await chat.addToolApprovalResponse({ id: one.approval.id, approved: true });
    await chat.addToolApprovalResponse({ id: two.approval.id, approved: false });
    await settled(chat, 2);
    assert.equal(chat.status, "ready", String(chat.error));
    assert.equal(chat.posts.length, 2, "both go in one request");
    assert.deepEqual([textOf(chat), ...toolsOf(chat)], ["Well.", "echo:output-available", "echo:output-denied"]);
  });

  test(`ai ${major}: an approval of a page that cannot ask`, async (t) => {
    const chat = newChat(sdk, { id: crypto.randomUUID(), api: `${url}/api/chat`, body: { approvals: false } });
    await chat.sendMessage({ text: "approval" });
    // The chunk for a refusal is one that version 5 does not know.
    assert.equal(chat.status, "ready", String(chat.error));
    assert.deepEqual([textOf(chat), ...toolsOf(chat)], ["Well.", "echo:output-error"]);
    ran(t, client, "approval no");
  });

  for (const [output, said] of [[people, /"people":4/], [{ action: "decline" }, /decline/]]) {
    test(`ai ${major}: an elicitation, ${output.action}`, async (t) => {
      const chat = open();
      await chat.sendMessage({ text: "form" });
      const [part] = asks(chat);
      assert.deepEqual([part.input.mode, part.input.message, part.input.schema.required], ["form", "For how many?", ["people"]]);
      await fill(chat, part, output);
      await settled(chat, 2);
      assert.equal(chat.status, "ready", String(chat.error));
      assert.equal(chat.posts.length, 2);
      assert.deepEqual([textOf(chat), ...toolsOf(chat)], ["Well.", "ask:output-available", "elicitation:output-available"]);
      const [asked, answered] = chat.lastMessage.parts.filter((part) => "toolCallId" in part);
      assert.match(asked.output, said);
      assert.deepEqual(answered.output, output, "what was filled in stays");
      ran(t, client, "elicitation");
    });
  }

  test(`ai ${major}: a form that is filled in wrong can be filled in again`, async () => {
    const chat = open();
    await chat.sendMessage({ text: "form" });
    const [part] = asks(chat);
    await fill(chat, part, { action: "accept", content: { people: "x" } });
    await settled(chat, 2);
    assert.equal(chat.status, "error");
    assert.equal(JSON.parse(chat.error.message).errors[0].pointer, "/messages/1/parts/2/output/content/people");
    await fill(chat, part, people);
    await settled(chat, 3);
    assert.equal(textOf(chat), "Well.");
  });

  test(`ai ${major}: two things to answer at once`, { skip: !approves && "version 5 has no approvals" }, async () => {
    const chat = open();
    await chat.sendMessage({ text: "two" });
    const [approval, form] = asks(chat);
    await fill(chat, form, people); // sent at once, by the SDK's helper for tools
    await settled(chat, 2);
    assert.deepEqual(toolsOf(chat).slice(0, 1), ["echo:approval-requested"]);
    assert.equal(chat.posts.length, 2, "it must not send the form for ever");
    await chat.addToolApprovalResponse({ id: approval.approval.id, approved: true });
    await settled(chat, 3);
    assert.equal(chat.status, "ready", String(chat.error));
    assert.equal(textOf(chat), "Both.");
    assert.equal(chat.posts.length, 3);
  });

  for (const about of ["client", "both", ...(approves ? ["three"] : [])]) {
    test(`ai ${major}: a tool of the page's, there and back: ${about}`, async (t) => {
      const chat = open({
        body: { tools: [colour] },
        onToolCall: (chat, call) => call.toolName === "colour" && chat.addToolOutput({ tool: "colour", toolCallId: call.toolCallId, output: "blue" }),
      });
      const answer = chat.sendMessage({ text: about });
      let posts = 2;
      if (about === "three") {
        await settled(chat, 1);
        await chat.addToolApprovalResponse({ id: asks(chat)[0].approval.id, approved: true });
        posts = 3;
      }
      await answer;
      await settled(chat, posts);
      assert.equal(chat.status, "ready", String(chat.error));
      assert.equal(chat.posts.length, posts);
      assert.equal(chat.messages.length, 2, "it goes on with the same message");
      assert.equal(textOf(chat), { client: "It is blue.", both: "Both.", three: "All." }[about]);
      assert.ok(toolsOf(chat).includes("tool-colour:output-available"));
      assert.deepEqual(chat.calls, ["colour"]);
      ran(t, client, "client tool");
    });
  }

  test(`ai ${major}: cut off by the model's limit`, async (t) => {
    const chat = open();
    await chat.sendMessage({ text: "length" });
    assert.equal(chat.status, "ready", String(chat.error));
    assert.deepEqual([textOf(chat), chat.lastMessage.metadata.finishReason], ["So far", "length"]);
    ran(t, client, "truncated");
  });

  test(`ai ${major}: a model that fails`, async (t) => {
    const chat = open();
    await chat.sendMessage({ text: "late" });
    assert.equal(chat.status, "error");
    assert.match(chat.error.message, /model/i);
    assert.equal(chat.lastMessage.metadata.error.code, "model_error");
    assert.deepEqual(toolsOf(chat), ["add:output-available"]);
    assert.equal(chat.posts.length, 1);
    ran(t, client, "model failure");
  });

  test(`ai ${major}: a message made anew`, async () => {
    const chat = open();
    await chat.sendMessage({ text: "tool" });
    const { id } = chat.lastMessage;
    await chat.regenerate();
    assert.equal(chat.status, "ready", String(chat.error));
    assert.deepEqual([chat.messages.length, textOf(chat), chat.posts.length, chat.posts[1].trigger], [2, "It is 3.", 2, "regenerate-message"]);
    assert.notEqual(chat.lastMessage.id, id);
  });

  test(`ai ${major}: a request that is refused`, async () => {
    const chat = open({ body: { answerd: { servers: ["nosuch"] } } });
    await chat.sendMessage({ text: "plain" });
    assert.equal(chat.status, "error");
    const problem = JSON.parse(chat.error.message);
    assert.deepEqual([problem.code, problem.errors[0].pointer], ["invalid_request", "/answerd/servers/0"]);
  });

  test(`ai ${major}: stopped by the page`, async (t) => {
    const chat = open();
    const answer = chat.sendMessage({ text: "stuck" });
    await chat.state.until(() => chat.status === "streaming");
    assert.equal((await fetch(`${url}/api/chat/${chat.id}/stop`, { method: "POST" })).status, 204);
    await answer;
    assert.equal(chat.status, "ready");
    assert.deepEqual(toolsOf(chat), ["wait:output-error"]);
    await chat.resumeStream();
    assert.equal(chat.status, "ready");
    assert.equal(chat.posts.length, 1);
    ran(t, client, "cancel");
  });

  test(`ai ${major}: stopped while it waits for a person`, async () => {
    const chat = open();
    await chat.sendMessage({ text: "form" });
    const [part] = asks(chat);
    assert.equal((await fetch(`${url}/api/chat/${chat.id}/stop`, { method: "POST" })).status, 204);
    await fill(chat, part, people);
    await settled(chat, 2);
    assert.equal(JSON.parse(chat.error.message).code, "conflict");
    assert.equal(chat.posts.length, 2);
  });

  for (const [when, late] of Object.entries({ "goes on": false, "has ended": true })) {
    test(`ai ${major}: cut in the middle, resumed when the run ${when}`, async (t) => {
      const question = slowQuestion();
      const chat = open();
      const away = newChat(sdk, { id: chat.id, api: `${await cutting(t, "Wait")}/api/chat` });
      await away.sendMessage({ text: question });
      assert.equal(away.status, "error");
      assert.equal(textOf(away), "Wait");
      // A page of version 5 shows a replay behind what it has; it has to begin anew.
      chat.messages = major === "5" ? away.messages.slice(0, 1) : away.messages;
      if (late) {
        await goOn(question);
        const { runId } = away.lastMessage.metadata;
        const events = await fetch(`${url}/runs/${runId}/events`);
        assert.match(await events.text(), /final_answer/);
        await chat.resumeStream();
      } else {
        const resumed = chat.resumeStream();
        await chat.state.until(() => chat.status === "streaming");
        await goOn(question);
        await resumed;
      }
      assert.equal(chat.status, "ready", String(chat.error));
      assert.deepEqual([chat.messages.length, textOf(chat)], [2, "Wait for it."]);
      assert.equal(chat.lastMessage.id, away.lastMessage.id);
      const before = structuredClone(chat.messages);
      await chat.resumeStream(); // idle
      assert.equal(chat.status, "ready");
      assert.deepEqual(chat.messages, before);
      ran(t, client, "cut");
      ran(t, client, "resume");
    });
  }

  test(`ai ${major}: reloaded while it waits for a person`, async () => {
    const chat = open();
    await chat.sendMessage({ text: "form" });
    const again = newChat(sdk, { id: chat.id, api: `${url}/api/chat`, messages: chat.messages.slice(0, 1) });
    await again.resumeStream();
    await fill(again, asks(again)[0], people);
    await settled(again, 1);
    assert.equal(again.status, "ready", String(again.error));
    assert.deepEqual([textOf(again), again.lastMessage.id], ["Well.", chat.lastMessage.id]);
  });
}
