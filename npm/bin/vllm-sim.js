#!/usr/bin/env node
"use strict";

// Starts the program with the same arguments; signals and the exit code pass through.
const { spawn } = require("node:child_process");
const { constants } = require("node:os");
const { findBinary } = require("../src/binary.js");

let binary;
try {
  binary = findBinary();
} catch (error) {
  console.error(`error: ${error.message}`);
  process.exit(1);
}
// Listened for before the start: a signal in between would end this process alone.
for (const signal of ["SIGHUP", "SIGINT", "SIGTERM"]) process.on(signal, () => child.kill(signal));
const child = spawn(binary, process.argv.slice(2), { stdio: "inherit" });
child.on("error", (error) => {
  console.error(`error: cannot start ${binary}: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
