// The service that the live tests ask, and what they do to the way there.
import { connect, createServer } from "node:net";

/** The address of the service. */
export const url = process.env.ANSWERD_URL;

/** A question whose answer begins and then waits for goOn. */
export const slowQuestion = () => `slow ${crypto.randomUUID()}`;

/** Lets the answer to a slow question go on. */
export const goOn = (question) => fetch(`${process.env.CONTROL_URL}?question=${encodeURIComponent(question)}`);

/** A question whose answer is held back until goOn, when it says that it is about that. */
export const heldQuestion = (about) => `held ${about} ${crypto.randomUUID()}`;

/** A question about that, whose every turn n is held back until goOn(`${question} ${n}`). */
export const haltingQuestion = (about) => `halting ${about} ${crypto.randomUUID()}`;

/** Resolves when the model was asked a slow question. */
export const begun = (question) => fetch(`${process.env.CONTROL_URL}/begun?question=${encodeURIComponent(question)}`);

/** Notes for the table of clients_test.go that a scenario was gone through with a client. */
export const ran = (t, client, scenario) => t.diagnostic(`ran: ${client} | ${scenario}`);

/** The same for a scenario whose streams were cut, and that was gone on with to its end. */
export const ranCut = (t, client, scenario) => ran(t, client, `${scenario}, cut`);

/** Begins a thread in the native format, with the question "plain", and returns its id. */
export async function begunThread() {
  const body = JSON.stringify({ question: "plain" });
  return (await (await fetch(`${url}/answer`, { method: "POST", headers: { "content-type": "application/json" }, body })).json()).thread_id;
}

/** What the model says to the question "recall" in that thread. */
export const askedBefore = "You asked: plain";

/** The type of the last event of the newest run of a thread, once there is one. */
export async function endOf(thread) {
  const { runs } = await (await fetch(`${url}/runs?limit=1&thread_id=${thread}`)).json();
  const events = await (await fetch(`${url}/runs/${runs[0].run_id}/events`, { signal: AbortSignal.timeout(30_000) })).text();
  return events.match(/event: .*/g).at(-1).slice("event: ".length);
}

/** Resolves when the service is done with the connection that came from a port. */
const closed = (port) => fetch(`${process.env.CONTROL_URL}/closed?port=${port}`, { signal: AbortSignal.timeout(30_000) });

/**
 * A proxy on loopback that cuts the connection when the service has sent a text, behind
 * the frame that has it. With `after` it cuts only once, and calls that when the service
 * has noticed: what it sends before that is lost without its knowledge.
 */
export async function cutting(t, text, after) {
  let cut = false;
  const target = new URL(url);
  const server = createServer((client) => {
    const upstream = connect(Number(target.port), target.hostname);
    let seen = "";
    let cutNow = false;
    upstream.on("data", (data) => {
      seen += data.toString("latin1");
      const end = seen.indexOf("\n\n", Math.max(seen.indexOf(text), 0)) + 2;
      const cuts = seen.includes(text) && end > 1 && !(after && cut);
      client.write(cuts ? data.subarray(0, data.length - (seen.length - end)) : data);
      if (cuts) {
        cut = cutNow = true;
        const port = upstream.localPort;
        upstream.destroy();
        closed(port).then(() => { client.resetAndDestroy(); after?.(); });
      }
    });
    client.on("data", (data) => upstream.write(data));
    for (const [one, other] of [[client, upstream], [upstream, client]]) {
      one.on("error", () => other.destroy());
      one.on("close", () => cutNow || other.destroy());
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  return `http://127.0.0.1:${server.address().port}`;
}
