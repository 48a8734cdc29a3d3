// Asks with openapi-fetch and the types of openapi-typescript.
import createClient from "openapi-fetch";
import type { components, paths } from "./answerd";

async function ask(): Promise<void> {
  const client = createClient<paths>({ baseUrl: process.env.ANSWERD_URL! });
  const body = { question: "What is 12.5 * 8?", budget: { tool_calls: 3 } };
  const { data, error } = await client.POST("/answer", { body });
  if (error) throw new Error(error.detail);
  if ("status" in data) throw new Error(`the run is ${data.status}`); // of a background run: 202
  const run = await client.GET("/runs/{run_id}", { params: { path: { run_id: data.run_id } } });
  if (run.data?.status !== "completed") throw new Error(`the run is not completed: ${JSON.stringify(run.data)}`);
  console.log(data.metadata.tool_names, data.answer.split("\n")[0]);
}

void ask();

// textOf is compiled only: an event is known by its type.
export function textOf(event: components["schemas"]["Event"]): string {
  return event.type === "text_delta" ? event.delta : event.type === "final_answer" ? event.answer : "";
}
