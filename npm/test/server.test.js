"use strict";

const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const { once } = require("node:events");
const { after, test } = require("node:test");
const { join } = require("node:path");
const { startVllmSim } = require("vllm-sim");

const running = [];
after(() => Promise.all(running.map((server) => server.stop())));

async function start(options) {
  const server = await startVllmSim(options);
  running.push(server);
  return server;
}

function chat(server, text = "Hello") {
  return fetch(`${server.baseUrl}/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model: "demo", messages: [{ role: "user", content: text }] }),
  });
}

for (const serve of [false, true]) {
  test(`a server answers and is gone after its end (serve: ${serve})`, async () => {
    const server = await start({ serve });
    const answer = await chat(server);
    assert.equal(answer.status, 200);
    assert.equal((await answer.json()).model, "demo");
    await server.configure({ "time-to-first-token": "1ms" });
    assert.equal(await server.forgetRequests(), 1);
    await server.stop();
    await assert.rejects(fetch(`${server.url}/health`));
    assert.throws(() => process.kill(server.pid, 0), { code: "ESRCH" });
    assert.match(server.logs, /listening on|Uvicorn running/);
  });
}

test("servers side by side have ports of their own", async () => {
  const [one, other] = await Promise.all([start(), start({ args: ["--replicas", "2"] })]);
  assert.equal(new Set([...one.urls, ...other.urls]).size, 3);
});

test("replies are scripted at start and later, and requests are seen with their attempts", async () => {
  const server = await start({ replies: [{ say: "Fine.", fail: { times: 1, error: "rate_limit" } }] });
  assert.deepEqual([(await chat(server)).status, (await chat(server)).status], [429, 200]);
  const seen = await server.requests({ wait: 2 });
  assert.deepEqual(seen.map((request) => request.status), [429, 200]);
  assert.equal(seen[0].body.messages[0].content, "Hello");
  assert.equal((await server.requests({ status: 429 })).length, 1);
  await server.setReplies([{ say: "Later." }]);
  assert.equal((await (await chat(server)).json()).choices[0].message.content, "Later.");
});

test("faults hold until they are ended", async () => {
  const server = await start();
  await server.faults({ rate: 100, types: ["server_error"] });
  assert.equal((await chat(server)).status, 503);
  await server.faults();
  assert.equal((await chat(server)).status, 200);
});

test("what the server refuses is told with its words", async () => {
  const server = await start();
  await assert.rejects(server.configure({ "no-such-flag": 1 }), /POST \/admin\/config: status 400: .*no-such-flag/);
  await assert.rejects(server.requests({ wait: 1, timeoutMs: 1 }), /GET \/admin\/requests: status 408/);
});

test("a flag that is refused is told with the log", async () => {
  await assert.rejects(startVllmSim({ args: ["--max-num-seqs", "many"] }), /exit code 2:\n.*--max-num-seqs/);
  await assert.rejects(startVllmSim({ args: "--max-num-seqs 8" }), /a list of words/);
});

test("a program that cannot be started, or says nothing, is given up", async () => {
  await assert.rejects(startVllmSim({ binary: "/nowhere/vllm-sim" }), { code: "ENOENT" });
  const idle = join(__dirname, "idle.sh");
  await assert.rejects(startVllmSim({ binary: idle, startTimeoutMs: 200 }), /does not listen after 200 ms/);
});

test("a server starts and stops while a test has mocked the clock", async (context) => {
  context.mock.timers.enable();
  const server = await start();
  assert.equal((await fetch(`${server.url}/health`)).status, 200);
  await server.stop();
});

test("variables reach the server", async () => {
  const server = await start({ env: { VLLM_SIM_SERVED_MODEL_NAME: "other" } });
  const models = await (await fetch(`${server.baseUrl}/models`)).json();
  assert.equal(models.data[0].id, "other");
});

test("a server that is not stopped ends with its process and holds nothing up", async () => {
  const script = `require("vllm-sim").startVllmSim().then((server) => console.log(server.url))`;
  const child = spawn(process.execPath, ["-e", script], { cwd: __dirname, stdio: ["ignore", "pipe", "inherit"] });
  let url = "";
  child.stdout.on("data", (text) => (url += text));
  const [code] = await once(child, "close");
  assert.equal(code, 0);
  assert.match(url, /^http:/);
  // Killed as the process ended, it may take the kernel a moment to close its sockets.
  const answers = () => fetch(`${url.trim()}/health`).then(() => true, () => false);
  for (const until = Date.now() + 10_000; Date.now() < until && (await answers()); );
  assert.equal(await answers(), false);
});
