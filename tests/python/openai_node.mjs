// Drives a running server with the official Node SDK (`npm i openai` in the folder of NODE_PATH's parent).
//
//   vllm-sim serve FOLDER --served-model-name tiny-llama --port 8000
//   cp tests/python/openai_node.mjs FOLDER_WITH_NODE_MODULES/ && node openai_node.mjs http://127.0.0.1:8000

import assert from "node:assert/strict";
import OpenAI from "openai";

const base = process.argv[2] ?? "http://127.0.0.1:8000";
const model = "tiny-llama";
const messages = [{ role: "user", content: "Tell me a story." }];
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", maxRetries: 0 });

const collect = async (stream, index = 0) => {
  let text = "";
  let finish = null;
  let usage = null;
  for await (const part of stream) {
    for (const choice of part.choices.filter((c) => c.index === index)) {
      text += choice.delta?.content ?? choice.text ?? "";
      finish = choice.finish_reason ?? finish;
    }
    usage = part.usage ?? usage;
  }
  return { text, finish, usage };
};

const checks = {
  async models() {
    const listed = await client.models.list();
    assert.deepEqual(listed.data.map((m) => m.id), [model]);
  },
  async chat() {
    const answer = await client.chat.completions.create({ model, messages, max_tokens: 20 });
    assert.ok(answer.choices[0].message.content);
    const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
    assert.equal(total_tokens, prompt_tokens + completion_tokens);
  },
  async stream() {
    const ask = { model, messages, max_tokens: 20, seed: 1 };
    const whole = await client.chat.completions.create(ask);
    const stream = await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } });
    const { text, finish, usage } = await collect(stream);
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(finish, whole.choices[0].finish_reason);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  },
  async helper() {
    const runner = client.chat.completions.stream({ model, messages, max_tokens: 20 });
    const final = await runner.finalChatCompletion();
    assert.ok(final.choices[0].message.content);
  },
  async several() {
    const answer = await client.chat.completions.create({ model, messages, n: 2, max_tokens: 20, ignore_eos: true });
    assert.deepEqual(answer.choices.map((c) => c.index), [0, 1]);
    const stream = await client.chat.completions.create({ model, messages, n: 2, max_tokens: 20, ignore_eos: true, stream: true });
    assert.ok((await collect(stream, 1)).text);
  },
  async stop() {
    const { choices } = await client.chat.completions.create({ model, messages, stop: ["e"], max_tokens: 500, ignore_eos: true });
    assert.equal(choices[0].finish_reason, "stop");
    assert.ok(!choices[0].message.content.includes("e"));
  },
  async logprobs() {
    const { choices } = await client.chat.completions.create({ model, messages, logprobs: true, top_logprobs: 2, max_tokens: 3 });
    assert.equal(choices[0].logprobs.content[0].top_logprobs.length, 2);
  },
  async completions() {
    const answer = await client.completions.create({ model, prompt: ["One", "Two"], max_tokens: 5 });
    assert.equal(answer.choices.length, 2);
    const stream = await client.completions.create({ model, prompt: "One", max_tokens: 5, stream: true });
    assert.ok((await collect(stream)).finish);
  },
  async abort() {
    const control = new AbortController();
    const ask = { model, messages, max_tokens: 1000, ignore_eos: true, stream: true };
    const stream = await client.chat.completions.create(ask, { signal: control.signal });
    for await (const _ of stream) {
      control.abort();
    }
    const metrics = async () => await (await fetch(`${base}/metrics`)).text();
    for (let i = 0; i < 100; i++) {
      if (/^vllm:num_requests_running\{[^}]*\} 0(\.0)?$/m.test(await metrics())) return;
    }
    assert.fail("a slot is stuck");
  },
  async errors() {
    await assert.rejects(client.chat.completions.create({ model: "gpt-4", messages }), OpenAI.NotFoundError);
    await assert.rejects(client.chat.completions.create({ model, messages, temperature: -1 }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, "temperature");
      return true;
    });
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log("ok  ", name);
  } catch (error) {
    failed += 1;
    console.log("FAIL", name, String(error?.stack ?? error).slice(0, 600));
  }
}
process.exit(failed > 0 ? 1 : 0);
