"use strict";

const { accessSync, constants, realpathSync, statSync } = require("node:fs");
const { delimiter, join, sep } = require("node:path");

const VARIABLE = "VLLM_SIM_BINARY";

/** Returns the path of a file that can be executed, or undefined. */
function executable(path) {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile() ? path : undefined;
  } catch {
    return undefined;
  }
}

/** Tells whether a path is the launcher of this package, which would start itself for ever. */
function isLauncher(path) {
  const real = realpathSync(path);
  return [path, real].some((one) => one.includes(`${sep}node_modules${sep}.bin${sep}`))
    || real.endsWith(join("bin", "vllm-sim.js"));
}

/** Returns the first program of a name on PATH that is not the launcher of this package. */
function onPath(name, path) {
  const folders = (path ?? "").split(delimiter).filter(Boolean);
  const found = folders.map((folder) => executable(join(folder, name)));
  return found.find((one) => one !== undefined && !isLauncher(one));
}

/** Returns the program of the package for this machine, which npm installs where it fits. */
function packaged() {
  try {
    return executable(require.resolve(`@vllm-sim/${process.platform}-${process.arch}/bin/vllm-sim`));
  } catch {
    return undefined;
  }
}

/**
 * Returns the program: the one that VLLM_SIM_BINARY names, that of the package for this machine, or the
 * first vllm-sim on PATH.
 */
function findBinary(env = process.env) {
  const named = env[VARIABLE];
  if (named) {
    const path = named.includes(sep) ? executable(named) : onPath(named, env.PATH);
    if (path === undefined) {
      throw new Error(`${VARIABLE}=${JSON.stringify(named)} is no program that can be started`);
    }
    return path;
  }
  const path = packaged() ?? onPath("vllm-sim", env.PATH);
  if (path === undefined) {
    const machine = `${process.platform}-${process.arch}`;
    throw new Error(
      `no vllm-sim found: there is no @vllm-sim/${machine} beside this package and none on PATH; `
        + `install one (linux-x64, linux-arm64), or name a program in ${VARIABLE}`,
    );
  }
  return path;
}

module.exports = { findBinary };
