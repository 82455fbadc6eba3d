import { afterAll, afterEach, beforeAll, beforeEach } from "vitest";
import hooks from "./hooks.js";

export function vllmSim(options = {}) {
  // vitest reads the names of a hook's parameters, and takes what a hook returns for its undoing.
  const bare = (hook) => (run) => hook(async () => void (await run()));
  const each = (run) => afterEach(async (context) => void (await run(context)));
  const all = { beforeAll: bare(beforeAll), afterAll: bare(afterAll), beforeEach: bare(beforeEach), afterEach: each };
  return hooks.withHooks(all, options, (context) => context.task.result?.state === "fail");
}
