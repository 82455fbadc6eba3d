const { vllmSim } = require("vllm-sim/jest");

const sim = vllmSim({ per: "file", args: ["--mode", "echo"] });

test.each([1, 2])("turn %i: the server echoes", async (turn) => {
  const answer = await fetch(`${sim.baseUrl}/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model: "demo", prompt: "Hello" }),
  });
  expect((await answer.json()).choices[0].text).toBe("Hello");
  expect(await sim.requests({ wait: turn })).toHaveLength(turn);
});
