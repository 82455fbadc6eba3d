import { expect, test } from "vitest";
import { vllmSim } from "vllm-sim/vitest";

const sim = vllmSim();

// Fails on purpose: the log of its server must be shown.
test("a test that fails", () => {
  expect(sim.url).toBe("elsewhere");
});
