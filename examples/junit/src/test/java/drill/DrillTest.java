package drill;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.http.HttpResponse;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** What a client does about a failure, and what an agent does with a tool. */
class DrillTest {
  private static final String CHAT = "/v1/chat/completions";

  @RegisterExtension final VllmSim sim = new VllmSim("--request-history", "100");

  private static String said(String text) {
    return "{\"model\": \"demo\", \"messages\": [{\"role\": \"user\", \"content\": \"" + text + "\"}]}";
  }

  /** What is tested: a client that retries after as many seconds as it is told. */
  private HttpResponse<String> patientChat(String text) throws Exception {
    for (int attempt = 0; ; attempt++) {
      var answer = sim.post(CHAT, said(text), "Idempotency-Key", text);
      if (answer.statusCode() != 429 || attempt == 2) {
        return answer;
      }
      long seconds = answer.headers().firstValueAsLong("Retry-After").orElse(0);
      Thread.sleep(1000 * seconds);
    }
  }

  @Test
  void waitsAsLongAsItIsToldTo() throws Exception {
    sim.post(
        "/admin/replies",
        "[{\"say\": \"Here I am.\", \"fail\": {\"times\": 1, \"error\": \"rate_limit\", \"retry_after\": 1}}]");
    assertTrue(patientChat("busy").body().contains("Here I am."));
    String asked = sim.get("/admin/requests?key=busy&wait=2").body();
    assertTrue(asked.contains("\"attempt\":2"), asked);
  }

  @Test
  void callsTheToolThatIsScripted() throws Exception {
    sim.post(
        "/admin/replies",
        "[{\"call\": {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}}]");
    String tools =
        ", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get_weather\","
            + " \"parameters\": {\"type\": \"object\"}}}]}";
    var answer = sim.post(CHAT, said("Weather?").replaceFirst("}$", tools));
    assertEquals(200, answer.statusCode(), answer.body());
    assertTrue(answer.body().contains("\"finish_reason\":\"tool_calls\""), answer.body());
  }
}
