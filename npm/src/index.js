"use strict";

const { findBinary } = require("./binary.js");
const { startVllmSim, VllmSim } = require("./server.js");

module.exports = { findBinary, startVllmSim, VllmSim };
