// The golden files of the API formats, as a server that answers with one stream after another.
import { createServer } from "node:http";
import { readdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const dir = fileURLToPath(new URL("../scenario/testdata/", import.meta.url));

export const scenarios = readdirSync(dir);

/** The streams of a golden file by their titles. */
export function streams(scenario, file) {
  const out = {};
  for (const section of readFileSync(`${dir}${scenario}/${file}`, "utf8").split(/^== /m).slice(1)) {
    const end = section.indexOf("\n");
    out[section.slice(0, end)] = section.slice(end + 1);
  }
  return out;
}

/** Serves bodies in their order, and 500 after the last. */
export async function serve(t, bodies) {
  const left = [...bodies];
  const server = createServer((request, response) => {
    request.resume();
    const body = left.shift();
    response.writeHead(body === undefined ? 500 : 200, { "content-type": "text/event-stream" });
    response.end(body);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  return `http://127.0.0.1:${server.address().port}`;
}
