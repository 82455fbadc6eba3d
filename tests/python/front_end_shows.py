"""Runs a front end of a wheel over vllm-sim's engine core and looks at everything that a user would.

    python3 tests/python/front_end_shows.py FRONT VLLM_SIM [--server] [--only PART] [--requests N]

FRONT is `vllm-rs`, or with `--server` `vllm`, the Python server (docs/engine-core.md says how it starts
without a GPU). One line for each show, with what was seen; ends with 1 when one failed. Run it on a quiet machine:
two shows measure times. Standard library only; the model is a fixture of this repository.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from front_end_pair import ENVIRONMENT, HERE, MODEL, Pair, end, free_port, start, until

SHOWS = []
# Of vLLM, whose HTTP our own is compared with.
OWN_VERSION = "0.33"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


def show(function, fronts=("rust", "python")):
    SHOWS.append((function, fronts))
    return function


def show_of(front):
    """A show that one front end alone can give."""
    return lambda function: show(function, (front,))


@show
def streamed_chat(run):
    """20 tokens, the first after 200-230 ms, 20 ms apart."""
    with run.pair((), ("--time-to-first-token", "200ms", "--inter-token-latency", "20ms")) as pair:
        pair.stream(max_tokens=2)
        before = pair.metrics()
        streams = [pair.stream(max_tokens=20) for _ in range(5)]
        first = [1000 * times[0][0] for times in streams]
        gaps = [1000 * (times[-1][0] - times[0][0]) / (times[-1][1] - times[0][1]) for times in streams]
        for times in streams:
            assert times[0][1] == 1 and times[-1][1] == 20, times
        name = "inter_token_latency_seconds"
        count = pair.metric(f"{name}_count") - sum(v for k, v in before.items() if k.startswith(f"vllm:{name}_count"))
        total = pair.metric(f"{name}_sum") - sum(v for k, v in before.items() if k.startswith(f"vllm:{name}_sum"))
        assert count == 95 and abs(total / count - 0.02) < 1e-6, (count, total)
        seen = f"first {min(first):.0f}-{max(first):.0f} ms, median {statistics.median(first):.0f}; gap {min(gaps):.2f}-{max(gaps):.2f} ms; /metrics {1000 * total / count:.3f} ms"
        assert 200 <= statistics.median(first) <= 230 and 19 <= statistics.median(gaps) <= 21, seen
        return seen


@show_of("rust")
def engine_as_child(run):
    """`--python` starts us; SIGTERM ends both; kill -9 of us ends the front end."""
    seen = []
    for sign in (signal.SIGTERM, signal.SIGKILL):
        folder = tempfile.mkdtemp()
        wrapper, told = os.path.join(folder, "python"), os.path.join(folder, "told")
        with open(wrapper, "w") as file:
            file.write(f'#!/bin/sh\necho "$$ $*" > {told}\nexec {run.sim} "$@"\n')
        os.chmod(wrapper, 0o755)
        port = free_port()
        with tempfile.TemporaryFile() as log:
            flags = ["--host", "127.0.0.1", "--port", str(port), "--python", wrapper, "--max-num-seqs", "8", "--", "--seed", "7"]
            front = start([run.front, "serve", MODEL, *flags], log)
            pair = Pair.__new__(Pair)
            pair.port, pair.front, pair.engine, pair.log = port, front, front, log
            try:
                pair.ready()
                pair.said_to(max_tokens=3)
                engine, arguments = open(told).read().split(" ", 1)
                assert "--headless" in arguments and "--max-num-seqs 8" in arguments, arguments
                os.kill(int(engine) if sign == signal.SIGKILL else front.pid, sign)
                code = front.wait(30)
                assert (code == 0) == (sign == signal.SIGTERM), code
                until(lambda: not os.path.exists(f"/proc/{engine}"), "the engine ended")
                seen.append(f"{sign.name}: exit code {code}")
            finally:
                if front.poll() is None:
                    front.kill()
                    front.wait()
    return "; ".join(seen)


@show
def required_tool_call(run):
    with run.pair(("--enable-auto-tool-choice", "--tool-call-parser", "hermes")) as pair:
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            said = pair.said_to(tools=[WEATHER], tool_choice=choice, max_tokens=300)
            calls = said["message"]["tool_calls"]
            arguments = json.loads(calls[0]["function"]["arguments"])
            assert calls[0]["function"]["name"] == "get_weather", calls
            assert set(arguments) == {"city", "days"} and isinstance(arguments["days"], int), arguments
        return f"{len(calls)} call, {arguments}"


@show
def json_schema(run):
    schema = WEATHER["function"]["parameters"]
    with run.pair() as pair:
        form = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema}}
        said = pair.said_to(response_format=form, max_tokens=300)
        value = json.loads(said["message"]["content"])
        assert isinstance(value["city"], str) and isinstance(value["days"], int), value
        assert said["finish_reason"] == "stop", said
        return json.dumps(value)


@show
def log_probabilities(run):
    with run.pair() as pair:
        status, answer = pair.chat(logprobs=True, top_logprobs=3, prompt_logprobs=2, max_tokens=5, ignore_eos=True)
        assert status == 200, answer
        content = answer["choices"][0]["logprobs"]["content"]
        assert len(content) == 5, content
        for position in content:
            top = position["top_logprobs"]
            assert len(top) == 3 and position["logprob"] <= 0, position
            values = [entry["logprob"] for entry in top]
            assert values == sorted(values, reverse=True), values
        prompt = answer.get("prompt_logprobs") or answer["choices"][0].get("prompt_logprobs")
        assert len(prompt) == answer["usage"]["prompt_tokens"] and prompt[0] is None, len(prompt)
        return f"5 positions of 3, {len(prompt) - 1} of the prompt"


@show
def stop_and_leave(run):
    """Nothing runs 200 ms after a stop string and after a client that leaves."""
    with run.pair((), ("--inter-token-latency", "20ms")) as pair:
        running = lambda: pair.metric("num_requests_running")
        seen = []
        for what in ("stop", "leave"):
            if what == "stop":
                said = pair.said_to(stop=["e"], max_tokens=1500, ignore_eos=True)
                assert said["finish_reason"] == "stop", said
            else:
                try:
                    pair.chat(max_tokens=1500, ignore_eos=True, timeout=0.3)
                    raise AssertionError("it ended")
                except TimeoutError:
                    pass
            begun = time.perf_counter()
            until(lambda: running() == 0, "nothing runs", 5)
            took = 1000 * (time.perf_counter() - begun)
            assert took < 200, f"{what}: {took:.0f} ms"
            seen.append(f"{what} {took:.0f} ms")
        return "; ".join(seen)


@show
def twenty_at_once(run):
    """Four slots: 4 run and 16 wait, and counters are exact."""
    with run.pair((), ("--max-num-seqs", "4", "--inter-token-latency", "30ms", "--enable-prefix-caching")) as pair:
        fields = {"max_tokens": 10, "ignore_eos": True}
        text = "A prompt that is long enough for some blocks of the cache. " * 4
        _, warm = pair.chat(text, **fields)
        prompt = warm["usage"]["prompt_tokens"]
        before = {name: pair.metric(name) for name in COUNTERS}
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            chats = [pool.submit(pair.chat, text, **fields) for _ in range(20)]
            both = lambda: (pair.metric("num_requests_running"), pair.metric("num_requests_waiting")) == (4, 16)
            until(both, "4 run, 16 wait", 20)
            assert all(chat.result()[0] == 200 for chat in chats)
        until(lambda: pair.metric("num_requests_running") == 0, "nothing runs")
        counted = {name: pair.metric(name) - before[name] for name in COUNTERS}
        hits = 20 * ((prompt - 1) // 16 * 16)
        expected = dict(zip(COUNTERS, (20 * prompt, 200, 20 * prompt, hits, 20)))
        assert counted == expected, (counted, expected)
        return ", ".join(f"{name} {value:.0f}" for name, value in counted.items())


COUNTERS = ("prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total", "request_success_total")


@show
def iterations(run):
    """Requests that begin together share steps, and each step is one observation."""
    with run.pair((), ("--max-num-seqs", "4", "--inter-token-latency", "20ms")) as pair:
        pair.said_to(max_tokens=3, ignore_eos=True)
        count = lambda: pair.metric("iteration_tokens_total_count")
        begun = count()
        pair.said_to(max_tokens=12, ignore_eos=True)
        assert count() - begun == 12, count() - begun
        status, _ = pair.ask("POST", "/pause?mode=keep")
        if status != 200:
            return f"alone 12; /pause answers {status}"
        begun = count()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            chats = [pool.submit(pair.chat, max_tokens=12, ignore_eos=True) for _ in range(8)]
            # All are in the engine before it goes on.
            time.sleep(1)
            pair.ask("POST", "/resume")
            assert all(chat.result()[0] == 200 for chat in chats)
        assert count() - begun == 24, count() - begun
        return "alone 12; 8 of 12 tokens in 4 slots 24"


@show
def two_ranks(run):
    with run.pair((), (), 2) as pair:
        for rank in ("0", "1", "1"):
            pair.said_to(max_tokens=3, headers={"X-data-parallel-rank": rank})
        ended = [pair.metric("request_success_total", f'engine="{rank}"') for rank in (0, 1)]
        assert ended == [1, 2], ended
        return "rank 0: 1 request, rank 1: 2"


def with_experts(model):
    """Makes a folder one of a model with experts."""
    shutil.copytree(MODEL, model, dirs_exist_ok=True)
    with open(os.path.join(model, "config.json")) as file:
        config = json.load(file)
    config |= {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    with open(os.path.join(model, "config.json"), "w") as file:
        json.dump(config, file)


@show_of("rust")
def ranks_with_experts(run):
    """Two ranks behind the coordinator that a model with experts gets, over several waves."""
    with tempfile.TemporaryDirectory() as model:
        with_experts(model)
        with Pair(run.front, run.sim, ranks=2, model=model) as pair:
            for rank in ("0", "1", "0"):
                pair.said_to(max_tokens=3, headers={"X-data-parallel-rank": rank})
            ended = [pair.metric("request_success_total", f'engine="{rank}"') for rank in (0, 1)]
            assert ended == [2, 1], ended
            assert "coordinator=true" in pair.said(), pair.said()
            return "rank 0: 2 requests, rank 1: 1, a wave each"


@show_of("python")
def ranks_with_experts_are_refused(run):
    with tempfile.TemporaryDirectory() as model:
        with_experts(model)
        try:
            Pair(run.front, run.sim, ranks=2, model=model).close()
        except AssertionError as error:
            assert "Configuration mismatch" in str(error), error
            return "the server ends: Configuration mismatch detected"
        raise AssertionError("it serves")


@show
def adapters(run):
    with run.pair(("--enable-lora",), ("--enable-lora",)) as pair:
        load = {"lora_name": "tuned", "lora_path": MODEL}
        status, answer = pair.ask("POST", "/v1/load_lora_adapter", load)
        assert status == 200, (status, answer)
        pair.said_to(max_tokens=3, model="tuned")
        names = [model["id"] for model in pair.ask("GET", "/v1/models")[1]["data"]]
        assert "tuned" in names, names
        status, answer = pair.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "tuned"})
        assert status == 200, (status, answer)
        status, _ = pair.chat(max_tokens=3, model="tuned")
        assert status == 404, status
        return "loaded, asked, unloaded, then 404"


@show
def sleep_and_pause(run):
    with run.pair((), ("--enable-sleep-mode",)) as pair:
        steps = []

        def ask(method, path, expected=None):
            status, answer = pair.ask(method, path)
            assert status == 200, (path, status, answer)
            assert expected is None or answer == expected, (path, answer)
            steps.append(path)

        ask("POST", "/sleep?level=1")
        ask("GET", "/is_sleeping", {"is_sleeping": True})
        ask("POST", "/wake_up")
        ask("GET", "/is_sleeping", {"is_sleeping": False})
        pair.said_to(max_tokens=2)
        ask("POST", "/pause?mode=abort")
        ask("GET", "/is_paused", {"is_paused": True})
        try:
            paused = pair.chat(max_tokens=2, timeout=2)[0]
        except TimeoutError:
            paused = "queues"
        assert paused in (503, "queues"), paused
        ask("POST", "/resume")
        pair.said_to(max_tokens=2)
        ask("POST", "/reset_prefix_cache")
        return f"{', '.join(steps)}; a chat while paused: {paused}"


@show
def calls_by_name(run):
    with run.pair() as pair:
        status, answer = pair.ask("POST", "/collective_rpc", {"method": "anything"})
        assert status == 200, (status, answer)
        return json.dumps(answer)


@show
def crash(run):
    """A scenario that takes the engine away: 500, then 503 for health; exit code 1."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as scenario:
        scenario.write("name: drill\nphases:\n- {name: calm, requests: 1}\n- {name: gone, do: [{restart: 1s}]}\n")
        scenario.flush()
        with run.pair((), ("--inter-token-latency", "20ms", "--scenario", scenario.name)) as pair:
            status, _ = pair.chat(max_tokens=1500, ignore_eos=True)
            assert status == 500, status
            assert pair.engine.wait(30) == 1
            if run.kind == "python":
                pair.front.wait(60)
                return "chat 500, exit code 1; the server ends"
            until(lambda: pair.ask("GET", "/health")[0] == 503, "health is 503")
            return "chat 500, /health 503, exit code 1"


@show
def signal_to_the_engine(run):
    with run.pair((), ("--inter-token-latency", "20ms", "--shutdown-timeout", "0")) as pair:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            chat = pool.submit(pair.chat, max_tokens=1500, ignore_eos=True)
            until(lambda: pair.metric("num_requests_running") == 1, "it runs")
            code = end(pair.engine)
            status, answer = chat.result()
        assert code == 0, code
        reason = answer["choices"][0]["finish_reason"] if status == 200 else status
        return f"exit code 0; the chat that ran: {reason}"


@show
def thoughts(run):
    """A parser of thoughts finds them, in a budget too."""
    flags = ("--reasoning-parser", "qwen3")
    with run.pair(flags, flags) as pair:
        status, answer = pair.chat(max_tokens=200)
        assert status == 200, answer
        message = answer["choices"][0]["message"]
        thought = message.get("reasoning") or message.get("reasoning_content")
        assert thought and message["content"] and "think>" not in thought + message["content"], message
        off = pair.said_to(max_tokens=200, chat_template_kwargs={"enable_thinking": False})["message"]
        assert not off.get("reasoning"), off
        status, bounded = pair.chat(max_tokens=200, thinking_token_budget=5)
        assert status == 200, bounded
        return f"{len(thought)} letters of thought; usage {answer['usage'].get('completion_tokens_details')}; with a budget of 5 {bounded['usage'].get('completion_tokens_details')}"


@show
def scripted_replies(run):
    script = "- when: {contains: weather}\n  call: {name: get_weather, arguments: {city: Paris, days: 2}}\n- when: {matches: '^\\d+ degrees'}\n  say: It is warm in Paris.\n"
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as replies:
        replies.write(script)
        replies.flush()
        flags = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
        with run.pair(flags, ("--replies", replies.name)) as pair:
            said = pair.said_to("The weather?", tools=[WEATHER], tool_choice="auto", max_tokens=200)
            calls = said["message"]["tool_calls"]
            assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Paris", "days": 2}, calls
            said = pair.said_to("21 degrees", max_tokens=100)["message"]["content"]
            assert said.strip() == "It is warm in Paris.", said
            return "a call under auto, then a text"


@show
def oracle(run):
    """vllm-sim's own HTTP beside it: `front_end_oracle.py`."""
    flags = ("--max-model-len", "2048", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    delays = ("--time-to-first-token", "60ms", "--inter-token-latency", "20ms")
    with run.pair(flags, (*flags, *delays)) as pair, tempfile.TemporaryFile() as log:
        version = OWN_VERSION
        if run.kind == "rust":
            version = subprocess.run([run.front, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
        if not version.startswith(OWN_VERSION):
            return f"not of {version}: own HTTP answers as {OWN_VERSION} does"
        port = free_port()
        own = start([run.sim, "serve", MODEL, "--port", str(port), "--seed", "7", *flags, *delays], log)
        try:
            listens = lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0
            until(listens, "own HTTP serves")
            script = os.path.join(HERE, "front_end_oracle.py")
            command = [sys.executable, script, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{pair.port}"] + ["--rust"] * (run.kind == "rust")
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-500:]
            return done.stdout.splitlines()[-1]
        finally:
            end(own)


@show
def bench_serve(run):
    """The front end's own benchmark: no request fails, all tokens come."""
    with run.pair((), ("--scheduler", "vllm")) as pair, tempfile.TemporaryDirectory() as folder:
        command = [run.front, "bench", "serve", "--backend", "vllm", "--host", "127.0.0.1", "--port", str(pair.port), "--endpoint", "/v1/completions", "--model", pair.model(), "--tokenizer", MODEL, "--dataset-name", "random", "--random-input-len", "64", "--random-output-len", "32", "--num-prompts", str(run.requests), "--max-concurrency", "64", "--ignore-eos", "--disable-tqdm", "--save-result", "--result-dir", folder, "--result-filename", "r.json"]
        before = cpu(pair.engine.pid)
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ENVIRONMENT, timeout=600, check=False)
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
        used = cpu(pair.engine.pid) - before
        result = json.load(open(os.path.join(folder, "r.json")))
        tokens = result["total_output_tokens"]
        assert result["completed"] == run.requests and tokens == 32 * run.requests, (result["completed"], tokens)
        assert pair.metric("request_success_total", 'finished_reason="length"') >= run.requests
        return f"{run.requests} requests, {tokens} tokens, none failed; engine {1e6 * used / tokens:.1f} us of CPU a token"


def cpu(pid):
    """Seconds of CPU that a process has used."""
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Run:
    def __init__(self, front, sim, requests, kind):
        self.front, self.sim, self.requests, self.kind = front, sim, requests, kind

    def pair(self, front_flags=(), sim_flags=(), ranks=1):
        return Pair(self.front, self.sim, front_flags, sim_flags, ranks)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("front", help="vllm-rs of a wheel, or vllm")
    parser.add_argument("sim", help="vllm-sim")
    parser.add_argument("--server", action="store_true", help="the front end is vllm, the Python server")
    parser.add_argument("--only", default="", help="a part of the names of shows")
    parser.add_argument("--requests", type=int, default=1000, help="of the benchmark")
    args = parser.parse_args()
    kind = "python" if args.server else "rust"
    run = Run(os.path.abspath(args.front), os.path.abspath(args.sim), args.requests, kind)
    failed = 0
    for function, fronts in SHOWS:
        name = function.__name__.replace("_", " ")
        if args.only not in name or kind not in fronts:
            continue
        load = os.getloadavg()[0]
        try:
            print(f"pass  {name}: {function(run)} (load {load:.1f})", flush=True)
        except Exception as error:  # a show that fails says so, and the next one follows
            failed += 1
            text = re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")
            print(f"FAIL  {name}: {text[-1500:]} (load {load:.1f})", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
