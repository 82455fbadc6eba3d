// A fake vLLM in vitest: cd examples/vitest && npm install && npm test. VLLM_SIM names the program.

import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import OpenAI from "openai";
import { afterAll, beforeAll, expect, test, vi } from "vitest";

let sim, folder, url;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "vllm-sim-"));
  const ready = join(folder, "ready.json");
  const flags = ["--model", "demo", "--host", "127.0.0.1", "--port", "0", "--request-history", "100"];
  sim = spawn(
    process.env.VLLM_SIM ?? "vllm-sim",
    // It ends with this process, however that ends.
    [...flags, "--ready-file", ready, "--exit-on-stdin-eof", "--log-level", "warn"],
    { stdio: ["pipe", "ignore", "inherit"] },
  );
  await vi.waitUntil(() => existsSync(ready) || sim.exitCode !== null, 30_000);
  url = JSON.parse(readFileSync(ready, "utf8")).servers[0].url;
});
afterAll(() => {
  sim?.kill("SIGKILL");
  rmSync(folder, { recursive: true });
});

const replies = (rules) =>
  fetch(`${url}/admin/replies`, { method: "POST", body: JSON.stringify(rules) });
const messages = [{ role: "user", content: "How is the weather?" }];

test("the SDK waits as long as it is told to", async () => {
  await replies([{ say: "Here I am.", fail: { times: 2, error: "rate_limit", retry_after: 1 } }]);
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 2 });
  const reply = await client.chat.completions.create({ model: "demo", messages });
  expect(reply.choices[0].message.content).toBe("Here I am.");
  const answer = await fetch(`${url}/admin/requests?wait=3`);
  const { requests } = await answer.json();
  expect(requests.map((request) => request.status)).toEqual([429, 429, 200]);
  expect(requests.map((request) => request.attempt)).toEqual([1, 2, 3]);
  for (const later of requests.slice(1)) expect(later.gap_seconds).toBeGreaterThan(0.9);
});

test("a stream that breaks off is an error", async () => {
  await replies([]);
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const headers = { "X-Sim-Fault": "cut_after=3" };
  const body = { model: "demo", messages, stream: true, ignore_eos: true };
  const stream = await client.chat.completions.create(body, { headers });
  await expect(Array.fromAsync?.(stream) ?? (async () => {
    for await (const _ of stream);
  })()).rejects.toThrow();
});
