// A fake vLLM in Go's tests: cd examples/go && go test. VLLM_SIM names the program.
package drill

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// startSim starts a server on a free port, waits until it listens and kills it when the test ends.
func startSim(t *testing.T, args ...string) string {
	t.Helper()
	program := os.Getenv("VLLM_SIM")
	if program == "" {
		program = "vllm-sim"
	}
	ready := filepath.Join(t.TempDir(), "ready.json")
	words := append([]string{"--model", "demo", "--host", "127.0.0.1", "--port", "0", "--ready-file", ready}, args...)
	sim := exec.Command(program, words...)
	sim.Stderr = os.Stderr
	if err := sim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = sim.Process.Kill()
		_ = sim.Wait()
	})
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(ready)
		if err != nil {
			continue
		}
		var told struct{ Servers []struct{ URL string } }
		if err := json.Unmarshal(text, &told); err != nil {
			t.Fatal(err)
		}
		return told.Servers[0].URL
	}
	t.Fatal("vllm-sim does not listen")
	return ""
}

func chat(t *testing.T, url string) (int, string) {
	t.Helper()
	body := `{"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}`
	request, _ := http.NewRequest("POST", url+"/v1/chat/completions", strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", t.Name())
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

func TestAScriptFailsOnceAndThenAnswers(t *testing.T) {
	script := filepath.Join(t.TempDir(), "replies.yaml")
	rules := "- {say: Fine., fail: {times: 1, error: server_error}}\n"
	if err := os.WriteFile(script, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	url := startSim(t, "--replies", script, "--request-history", "100", "--log-level", "warn")
	if status, _ := chat(t, url); status != 503 {
		t.Fatalf("status %d", status)
	}
	if status, text := chat(t, url); status != 200 || !strings.Contains(text, "Fine.") {
		t.Fatalf("status %d: %s", status, text)
	}
	answer, err := http.Get(url + "/admin/requests?wait=2")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var told struct{ Requests []struct{ Attempt int } }
	if err := json.NewDecoder(answer.Body).Decode(&told); err != nil {
		t.Fatal(err)
	}
	if len(told.Requests) != 2 || told.Requests[1].Attempt != 2 {
		t.Fatalf("attempts %+v", told.Requests)
	}
}
