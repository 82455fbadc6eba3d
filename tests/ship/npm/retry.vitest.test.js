import OpenAI from "openai";
import { expect, test } from "vitest";
import { vllmSim } from "vllm-sim/vitest";

const sim = vllmSim({ replies: [{ say: "Fine.", fail: { times: 1, error: "rate_limit" } }] });

// Each test has a server of its own, so both see the failure of the first request.
test.each(["first", "second"])("%s test: the SDK tries again", async () => {
  const client = new OpenAI({ baseURL: sim.baseUrl, apiKey: "none", maxRetries: 1 });
  const messages = [{ role: "user", content: "Hello" }];
  const reply = await client.chat.completions.create({ model: "demo", messages });
  expect(reply.choices[0].message.content).toBe("Fine.");
  const seen = await sim.requests({ wait: 2 });
  expect(seen.map((request) => request.status)).toEqual([429, 200]);
});
