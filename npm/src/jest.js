"use strict";

const { withHooks } = require("./hooks.js");

/** Uses the globals of jest. */
function vllmSim(options = {}) {
  // With `done` as a parameter jest would wait for a call of it.
  const { beforeAll, afterAll, beforeEach, afterEach } = globalThis;
  if (beforeAll === undefined) throw new Error("vllm-sim/jest works within a test file of jest");
  const bare = (hook) => (run) => hook(() => run());
  const hooks = {
    beforeAll: bare(beforeAll),
    afterAll: bare(afterAll),
    beforeEach: bare(beforeEach),
    afterEach: bare(afterEach),
  };
  return withHooks(hooks, options);
}

module.exports = { vllmSim };
