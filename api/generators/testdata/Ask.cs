// Asks with the C# client of openapi-generator. This is C# 7, which Mono's compiler supports too.
using System;
using Org.OpenAPITools.Api;
using Org.OpenAPITools.Model;

class Ask
{
    static void Main()
    {
        string url = Environment.GetEnvironmentVariable("ANSWERD_URL");
        Answer answer = new AnswersApi(url).Answer(new Question("What is 12.5 * 8?"));
        Status run = new RunsApi(url).GetRun(answer.RunId);
        if (run.VarStatus != Status.StatusEnum.Completed)
        {
            throw new Exception("the run is not completed: " + run);
        }
        Console.WriteLine(string.Join(",", answer.Metadata.ToolNames) + " " + answer.VarAnswer.Split('\n')[0]);
    }
}
