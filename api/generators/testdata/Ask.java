import org.openapitools.client.ApiClient;
import org.openapitools.client.api.AnswersApi;
import org.openapitools.client.api.RunsApi;
import org.openapitools.client.model.Answer;
import org.openapitools.client.model.Question;
import org.openapitools.client.model.Status;

/** Asks with the Java client of openapi-generator. */
public class Ask {
  public static void main(String[] args) throws Exception {
    ApiClient client = new ApiClient();
    client.updateBaseUri(System.getenv("ANSWERD_URL"));
    Answer answer = new AnswersApi(client).answer(new Question().question("What is 12.5 * 8?"), null, null, null, null);
    Status run = new RunsApi(client).getRun(answer.getRunId());
    if (run.getStatus() != Status.StatusEnum.COMPLETED) {
      throw new IllegalStateException("the run is not completed: " + run);
    }
    System.out.println(answer.getMetadata().getToolNames() + " " + answer.getAnswer().lines().findFirst().get());
  }
}
