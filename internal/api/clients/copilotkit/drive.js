// The runtime of docs/clients/copilotkit.md, asked by the client that CopilotKit's React components
// have inside: node drive.js example.mjs question prints the conversation.
import { Server } from "node:http";
import { pathToFileURL } from "node:url";

const [example, question] = process.argv.slice(2);
const listen = Server.prototype.listen;
const port = new Promise((resolve) => {
  // Whichever port is free, instead of the example's.
  Server.prototype.listen = function () {
    return listen.call(this, 0, "127.0.0.1", () => resolve(this.address().port));
  };
});
await import(pathToFileURL(example));
// The client connects in browsers only.
globalThis.window = { addEventListener() {}, removeEventListener() {}, setTimeout, clearTimeout, location: new URL("http://127.0.0.1/") };
const { CopilotKitCore } = await import("@copilotkit/core");
const core = new CopilotKitCore({});
core.setRuntimeTransport("rest");
const connected = new Promise((resolve, reject) => {
  core.subscribe({
    onRuntimeConnectionStatusChanged: ({ status }) => status === "connected" && resolve(),
    onError: ({ error }) => reject(error),
  });
});
core.setRuntimeUrl(`http://127.0.0.1:${await port}/api/copilotkit`);
await connected;
const agent = core.getAgent("answerd");
agent.addMessage({ id: "question", role: "user", content: question });
await core.runAgent({ agent });
for (const message of agent.messages) console.log(`${message.role}: ${message.content ?? ""}`);
process.exit(0);
