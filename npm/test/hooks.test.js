"use strict";

const assert = require("node:assert/strict");
const { describe, test } = require("node:test");
const { vllmSim } = require("vllm-sim/node-test");

describe("a server for each test", () => {
  const sim = vllmSim({ replies: [{ say: "Fine." }] });
  const seen = new Set();

  for (const turn of [1, 2]) {
    test(`turn ${turn}`, async () => {
      assert.equal((await fetch(`${sim.url}/health`)).status, 200);
      assert.deepEqual(await sim.requests(), []);
      assert.equal(sim.baseUrl, `${sim.url}/v1`);
      seen.add(sim.pid);
      assert.equal(seen.size, turn);
    });
  }
});

describe("a server for a file", () => {
  const sim = vllmSim({ per: "file" });
  const seen = new Set();

  for (const turn of [1, 2]) {
    test(`turn ${turn}`, () => {
      seen.add(sim.pid);
      assert.equal(seen.size, 1);
    });
  }
});

test("outside of a test there is no server", () => {
  const sim = vllmSim();
  assert.throws(() => sim.url, /read \.url within a test/);
  assert.throws(() => vllmSim({ per: "process" }), /per is "test" or "file", not "process"/);
});
