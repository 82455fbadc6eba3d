import assert from "node:assert/strict";
import { test } from "node:test";
import { startVllmSim } from "vllm-sim";
import { vllmSim } from "vllm-sim/node-test";

const sim = vllmSim({ serve: true });

test("hooks start a server", async () => {
  assert.equal((await fetch(`${sim.url}/health`)).status, 200);
});

test("so does a call", async () => {
  const server = await startVllmSim({ args: ["--seed", "1"], env: { VLLM_SIM_MODE: "echo" } });
  assert.equal(server.baseUrl, `${server.url}/v1`);
  await server.stop();
});
