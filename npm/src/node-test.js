"use strict";

const { after, afterEach, before, beforeEach } = require("node:test");
const { withHooks } = require("./hooks.js");

function vllmSim(options = {}) {
  const hooks = { beforeAll: before, afterAll: after, beforeEach, afterEach };
  return withHooks(hooks, options, (context) => context?.passed === false);
}

module.exports = { vllmSim };
