// Asks with the TypeScript client of openapi-generator.
import { AnswersApi, Configuration, RunsApi, StatusStatusEnum } from "./answerd/index";

async function ask(): Promise<void> {
  const configuration = new Configuration({ basePath: process.env.ANSWERD_URL });
  const answer = await new AnswersApi(configuration).answer({ question: { question: "What is 12.5 * 8?" } });
  const run = await new RunsApi(configuration).getRun({ runId: answer.runId });
  if (run.status !== StatusStatusEnum.Completed) throw new Error(`the run is not completed: ${JSON.stringify(run)}`);
  console.log(answer.metadata.toolNames, answer.answer.split("\n")[0]);
}

void ask();
