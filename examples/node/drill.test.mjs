// A fake vLLM in Node's own test runner: node --test examples/node/*.mjs
// (vitest and jest take the same helpers). VLLM_SIM names the program.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, watch, existsSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

/** Starts a server on a free port; resolves once it listens. */
async function startSim(...args) {
  const folder = mkdtempSync(join(tmpdir(), "vllm-sim-"));
  const ready = join(folder, "ready.json");
  const watcher = watch(folder);
  const sim = spawn(
    process.env.VLLM_SIM ?? "vllm-sim",
    ["--model", "demo", "--host", "127.0.0.1", "--port", "0", "--ready-file", ready, ...args],
    { stdio: ["ignore", "ignore", "inherit"] },
  );
  await new Promise((resolve, reject) => {
    const look = () => existsSync(ready) && resolve();
    watcher.on("change", look);
    sim.on("exit", (code) => reject(new Error(`vllm-sim ended with ${code}`)));
    sim.on("error", reject);
    look();
  });
  watcher.close();
  const url = JSON.parse(readFileSync(ready, "utf8")).servers[0].url;
  const stop = () => {
    sim.removeAllListeners("exit");
    sim.kill("SIGKILL");
    rmSync(folder, { recursive: true });
  };
  return { url, stop };
}

let sim;
before(async () => {
  sim = await startSim("--request-history", "100", "--log-level", "warn");
});
after(() => sim.stop());

const chat = (text, headers = {}) =>
  fetch(`${sim.url}/v1/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers },
    body: JSON.stringify({ model: "demo", messages: [{ role: "user", content: text }] }),
  });

/** What is tested: a client that retries after as many seconds as it is told. */
async function patientChat(text) {
  for (let attempt = 0; ; attempt++) {
    const answer = await chat(text, { "Idempotency-Key": text });
    if (answer.status !== 429 || attempt === 2) return answer;
    const seconds = Number(answer.headers.get("retry-after"));
    await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  }
}

test("a client retries when it is told to", async () => {
  const rules = [{ say: "Fine.", fail: { times: 1, error: "rate_limit", retry_after: 1 } }];
  const set = await fetch(`${sim.url}/admin/replies`, { method: "POST", body: JSON.stringify(rules) });
  assert.equal(set.status, 200);

  const reply = await (await patientChat("hello")).json();
  assert.equal(reply.choices[0].message.content, "Fine.");

  const asked = await (await fetch(`${sim.url}/admin/requests?key=hello&wait=2`)).json();
  assert.deepEqual(asked.requests.map((request) => request.status), [429, 200]);
  assert.ok(asked.requests[1].gap_seconds >= 0.9);
});

test("a broken stream is noticed", async () => {
  const answer = await chat("hello", { "X-Sim-Fault": "cut_after=1" });
  await assert.rejects(answer.text());
});
