"""Public routers in front of the simulator: prefix-aware routing, a replica that dies, P/D, indexes.

    pip install vllm-router==0.1.17 sglang-router==0.3.2 ai-dynamo-runtime==1.6.1
    python tests/python/routers.py --sim target/debug/vllm-sim [--only NAME] \
        [--vllm-router PATH] [--sglang-router PATH] [--dynamo-python PATH]

Each tool may live in an environment of its own; one that is missing is skipped. Prints one line per
case; exit code 1 when one failed.
"""
import argparse, collections, concurrent.futures, contextlib, http.client, json, os, re, shutil
import socket, subprocess, sys, tempfile, time, traceback

WORDS = "the quick brown fox jumps over the lazy dog and then it rests for a while "
HOST = "127.0.0.1"
ARGS = None
FOLDER = tempfile.mkdtemp(prefix="vllm-sim-routers-")


def free_port():
    with socket.socket() as s:
        s.bind((HOST, 0))
        return s.getsockname()[1]


def call(port, method, path, body=None, headers=None, timeout=30):
    """Status and decoded body (text when it is not JSON)."""
    conn = http.client.HTTPConnection(HOST, port, timeout=timeout)
    payload = None if body is None else json.dumps(body)
    head = {"content-type": "application/json", **(headers or {})}
    try:
        conn.request(method, path, payload, head)
        answer = conn.getresponse()
        raw = answer.read().decode()
    finally:
        conn.close()
    try:
        return answer.status, json.loads(raw)
    except ValueError:
        return answer.status, raw


def wait_for(what, seconds, look):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException):
            found = look()
            if found:
                return found
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds} s")


class Process:
    def __init__(self, name, command, env=None):
        self.log = os.path.join(FOLDER, f"{name}-{time.monotonic_ns()}.log")
        self.process = subprocess.Popen(command, stdout=open(self.log, "w"), stderr=subprocess.STDOUT,
                                        env={**os.environ, **(env or {})}, cwd=FOLDER)

    def tail(self):
        return open(self.log, errors="replace").read()[-2000:]

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Sim(Process):
    """One replica of the simulator."""
    command = ("serve",)

    def __init__(self, stack, name, *flags, model="demo", port=None, env=None):
        self.port = port or free_port()
        super().__init__(name, [ARGS.sim, *self.command, model, "--host", HOST, "--port", str(self.port), *flags],
                         {"VLLM_SERVER_DEV_MODE": "1", "PYTHONHASHSEED": "0", **(env or {})})
        stack.callback(self.kill)
        try:
            wait_for(name, 20, lambda: call(self.port, "GET", "/health")[0] == 200)
        except AssertionError:
            raise AssertionError(self.tail())

    @property
    def url(self):
        return f"http://{HOST}:{self.port}"

    def metric(self, name):
        text = call(self.port, "GET", "/metrics")[1]
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                   if re.match(re.escape(name) + r"[{ ]", line))

    def served(self):
        return self.metric("vllm:request_success_total")

    def running(self):
        return self.metric("vllm:num_requests_running")


class SglangSim(Sim):
    """One replica of the simulator as an SGLang server."""
    command = ("sglang", "--enable-metrics", "--model-path")

    def served(self):
        return self.metric("sglang:num_requests_total")

    def running(self):
        return self.metric("sglang:num_running_reqs")


class Router(Process):
    def __init__(self, stack, name, port, command):
        self.port = port
        super().__init__(name, command)
        stack.callback(self.kill)

    def ready(self, path="/health", seconds=40):
        try:
            wait_for("router", seconds, lambda: call(self.port, "GET", path)[0] == 200)
        except AssertionError:
            raise AssertionError(self.tail())


def chat(port, prompt, tokens=6, **more):
    body = {"model": "demo", "max_tokens": tokens, "ignore_eos": True,
            "messages": [{"role": "user", "content": prompt}], **more}
    return call(port, "POST", "/v1/chat/completions", body)


def stream(port, prompt, tokens):
    """Tokens seen until [DONE]; None when the stream broke or was refused."""
    conn = http.client.HTTPConnection(HOST, port, timeout=60)
    body = {"model": "demo", "max_tokens": tokens, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": prompt}]}
    try:
        conn.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        raw = conn.getresponse().read().decode()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        conn.close()
    if "data: [DONE]" not in raw:
        return None
    chunks = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith("data: {")]
    usage = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return usage[-1]["completion_tokens"]


def vllm_router(stack, policy, *flags):
    exe = ARGS.vllm_router or shutil.which("vllm-router")
    if not exe:
        raise Skip("vllm-router is not installed")
    port = free_port()
    return Router(stack, f"vllm-router-{policy}", port, [
        exe, "--host", HOST, "--port", str(port), "--prometheus-host", HOST,
        "--prometheus-port", str(free_port()), "--policy", policy,
        "--worker-startup-timeout-secs", "30", "--worker-startup-check-interval", "1",
        "--health-check-interval-secs", "1", "--health-check-timeout-secs", "2",
        "--health-failure-threshold", "2", "--health-success-threshold", "1", "--log-level", "debug",
        *flags])


def sglang_router(stack, policy, *urls, workers=None):
    exe = ARGS.sglang_router or shutil.which("sglang-router")
    if not exe:
        raise Skip("sglang-router is not installed")
    port = free_port()
    return Router(stack, f"sglang-router-{policy}", port, [
        exe, "launch", "--host", HOST, "--port", str(port), "--prometheus-host", HOST,
        "--prometheus-port", str(free_port()), "--policy", policy, *(workers or ("--worker-urls", *urls)),
        "--worker-startup-timeout-secs", "30", "--worker-startup-check-interval", "1",
        "--health-check-interval-secs", "1", "--health-check-timeout-secs", "2",
        "--health-failure-threshold", "2", "--health-success-threshold", "1", "--log-level", "debug"])


class Skip(Exception):
    pass


def sticks(router, sims, n=8):
    """Requests with one long prefix all reach the same replica."""
    before = [sim.served() for sim in sims]
    for i in range(n):
        status, body = chat(router.port, WORDS * 12 + str(i))
        assert status == 200, (status, body)
    delta = sorted(sim.served() - was for sim, was in zip(sims, before))
    assert delta == [0, n], f"requests per replica: {delta}"


def survives(router, sims, n=24):
    """A replica that is killed takes its own streams with it and no others."""
    victim = sims[0]
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        streams = [pool.submit(stream, router.port, f"{i} {WORDS}{i}", 200) for i in range(n)]
        wait_for("all streams run", 20, lambda: sum(sim.running() for sim in sims) == n)
        on_victim = victim.running()
        victim.kill()
        results = [s.result() for s in streams]
    broken = results.count(None)
    whole = [r for r in results if r is not None]
    assert broken <= on_victim and all(r == 200 for r in whole), (broken, on_victim, whole)
    assert len(whole) >= n - on_victim
    wait_for("the survivor serves", 15, lambda: chat(router.port, "after")[0] == 200)
    answers = collections.Counter(chat(router.port, f"after {i}")[0] for i in range(10))
    assert answers == {200: 10}, answers
    return f"{int(on_victim)} of {n} streams ran on the victim, {broken} broke"


SLOW = ("--inter-token-latency", "10ms", "--time-to-first-token", "20ms")


def events(port, **more):
    return json.dumps({"enable_kv_cache_events": True, "publisher": "zmq",
                       "endpoint": f"tcp://*:{port}", **more})


def case_vllm_router_cache_aware(stack):
    sims = [Sim(stack, f"sim{i}", *SLOW) for i in range(2)]
    router = vllm_router(stack, "cache_aware", "--worker-urls", *(s.url for s in sims))
    router.ready()
    sticks(router, sims)
    return survives(router, sims)


def case_vllm_router_round_robin(stack):
    sims = [Sim(stack, f"sim{i}", *SLOW) for i in range(2)]
    router = vllm_router(stack, "round_robin", "--worker-urls", *(s.url for s in sims))
    router.ready()
    for i in range(10):
        assert chat(router.port, str(i))[0] == 200
    assert [s.served() for s in sims] == [5, 5]
    return survives(router, sims)


def kv_router(stack, *flags):
    ports = [free_port() for _ in range(4)]
    sims = [Sim(stack, f"sim{i}", *flags, "--enable-scale-out", "--kv-events-config",
                events(ports[i], replay_endpoint=f"tcp://*:{ports[i + 2]}")) for i in range(2)]
    # The sources are named: what the router would ask for them, vLLM answers with 404.
    sources = ["--kv-event-model", "demo", "--kv-event-block-size", "16"]
    for i, sim in enumerate(sims):
        sources += ["--kv-event-source", f"{sim.url}=tcp://{HOST}:{ports[i]}",
                    "--kv-event-replay-source", f"{sim.url}=tcp://{HOST}:{ports[i + 2]}"]
    router = vllm_router(stack, "kv_aware", "--worker-urls", *(s.url for s in sims), *sources)
    router.ready()
    return sims, router


def case_vllm_router_kv_aware(stack):
    sims, router = kv_router(stack)
    time.sleep(1)
    # A prefix that only one replica has cached draws its repeats there.
    for group in range(4):
        prompt, home = f"{group} " + WORDS * 12, sims[group % 2]
        assert chat(home.port, prompt + "first")[0] == 200
        time.sleep(0.5)
        before = home.served()
        for i in range(6):
            status, body = chat(router.port, prompt + str(i))
            assert status == 200, (status, body)
        assert home.served() - before == 6, (group, home.served() - before, router.tail())
    hits = sum(sim.metric("vllm:prefix_cache_hits_total") for sim in sims)
    queries = sum(sim.metric("vllm:prefix_cache_queries_total") for sim in sims)
    assert hits / queries > 0.7, (hits, queries)
    return f"{hits / queries:.0%} of the prompt tokens were cached"




def case_sglang_router_cache_aware(stack):
    sims = [Sim(stack, f"sim{i}", *SLOW) for i in range(2)]
    router = sglang_router(stack, "cache_aware", *(s.url for s in sims))
    router.ready()
    wait_for("workers", 20, lambda: chat(router.port, "hello")[0] == 200)
    sticks(router, sims)
    return survives(router, sims)


def case_sglang_router_round_robin(stack):
    sims = [Sim(stack, f"sim{i}", *SLOW) for i in range(2)]
    router = sglang_router(stack, "round_robin", *(s.url for s in sims))
    router.ready()
    wait_for("workers", 20, lambda: chat(router.port, "hello")[0] == 200)
    for i in range(20):
        assert chat(router.port, str(i))[0] == 200
    served = [s.served() for s in sims]
    assert all(n >= 9 for n in served), served
    return survives(router, sims)


def lists_model(router):
    models = lambda: call(router.port, "GET", "/v1/models")[1]
    wait_for("the model by name", 20, lambda: '"id": "demo"' in json.dumps(models()))


def of_sglang_servers(stack, policy):
    """The router in front of two SGLang servers, once it lists their model by its name."""
    sims = [SglangSim(stack, f"sglang{i}", *SLOW) for i in range(2)]
    router = sglang_router(stack, policy, *(s.url for s in sims))
    router.ready()
    lists_model(router)
    wait_for("workers", 20, lambda: chat(router.port, "hello")[0] == 200)
    return sims, router


def case_sglang_router_sglang_round_robin(stack):
    sims, router = of_sglang_servers(stack, "round_robin")
    for i in range(20):
        assert chat(router.port, str(i))[0] == 200
    served = [s.served() for s in sims]
    assert all(n >= 9 for n in served), served
    return survives(router, sims)


def case_sglang_router_sglang_cache_aware(stack):
    sims, router = of_sglang_servers(stack, "cache_aware")
    sticks(router, sims)
    # Distinct prompts spread only by load: the less busy worker, or the first.
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        before = [s.served() for s in sims]
        answers = pool.map(lambda i: chat(router.port, f"{i * 7919} {WORDS[::-1]} {i}" * 9)[0], range(100))
        assert set(answers) == {200}
    spread = [s.served() - was for s, was in zip(sims, before)]
    return f"100 distinct prompts, 50 at once: {[int(n) for n in spread]}; {survives(router, sims)}"


def case_sglang_router_pd_round_robin(stack):
    return sglang_pair(stack, "round_robin")


def case_sglang_router_pd_cache_aware(stack):
    return sglang_pair(stack, "cache_aware")


def sglang_pair(stack, policy):
    """Each request runs on a prefill and a decode server; one of two decode servers is killed."""
    port = free_port()
    prefill = SglangSim(stack, "prefill", *SLOW, "--disaggregation-mode", "prefill",
                        "--disaggregation-bootstrap-port", str(port))
    decoders = [SglangSim(stack, f"decode{i}", *SLOW, "--disaggregation-mode", "decode") for i in range(2)]
    router = sglang_router(stack, policy, workers=(
        "--pd-disaggregation", "--prefill", prefill.url, str(port),
        *(word for decode in decoders for word in ("--decode", decode.url))))
    router.ready()
    lists_model(router)
    wait_for("all workers", 20, lambda: chat(router.port, "hello")[0] == 200)
    decoded = lambda: sum(decode.served() for decode in decoders)
    before = prefill.served(), decoded()
    status, body = chat(router.port, WORDS * 20, 20)
    assert status == 200 and body["usage"]["completion_tokens"] == 20, (status, body)
    assert stream(router.port, WORDS * 20 + " again", 20) == 20
    after = prefill.served(), decoded()
    assert [a - b for a, b in zip(after, before)] == [2, 2], (before, after, router.tail())
    wait_for("the prefill server lets go", 5, lambda: prefill.metric("sglang:num_used_tokens") == 0)
    decoders[0].kill()
    # Until the router knows, a prompt for the killed server waits on the prefill server, as SGLang's do.
    workers = lambda: call(router.port, "GET", "/workers")[1]["workers"]
    wait_for("the router sees it", 15, lambda: [w["is_healthy"] for w in workers()].count(False) == 1)
    answers = collections.Counter(chat(router.port, f"after {i}")[0] for i in range(10))
    assert answers == {200: 10}, answers


def dynamo(stack, block_size, *workers):
    python = ARGS.dynamo_python or sys.executable
    if subprocess.run([python, "-c", "import dynamo.indexer"], capture_output=True).returncode:
        raise Skip("ai-dynamo-runtime is not installed")
    port = free_port()
    router = Router(stack, "dynamo-indexer", port, [
        python, "-m", "dynamo.indexer", "--block-size", str(block_size), "--port", str(port),
        "--workers", ",".join(workers), "--model-name", "demo"])
    router.ready()
    return router


def case_dynamo_indexer(stack):
    port = free_port()
    sim = Sim(stack, "sim", "--kv-events-config", events(port), "--block-size", "16",
              "--num-gpu-blocks-override", "200")
    indexer = dynamo(stack, 16, f"1=tcp://{HOST}:{port}")
    time.sleep(1)

    def overlap(ids):
        status, body = call(indexer.port, "POST", "/query", {"token_ids": ids, "model_name": "demo"})
        assert status == 200, (status, body)
        return body

    def complete(ids, tokens=1):
        status, body = call(sim.port, "POST", "/v1/completions", {
            "model": "demo", "prompt": ids, "max_tokens": tokens, "ignore_eos": True})
        assert status == 200, (status, body)

    def scores(body):
        return [n for worker in body["scores"].values() for n in worker.values()] or [0]

    prompt = [(7 * i + 11) % 4000 for i in range(100)]
    assert max(scores(overlap(prompt))) == 0
    complete(prompt)
    wait_for("6 blocks indexed", 5, lambda: max(scores(overlap(prompt))) in (6, 96))
    unit = max(scores(overlap(prompt))) // 6
    assert max(scores(overlap(prompt[:50] + [1] * 50))) == 3 * unit
    # Fill the pool: the first prompt is evicted, and the index follows.
    for k in range(40):
        complete([(13 * i + k) % 3000 + 1 for i in range(112)])
    wait_for("the eviction reaches the index", 5, lambda: max(scores(overlap(prompt))) == 0)
    complete(prompt)
    wait_for("indexed again", 5, lambda: max(scores(overlap(prompt))) == 6 * unit)
    assert call(sim.port, "POST", "/reset_prefix_cache")[1] == {"success": True}
    complete([5] * 40)
    wait_for("the reset reaches the index", 5, lambda: max(scores(overlap(prompt))) == 0)
    return json.dumps(overlap([5] * 40))


def disaggregated(stack, connector, prefill_port, extra=None, mode=None):
    role = lambda name: json.dumps({"kv_connector": connector, "kv_role": name,
                                    **({"kv_connector_extra_config": extra} if extra else {})})
    prefill_side, decode_side = free_port(), free_port()
    env = lambda side: {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(side), "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(side)}
    slow = ("--prefill-time-per-token", "2ms")
    prefill = Sim(stack, "prefill", *slow, "--kv-transfer-config", role("kv_producer"), env=env(prefill_side))
    decode = Sim(stack, "decode", *slow, "--kv-transfer-config", role("kv_consumer"), env=env(decode_side))
    boot = [str(prefill_side)] if prefill_port else []
    router = vllm_router(stack, "round_robin", "--vllm-pd-disaggregation", "--kv-connector", mode,
                         "--prefill", prefill.url, *boot, "--decode", decode.url)
    router.ready()
    wait_for("both workers", 20, lambda: chat(router.port, "hello")[0] == 200)
    before = prefill.served(), decode.served()
    prompt = WORDS * 20
    status, body = chat(router.port, prompt, 20)
    assert status == 200 and body["usage"]["completion_tokens"] == 20, (status, body)
    assert stream(router.port, prompt + " again", 20) == 20
    after = prefill.served(), decode.served()
    assert [a - b for a, b in zip(after, before)] == [2, 2], (before, after, router.tail())
    external = decode.metric("vllm:external_prefix_cache_hits_total")
    assert external > 0, "the decoding server computed the prompt itself"
    wait_for("the prefilling server lets go", 5, lambda: prefill.metric("vllm:kv_cache_usage_perc") == 0)
    return f"{int(external)} prompt tokens fetched"


def case_vllm_router_pd_nixl(stack):
    return disaggregated(stack, "NixlConnector", False, mode="nixl")


def case_vllm_router_pd_mooncake(stack):
    return disaggregated(stack, "MooncakeConnector", True, mode="mooncake")


def main():
    global ARGS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sim", required=True)
    parser.add_argument("--vllm-router")
    parser.add_argument("--sglang-router")
    parser.add_argument("--dynamo-python")
    parser.add_argument("--only", default="")
    ARGS = parser.parse_args()
    ARGS.sim = os.path.abspath(ARGS.sim)
    failed = False
    for name, case in list(globals().items()):
        if not name.startswith("case_") or ARGS.only not in name:
            continue
        with contextlib.ExitStack() as stack:
            try:
                told = case(stack)
                print("pass", name[5:], told or "", flush=True)
            except Skip as why:
                print("skip", name[5:], why, flush=True)
            except Exception as error:
                failed = True
                print("FAIL", name[5:], repr(error)[:3000], flush=True)
                traceback.print_exc()
    print("logs:", FOLDER)
    return failed


if __name__ == "__main__":
    sys.exit(main())
