// The golden files of the API formats, read by the real clients.
import assert from "node:assert/strict";
import { test } from "node:test";
import { newChat, settled, textOf, toolsOf, versions } from "./chat.js";
import { scenarios, serve, streams } from "./golden.js";

/** Answers one thing that the last message asks. */
async function answer(chat, yes) {
  const asks = (part) => part.state === "approval-requested" || (part.toolName === "elicitation" && part.state === "input-available");
  const part = chat.lastMessage.parts.find(asks);
  if (part.approval) {
    await chat.addToolApprovalResponse({ id: part.approval.id, approved: yes });
  } else {
    await chat.addToolOutput({ tool: part.toolName, toolCallId: part.toolCallId, output: { action: "accept", content: { people: 2 } } });
  }
}

const ends = {
  "plain": ["It is 3 <b>\u2028\n\"three\"</b> …", []],
  "tool": ["Let me see.|It is 3.", ["add:output-available"]],
  "parallel-tools": ["Done.", ["add:output-available", "echo:output-available"]],
  "failing-tool": ["I cannot say.", ["fail:output-error", "add:output-error", "nosuch:output-error"]],
  "approval-yes": ["It is gone.", ["delete:output-available"]],
  "approval-no": ["I left it.", ["delete:output-denied"]],
  "two-questions": ["Done.", ["book:output-available", "delete:output-available", "elicitation:output-available"]],
  "elicitation": ["Not booked.", ["book:output-error", "elicitation:output-available"]],
  "client-tool": ["Let me look.|It is 3 <b>\u2028\n\"three\"</b> …", ["add:output-available", "tool-locate:output-available"]],
  "client-tool-approval": ["It is 3 <b>\u2028\n\"three\"</b> …", ["delete:output-available", "tool-locate:output-available"]],
  "late-text": ["I have called.|I wait.|No.", ["add:output-available"]],
  "cut-off": ["So far it is", ["add:output-available"]],
  "model-failure": ["It is", ["add:output-error"]],
  "cancel": ["Wait.", ["wait:output-error"]],
  "cancel-asked": ["", ["book:output-error", "elicitation:output-available"]],
  "takeover": ["It i|It is 3.", []],
  "client-tool-takeover": ["It is 3 <b>\u2028\n\"three\"</b> …", ["tool-locate:output-available"]],
  "delegation-approval": ["Done.", ["ask_research:output-available", "delete:output-available"]],
  "delegation-cancel": ["", ["ask_research:output-error"]],
  "schema-met": ['Let me add. |{"sum":3}', ["add:output-available"]],
  "schema-repaired": ['{"sum": "three"}|{"sum":3}', []],
  "schema-not-met": ['Three.|{"sum":"three"}', []],
};

for (const [major, sdk] of Object.entries(versions)) {
  for (const scenario of scenarios) {
    // Version 5 has no approvals: a chunk of theirs ends its stream.
    if (major === "5" && ["approval-yes", "approval-no", "client-tool-approval", "two-questions", "delegation-approval"].includes(scenario)) continue;
    const locates = scenario.startsWith("client-tool");
    test(`ai ${major}: ${scenario}`, async (t) => {
      const { replay, ...golden } = streams(scenario, "aisdk.golden");
      const bodies = Object.values(golden);
      if (locates) bodies.push(streams("plain", "aisdk.golden")["stream 1"]);
      const chat = newChat(sdk, {
        api: await serve(t, bodies),
        onToolCall: (chat, call) => call.toolName === "locate" && chat.addToolOutput({ tool: "locate", toolCallId: call.toolCallId, output: { city: "Rome" } }),
      });
      await chat.sendMessage({ text: "?" });
      for (let i = 1; i < Object.keys(golden).length; i++) {
        await answer(chat, scenario !== "approval-no");
        // With another question open the SDK does not send by itself.
        if (i + 1 < bodies.length && scenario === "two-questions") await chat.sendMessage();
        await settled(chat, i + 1);
      }
      await settled(chat, bodies.length);
      const [text, tools] = ends[scenario];
      assert.equal(chat.posts.length, bodies.length, "requests");
      assert.equal(chat.status, ["model-failure", "schema-not-met"].includes(scenario) ? "error" : "ready", String(chat.error));
      assert.equal(chat.messages.length, 2);
      assert.equal(chat.lastMessage.id, "msg_1");
      assert.equal(textOf(chat), text);
      assert.deepEqual(toolsOf(chat), tools);
      if (scenario === "model-failure") {
        assert.match(chat.error.message, /cut off/);
        assert.deepEqual(chat.lastMessage.metadata.error, { code: "upstream_truncated", retryable: true });
      }
      const told = { "client-tool": ["locate"], "client-tool-approval": ["locate"], "client-tool-takeover": ["locate"], "elicitation": ["elicitation"], "cancel-asked": ["elicitation"], "two-questions": ["elicitation"] };
      assert.deepEqual(chat.calls, told[scenario] ?? [], "calls that the page is told of");
    });
    test(`ai ${major}: ${scenario}, replayed`, async (t) => {
      const { replay, ...golden } = streams(scenario, "aisdk.golden");
      const chat = newChat(sdk, { api: await serve(t, [replay ?? golden["stream 1"]]), messages: [{ id: "u", role: "user", parts: [{ type: "text", text: "?" }] }] });
      await chat.resumeStream();
      const [text, tools] = ends[scenario];
      assert.equal(chat.lastMessage.id, "msg_1");
      assert.equal(textOf(chat), { "client-tool": "Let me look.", "client-tool-approval": "", "client-tool-takeover": "" }[scenario] ?? text);
      assert.deepEqual(toolsOf(chat), locates ? tools.map((tool) => tool.replace(/^(tool-locate:).*/, "$1input-available")) : tools);
      assert.equal(chat.posts.length, 0);
    });
  }
}
