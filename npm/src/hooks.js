"use strict";

const { startVllmSim } = require("./server.js");

/**
 * Returns a server that the hooks of a test runner start and stop, one for each test or one for a file.
 *
 * The object stands for the server that runs at the moment, so that a test file may keep it from its start.
 * `failed` tells from the arguments of the hook after a test whether that test failed.
 */
function withHooks(hooks, { per = "test", ...options }, failed = () => false) {
  const known = Object.hasOwn({ test: 1, file: 1 }, per);
  if (!known) throw new TypeError(`per is "test" or "file", not ${JSON.stringify(per)}`);
  let server;
  const start = async () => {
    server = await startVllmSim(options);
  };
  const stop = async () => {
    const ended = server;
    server = undefined;
    await ended?.stop();
  };
  const tell = (...given) => {
    if (server !== undefined && failed(...given)) console.error(`vllm-sim log:\n${server.logs}`);
  };
  if (per === "test") {
    hooks.beforeEach(start);
    hooks.afterEach(async (...given) => {
      tell(...given);
      await stop();
    });
  } else {
    hooks.beforeAll(start);
    hooks.afterEach(async (...given) => tell(...given));
    hooks.afterAll(stop);
  }
  return new Proxy({}, {
    get(_, name) {
      if (server === undefined) {
        // Runners look at symbols and `then` of what they print or await.
        if (typeof name === "symbol" || name === "then") return undefined;
        throw new Error(`the server does not run: read .${name} within a test or a hook`);
      }
      const value = server[name];
      return typeof value === "function" ? value.bind(server) : value;
    },
  });
}

module.exports = { withHooks };
