// Clients of Server-Sent Events on the native stream: every scenario whole, and with the
// connection cut in its middle.
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { fetchEventSource } from "@microsoft/fetch-event-source";
import { EventSource } from "eventsource";
import { createEventSource } from "eventsource-client";
import { begunThread, cutting, goOn, ran, ranCut, askedBefore, slowQuestion, url } from "./service.js";

const ends = ["final_answer", "run_error", "cancelled"];
const types = [
  ...["start", "step_start", "text_start", "text_delta", "text_end", "step_end", "tool_call_start", "tool_call_args", "tool_call", "tool_result", "tool_error"],
  ...["approval_required", "approval_resolved", "elicitation", "elicitation_resolved", "suspended", ...ends],
];

/** What came, checked for gaps and doubles: its last event. */
function told(events) {
  assert.deepEqual(events.map((event) => event.seq), events.map((_, i) => i + 1));
  assert.equal(new Set(events.map((event) => event.run_id)).size, 1);
  return events.at(-1);
}

/**
 * Each way to read a question's events, which are shown to `see` as well; they resolve
 * when the run has ended.
 */
const readers = {
  "eventsource": (base, question, see, thread) =>
    new Promise((resolve, reject) => {
      const events = [];
      const source = new EventSource(`${base}/answer/stream?${new URLSearchParams({ question, ...thread })}`);
      source.onmessage = (event) => reject(new Error(`an event without a type: ${event.data}`));
      for (const type of types) {
        source.addEventListener(type, (event) => {
          events.push(JSON.parse(event.data));
          see?.(events.at(-1));
          if (!ends.includes(type)) return;
          source.close();
          resolve(events);
        });
      }
    }),
  "eventsource-client": async (base, question, see, thread) => {
    const events = [];
    const source = createEventSource({ url: `${base}/answer/stream`, method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ question, ...thread }) });
    for await (const { event, data } of source) {
      events.push(JSON.parse(data));
      see?.(events.at(-1));
      if (ends.includes(event)) break;
    }
    source.close();
    return events;
  },
  "fetch-event-source": async (base, question, see, thread) => {
    // It is made for browsers: it looks whether the page is hidden.
    globalThis.window ??= globalThis;
    globalThis.document ??= { hidden: false, addEventListener() {}, removeEventListener() {} };
    const events = [];
    await fetchEventSource(`${base}/answer/stream`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ question, ...thread }),
      openWhenHidden: true,
      onopen: async (response) => assert.equal(response.status, 200),
      onmessage: ({ data }) => {
        events.push(JSON.parse(data));
        see?.(events.at(-1));
      },
      onclose: () => {
        if (!ends.includes(events.at(-1).type)) throw new Error("there is more");
      },
      onerror: () => 1, // again, after 1 ms
    });
    return events;
  },
};

/** Answers what a run waits for. */
const answering = (input) => (event) => {
  if (event.type !== "suspended") return;
  const body = JSON.stringify({ id: event.interrupts[0].id, ...input });
  void fetch(`${url}/runs/${event.run_id}/input`, { method: "POST", headers: { "content-type": "application/json" }, body });
};

const cancelling = (event) => void (event.type === "tool_call" && fetch(`${url}/runs/${event.run_id}/cancel`, { method: "POST" }));
const results = (events) => events.filter((event) => event.type === "tool_result" || event.type === "tool_error").map((event) => event.kind ?? event.payload);

/** The question of each scenario, what is done meanwhile, and what is to come. */
const scenarios = {
  "plain": ["plain", { answer: "Hello there." }, []],
  "tool": ["tool", { answer: "It is 3." }, [{ sum: 3 }]],
  "parallel tools": ["parallel", { answer: "Done." }, [{ sum: 3 }, { sum: 7 }]],
  "failing tool": ["failing", { answer: "It failed." }, ["execution"]],
  "approval yes": ["approval", { answer: "Well." }, ["later"], answering({ approved: true, args: { text: "later" } })],
  "approval no": ["approval", { answer: "Well." }, ["denied"], answering({ approved: false, reason: "no" })],
  "elicitation": ["form", { answer: "Well." }, null, answering({ action: "accept", content: { people: 4 } })],
  "model failure": ["late", { code: "model_error" }, [{ sum: 3 }]],
  "cancel": ["stuck", { type: "cancelled" }, null, cancelling],
  "truncated": ["length", { answer: "So far", finish_reason: "length" }, []],
};

describe("clients of Server-Sent Events", { concurrency: true, timeout: 60_000 }, () => {
  for (const [name, read] of Object.entries(readers)) {
    for (const [scenario, [question, end, said, see]] of Object.entries(scenarios)) {
      for (const cut of [false, true]) {
        test(`${name}: ${scenario}${cut ? ", cut in the middle" : ""}`, async (t) => {
          const base = cut ? await cutting(t, "event: step_start\n", () => {}) : url;
          const events = await read(base, question, see);
          const last = told(events);
          assert.deepEqual({ ...last, ...end }, last);
          if (said) assert.deepEqual(results(events).sort((a, b) => (a.sum ?? 0) - (b.sum ?? 0)), said);
          (cut ? ranCut : ran)(t, name, scenario);
        });
      }
    }

    test(`${name}: a thread that another format began`, async (t) => {
      assert.equal(told(await read(url, "recall", undefined, { thread_id: await begunThread() })).answer, askedBefore);
      ran(t, name, "thread");
    });

    test(`${name}: cut while the answer is on its way`, async (t) => {
      const question = slowQuestion();
      const proxy = await cutting(t, "Wait", () => goOn(question));
      assert.equal(told(await read(proxy, question)).answer, "Wait for it.");
      ran(t, name, "cut");
      ran(t, name, "resume");
    });
  }
});
