// Clients of Server-Sent Events on the native stream, cut in the middle.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fetchEventSource } from "@microsoft/fetch-event-source";
import { EventSource } from "eventsource";
import { createEventSource } from "eventsource-client";
import { cutting, goOn, slowQuestion, url } from "./service.js";

const types = ["start", "step_start", "text_start", "text_delta", "text_end", "step_end", "tool_call_start", "tool_call_args", "tool_call", "tool_result", "final_answer"];

/** What came, checked for gaps and doubles: its types, and the answer. */
function told(events) {
  assert.deepEqual(events.map((event) => event.seq), events.map((_, i) => i + 1));
  assert.equal(new Set(events.map((event) => event.run_id)).size, 1);
  return events.at(-1).answer;
}

/** Each way to read a question's events; they resolve when final_answer is there. */
const readers = {
  "eventsource": (base, question) =>
    new Promise((resolve, reject) => {
      const events = [];
      const source = new EventSource(`${base}/answer/stream?${new URLSearchParams({ question })}`);
      source.onmessage = (event) => reject(new Error(`an event without a type: ${event.data}`));
      for (const type of types) {
        source.addEventListener(type, (event) => {
          events.push(JSON.parse(event.data));
          if (type !== "final_answer") return;
          source.close();
          resolve(events);
        });
      }
    }),
  "eventsource-client": async (base, question) => {
    const events = [];
    const source = createEventSource({ url: `${base}/answer/stream`, method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ question }) });
    for await (const { event, data } of source) {
      events.push(JSON.parse(data));
      if (event === "final_answer") break;
    }
    source.close();
    return events;
  },
  "fetch-event-source": async (base, question) => {
    // It is made for browsers: it looks whether the page is hidden.
    globalThis.window ??= globalThis;
    globalThis.document ??= { hidden: false, addEventListener() {}, removeEventListener() {} };
    const events = [];
    await fetchEventSource(`${base}/answer/stream`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ question }),
      openWhenHidden: true,
      onopen: async (response) => assert.equal(response.status, 200),
      onmessage: ({ data }) => void events.push(JSON.parse(data)),
      onerror: () => 1, // again, after 1 ms
    });
    return events;
  },
};

for (const [name, read] of Object.entries(readers)) {
  test(`${name}: plain`, async () => assert.equal(told(await read(url, "plain")), "Hello there."));
  test(`${name}: tool`, async () => assert.equal(told(await read(url, "tool")), "It is 3."));
  test(`${name}: cut in the middle`, { timeout: 30_000 }, async (t) => {
    const question = slowQuestion();
    const proxy = await cutting(t, "Wait", () => goOn(question));
    assert.equal(told(await read(proxy, question)), "Wait for it.");
  });
}
