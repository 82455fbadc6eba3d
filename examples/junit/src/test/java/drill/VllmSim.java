package drill;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * A server for each test, on a free port.
 *
 * <p>With Testcontainers it is {@code new GenericContainer<>("vllm-sim").withCommand("--model", "demo")
 * .withExposedPorts(8000).waitingFor(Wait.forHttp("/health"))}.
 */
final class VllmSim implements BeforeEachCallback, AfterEachCallback {
  private static final Pattern URL = Pattern.compile("\"url\":\"([^\"]+)\"");
  private final HttpClient client = HttpClient.newHttpClient();
  private final List<String> flags;
  private Process process;
  private Path folder;
  private String url;

  VllmSim(String... flags) {
    this.flags = List.of(flags);
  }

  @Override
  public void beforeEach(ExtensionContext context) throws Exception {
    folder = Files.createTempDirectory("vllm-sim");
    Path ready = folder.resolve("ready.json");
    List<String> words = new ArrayList<>();
    words.add(System.getenv().getOrDefault("VLLM_SIM", "vllm-sim"));
    words.addAll(List.of("--model", "demo", "--host", "127.0.0.1", "--port", "0"));
    // It ends with this JVM, however that ends.
    words.addAll(List.of("--ready-file", ready.toString(), "--exit-on-stdin-eof"));
    words.addAll(flags);
    process =
        new ProcessBuilder(words)
            .redirectOutput(ProcessBuilder.Redirect.DISCARD)
            .redirectError(ProcessBuilder.Redirect.INHERIT)
            .start();
    while (!Files.exists(ready)) {
      if (!process.isAlive()) {
        throw new IllegalStateException("vllm-sim ended with " + process.exitValue());
      }
      Thread.sleep(5);
    }
    var found = URL.matcher(Files.readString(ready));
    if (!found.find()) {
      throw new IllegalStateException("no URL in " + ready);
    }
    url = found.group(1);
  }

  @Override
  public void afterEach(ExtensionContext context) throws Exception {
    process.destroyForcibly().waitFor();
    Files.deleteIfExists(folder.resolve("ready.json"));
    Files.delete(folder);
  }

  HttpResponse<String> post(String path, String body, String... headers)
      throws IOException, InterruptedException {
    var request = HttpRequest.newBuilder(URI.create(url + path));
    request.header("Content-Type", "application/json");
    if (headers.length > 0) {
      request.headers(headers);
    }
    request.POST(HttpRequest.BodyPublishers.ofString(body));
    return client.send(request.build(), HttpResponse.BodyHandlers.ofString());
  }

  HttpResponse<String> get(String path) throws IOException, InterruptedException {
    var request = HttpRequest.newBuilder(URI.create(url + path)).build();
    return client.send(request, HttpResponse.BodyHandlers.ofString());
  }
}
