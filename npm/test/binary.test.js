"use strict";

const assert = require("node:assert/strict");
const { spawn, spawnSync } = require("node:child_process");
const { once } = require("node:events");
const { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } = require("node:fs");
const { tmpdir } = require("node:os");
const { join } = require("node:path");
const { after, test } = require("node:test");
const { findBinary } = require("vllm-sim");

const LAUNCHER = join(__dirname, "../bin/vllm-sim.js");
const work = mkdtempSync(join(tmpdir(), "vllm-sim-npm-"));
after(() => rmSync(work, { recursive: true }));

function program(folder, text = "#!/bin/sh\n") {
  const path = join(work, folder, "vllm-sim");
  mkdirSync(join(work, folder), { recursive: true });
  writeFileSync(path, text);
  chmodSync(path, 0o755);
  return path;
}

test("the variable wins over PATH", () => {
  const [named, other] = [program("named"), program("other")];
  const PATH = join(work, "other");
  assert.equal(findBinary({ VLLM_SIM_BINARY: named, PATH }), named);
  assert.equal(findBinary({ VLLM_SIM_BINARY: "vllm-sim", PATH }), other);
  assert.equal(findBinary({ PATH }), other);
  assert.throws(() => findBinary({ VLLM_SIM_BINARY: "/nowhere", PATH }), /VLLM_SIM_BINARY="\/nowhere" is no program/);
});

test("launchers of npm are no programs", () => {
  // npm links the launcher, pnpm writes a script in its place.
  mkdirSync(join(work, "linked"));
  symlinkSync(LAUNCHER, join(work, "linked/vllm-sim"));
  program("node_modules/.bin");
  const found = program("found");
  const folders = ["linked", "node_modules/.bin", "found"].map((folder) => join(work, folder));
  assert.equal(findBinary({ PATH: folders.join(":") }), found);
  assert.throws(() => findBinary({ PATH: folders.slice(0, 2).join(":") }), /no vllm-sim found.*VLLM_SIM_BINARY/);
});

test("the launcher passes arguments, signals and exit codes", async () => {
  const env = { ...process.env, VLLM_SIM_BINARY: program("code", '#!/bin/sh\nexit "$1"\n') };
  assert.equal(spawnSync(LAUNCHER, ["7"], { env }).status, 7);

  env.VLLM_SIM_BINARY = program("signal", "#!/bin/sh\ntrap 'exit 5' TERM\necho ready\nwhile :; do sleep 0.05; done\n");
  const child = spawn(LAUNCHER, { env, stdio: ["ignore", "pipe", "inherit"] });
  await once(child.stdout, "data");
  child.kill("SIGTERM");
  assert.equal((await once(child, "close"))[0], 5);

  env.VLLM_SIM_BINARY = "/nowhere";
  const refused = spawnSync(LAUNCHER, { env, encoding: "utf8" });
  assert.equal(refused.status, 1);
  assert.match(refused.stderr, /^error: VLLM_SIM_BINARY/);
});
