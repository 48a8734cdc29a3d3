// The service that the live tests ask, and what they do to the way there.
import { connect, createServer } from "node:net";

/** The address of the service. */
export const url = process.env.ANSWERD_URL;

/** A question whose answer begins and then waits for goOn. */
export const slowQuestion = () => `slow ${crypto.randomUUID()}`;

/** Lets the answer to a slow question go on. */
export const goOn = (question) => fetch(`${process.env.CONTROL_URL}?question=${encodeURIComponent(question)}`);

/**
 * A proxy on loopback that cuts the connection as soon as the service has sent a text. With
 * `after` it cuts only once, and calls that.
 */
export async function cutting(t, text, after) {
  let cut = false;
  const target = new URL(url);
  const server = createServer((client) => {
    const upstream = connect(Number(target.port), target.hostname);
    let seen = "";
    upstream.on("data", (data) => {
      client.write(data);
      seen += data;
      if (seen.includes(text) && !(after && cut)) {
        cut = true;
        client.resetAndDestroy();
        upstream.destroy();
        after?.();
      }
    });
    client.on("data", (data) => upstream.write(data));
    for (const [one, other] of [[client, upstream], [upstream, client]]) {
      one.on("error", () => other.destroy());
      one.on("close", () => other.destroy());
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  return `http://127.0.0.1:${server.address().port}`;
}
