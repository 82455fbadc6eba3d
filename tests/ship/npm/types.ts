import { findBinary, startVllmSim, type Options, type RecordedRequest, type VllmSim } from "vllm-sim";
import { vllmSim } from "vllm-sim/vitest";
import { vllmSim as ofNode } from "vllm-sim/node-test";
import { vllmSim as ofJest } from "vllm-sim/jest";

const options: Options = { args: ["--seed", "1"], replies: [{ say: "Fine.", fail: { times: 1 } }], env: { A: "b" } };
const server: VllmSim = await startVllmSim(options);
await server.faults({ rate: 100, types: ["rate_limit"] });
const seen: RecordedRequest[] = await server.requests({ wait: 1, key: "a" });
const gap: number | null = seen[0].gap_seconds;
await server.stop();
const urls: string[] = [vllmSim({ per: "file" }).baseUrl, ofNode().url, ofJest({ serve: true }).logs, findBinary()];
// @ts-expect-error: hooks stop it
vllmSim().stop();
// @ts-expect-error: a list of words
await startVllmSim({ args: "--seed 1" });
export { gap, urls };
