"use strict";

const { spawn } = require("node:child_process");
const { randomBytes } = require("node:crypto");
const { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } = require("node:fs");
const { tmpdir } = require("node:os");
const { join } = require("node:path");
// Taken before a test mocks it.
const { setTimeout } = require("node:timers");
const { findBinary } = require("./binary.js");

const ADMIN_KEY = "VLLM_SIM_ADMIN_API_KEY";
/** Lines of the log that are kept. */
const LOG_LINES = 10_000;
/** Children that run, with their folders. */
const running = new Map();

/** Ends all servers with this process. */
function endAll() {
  for (const [child, folder] of running) end(child, folder);
}

/** Notes a server, to be ended with this process. */
function begin(child, folder) {
  // One listener, and none while nothing runs: jest loads this module again for each test file.
  if (running.size === 0) process.on("exit", endAll);
  running.set(child, folder);
}

/** Kills a server and removes its folder. */
function end(child, folder) {
  running.delete(child);
  if (running.size === 0) process.off("exit", endAll);
  child.kill("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
}

/** Returns the value of a flag among words as they are typed. */
function flag(words, name) {
  let found;
  words.forEach((word, at) => {
    if (word.startsWith(`${name}=`)) found = word.slice(name.length + 1);
    else if (word === name) found = words[at + 1] ?? found;
  });
  return found;
}

/** Returns the path of a file that is given by its path or by its content; JSON is YAML. */
function asFile(folder, name, given) {
  if (typeof given === "string") return given;
  const path = join(folder, name);
  writeFileSync(path, JSON.stringify(given));
  return path;
}

/** Returns the command line of a server. */
function words(options, folder, ready) {
  const { model = "demo", args = [], serve = false, replies, scenario } = options;
  return [
    ...(serve ? ["serve", model] : ["--model", model]),
    ...["--host", "127.0.0.1", "--port", "0", "--request-history", "10000", "--request-history-bodies"],
    ...["--enable-request-id-headers", ...args],
    ...(scenario === undefined ? [] : ["--scenario", asFile(folder, "scenario.yaml", scenario)]),
    ...(replies === undefined ? [] : ["--replies", asFile(folder, "replies.yaml", replies)]),
    // The end of its input, which comes with the end of this process, is the server's.
    ...["--ready-file", ready, "--exit-on-stdin-eof"],
  ];
}

/** Keeps the newest lines of a stream, and what stands behind the last line break. */
class Log {
  #lines = [];
  #rest = "";

  add(text) {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    for (const line of lines) this.#lines.push(line);
    this.#lines.splice(0, this.#lines.length - LOG_LINES);
  }

  get text() {
    return [...this.#lines, this.#rest].join("\n");
  }
}

/** Resolves to the URLs of the ready file, once it is there. */
async function listening(child, ready, log, timeoutMs) {
  let ended;
  // "close" comes after the last line of the log.
  child.on("close", (code, signal) => (ended ??= new Error(`vllm-sim ended with ${signal ?? `exit code ${code}`}`)));
  child.on("error", (error) => (ended = error));
  const told = (error) => {
    const tail = log.text.trimEnd().split("\n").slice(-20).join("\n");
    if (tail) error.message += `:\n${tail}`;
    return error;
  };
  // The pauses are counted, as a test may have mocked the clock.
  for (let pause = 1, waited = 0; ; waited += pause, pause = Math.min(pause * 1.5, 50)) {
    if (existsSync(ready)) {
      const urls = JSON.parse(readFileSync(ready, "utf8")).servers.map((server) => server.url);
      if (urls.every(Boolean)) return urls;
      throw new Error("a server on a Unix socket (--uds) has no URL");
    }
    if (ended) throw told(ended);
    if (waited > timeoutMs) throw told(new Error(`vllm-sim does not listen after ${timeoutMs} ms`));
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

/** A vllm-sim on a free port of the loopback interface; startVllmSim makes one. */
class VllmSim {
  #child;
  #closed;
  #folder;
  #key;
  #log;

  constructor(child, closed, folder, key, log, urls) {
    this.#child = child;
    this.#closed = closed;
    this.#folder = folder;
    this.#key = key;
    this.#log = log;
    this.urls = urls;
    this.url = urls[0];
    this.baseUrl = `${this.url}/v1`;
    this.pid = child.pid;
  }

  get logs() {
    return this.#log.text;
  }

  async stop() {
    // Who waits for the end must be there to see it.
    for (const one of handles(this.#child)) one.ref();
    end(this.#child, this.#folder);
    await this.#closed;
  }

  async setReplies(rules) {
    const text = typeof rules === "string" ? readFileSync(rules, "utf8") : JSON.stringify(rules);
    await this.#admin("POST", "/admin/replies", text);
  }

  async configure(settings) {
    await this.#admin("POST", "/admin/config", JSON.stringify(settings));
  }

  async faults({ rate = 0, types, streamRate = 0, streamFaults } = {}) {
    await this.configure({
      "failure-injection-rate": rate,
      "stream-fault-rate": streamRate,
      ...(types && { "failure-types": types }),
      ...(streamFaults && { "stream-faults": streamFaults }),
    });
  }

  async requests({ wait, timeoutMs = 5000, ...filters } = {}) {
    const query = new URLSearchParams({ limit: "1000000" });
    for (const [name, value] of Object.entries(filters)) {
      if (value !== undefined) query.set(name, String(value));
    }
    if (wait !== undefined) {
      query.set("wait", String(wait));
      query.set("timeout", `${timeoutMs}ms`);
    }
    return (await this.#admin("GET", `/admin/requests?${query}`)).requests;
  }

  async forgetRequests() {
    return (await this.#admin("DELETE", "/admin/requests")).removed;
  }

  async #admin(method, path, body) {
    const headers = this.#key ? { Authorization: `Bearer ${this.#key}` } : {};
    const answer = await fetch(`${this.url}${path}`, { method, body, headers });
    const text = await answer.text();
    if (answer.ok) return text ? JSON.parse(text) : undefined;
    throw new Error(`${method} ${path.split("?")[0]}: status ${answer.status}: ${message(text)}`);
  }
}

/** Returns what keeps this process alive as long as a child runs. */
function handles(child) {
  return [child, child.stdin, child.stderr];
}

/** Returns the message of an error, or the beginning of a text that has none. */
function message(text) {
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.slice(0, 200);
  }
}

/** Starts a server and resolves once it listens. */
async function startVllmSim(options = {}) {
  const { args = [], serve = false, env = {}, startTimeoutMs = 30_000 } = options;
  if (!Array.isArray(args)) {
    throw new TypeError('args is a list of words, such as ["--max-num-seqs", "8"]');
  }
  const all = { ...process.env, ...env };
  // Without a key, `serve` has no /admin routes.
  const key = flag(args, "--admin-api-key") ?? all[ADMIN_KEY] ?? (serve ? randomBytes(24).toString("hex") : flag(args, "--api-key") ?? "");
  const binary = options.binary ?? findBinary(all);
  const folder = mkdtempSync(join(tmpdir(), "vllm-sim-"));
  const ready = join(folder, "ready.json");
  const log = new Log();
  const child = spawn(binary, words(options, folder, ready), {
    stdio: ["pipe", "ignore", "pipe"],
    env: { ...all, ...(key && { [ADMIN_KEY]: key }) },
  });
  try {
    begin(child, folder);
    // A program that ends before it reads its input is told of by its exit code.
    child.stdin.on("error", () => {});
    child.stderr.setEncoding("utf8").on("data", (text) => log.add(text));
    const closed = new Promise((resolve) => child.on("close", resolve).on("error", resolve));
    const urls = await listening(child, ready, log, startTimeoutMs);
    // A server that is not stopped keeps no process alive; the end of the process ends it.
    for (const one of handles(child)) one.unref();
    return new VllmSim(child, closed, folder, key, log, urls);
  } catch (error) {
    end(child, folder);
    throw error;
  }
}

module.exports = { startVllmSim, VllmSim };
