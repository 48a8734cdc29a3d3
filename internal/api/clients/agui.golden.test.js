// The golden files of AG-UI, read by the real clients.
import assert from "node:assert/strict";
import { test } from "node:test";
import { scenarios, serve, streams } from "./golden.js";

const versions = { 0: await import("@ag-ui/client-0.0"), 1: await import("@ag-ui/client") };

/** What an agent has after a run: messages and tool results as one line each. */
const lines = (agent) =>
  agent.messages.filter((message) => message.role !== "activity").map((message) => {
    const calls = (message.toolCalls ?? []).map((call) => ` ${call.function.name}(${call.function.arguments})`).join("");
    return `${message.role}: ${message.content ?? ""}${calls}`;
  });

const ends = {
  "plain": ["reasoning: Count.", "assistant: It is 3 <b>\u2028\n\"three\"</b> …"],
  "tool": ['assistant: Let me see. add({"a":1,"b":2})', 'tool: {"sum":3}', "assistant: It is 3."],
  "parallel-tools": ['assistant:  add({"a":1}) echo({})', "tool: ", "tool: one", "assistant: Done."],
  "failing-tool": ['assistant:  fail({}) add({"a":) nosuch({})', "tool: Error: the tool is out of order", "tool: Error: The arguments cannot be used.", 'tool: Error: There is no tool named "nosuch".', "assistant: I cannot say."],
  "approval-yes": ['assistant:  delete({"path":"a"})', "tool: gone", "assistant: It is gone."],
  "approval-no": ['assistant:  delete({"path":"a"})', "tool: Error: The person refused: not that one", "assistant: I left it."],
  "two-questions": ['assistant:  book({}) delete({"path":"a"})', "tool: gone", "tool: booked", "assistant: Done."],
  "elicitation": ["assistant:  book({})", "tool: Error: Nobody signed in.", "assistant: Not booked."],
  "client-tool": ['assistant: Let me look. locate({"exact":true}) add({"a":1,"b":2})', 'tool: {"sum":3}'],
  "client-tool-approval": ['assistant:  locate({}) delete({"path":"a"})', "tool: gone"],
  "client-tool-takeover": ['assistant:  locate({"exact":true}) locate({"ex) locate({})'], // messages cannot be withdrawn; the outcome names the last call alone
  "late-text": ["assistant: I have called. add({})", "tool: false", "assistant: I wait.", "assistant: No."],
  "cut-off": ["reasoning: I add.", 'assistant:  add({"a":1,"b":2})', 'tool: {"sum":3}', "assistant: So far it is"],
  "model-failure": ['assistant: It is add({"a":)', "tool: Error: The run ended before this call did."],
  "cancel": ["assistant: Wait. wait({})", "tool: Error: The run ended before this call did."],
  "cancel-asked": ["assistant:  book({})", "tool: Error: The run ended before this call did."],
  "takeover": ["assistant: It i", "assistant: It is 3."],
  "delegation-approval": ['assistant:  ask_research({"question":"Which file?"})', "tool: It is gone.", "assistant: Done."],
  "delegation-cancel": ['assistant:  ask_research({"question":"Which file?"})', "tool: Error: The call was cancelled."],
  "schema-met": ['assistant: Let me add.  add({"a":1,"b":2})', 'tool: {"sum":3}', 'assistant: {"sum":3}'],
  "schema-repaired": ['assistant: {"sum": "three"}', 'assistant: {"sum":3}'],
  "schema-not-met": ["assistant: Three.", 'assistant: {"sum":"three"}'],
};

for (const [major, sdk] of Object.entries(versions)) {
  for (const scenario of scenarios) {
    for (const replayed of [false, true]) {
      test(`AG-UI ${major}: ${scenario}${replayed ? ", replayed" : ""}`, async (t) => {
        t.mock.method(console, "warn", (...args) => assert.fail(`the client warns: ${args.join(" ")}`));
        const { replay, ...golden } = streams(scenario, `agui-${major}.golden`);
        const bodies = replayed ? [replay ?? golden["stream 1"]] : Object.values(golden);
        const agent = new sdk.HttpAgent({ url: await serve(t, bodies), threadId: "thread" });
        let resume;
        const outcomes = [];
        for (const [i] of bodies.entries()) {
          let failure;
          await agent.runAgent({ runId: `client-run-${i + 1}`, ...(resume && { resume }) }, {
            onRunErrorEvent: ({ event }) => void (failure = event),
            onRunFinishedEvent: ({ event }) => {
              outcomes.push(event.outcome.type);
              resume = event.outcome.interrupts?.map(({ id }) => ({ interruptId: id, status: "resolved", payload: { approved: true } }));
            },
          });
          if (failure) outcomes.push(failure.code);
        }
        assert.deepEqual(lines(agent), ends[scenario]);
        const last = { "model-failure": "upstream_truncated", "cancel": "cancelled", "cancel-asked": "cancelled", "delegation-cancel": "cancelled", "schema-not-met": "invalid_output" }[scenario] ?? "success";
        assert.deepEqual(outcomes, [...Array(bodies.length - 1).fill("interrupt"), last]);
      });
    }
  }
}
