export { vllmSim } from "./hooks.js";
export type { HookOptions } from "./hooks.js";
