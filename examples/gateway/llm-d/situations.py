"""Sends requests through a gateway and says where they went, and where they should go.

    situations.py GATEWAY SITUATION…

A pod tells its name in the header x-inference-pod.
"""

import collections
import contextlib
import json
import sys
import time
import urllib.request

GATEWAY = sys.argv[1]
PODS = {f"pod-{n}": f"http://10.99.0.{10 + n}:8000" for n in (1, 2, 3)}
# Longer than the metrics' refresh and the events' way.
SETTLE = 1.0


def post(base, prompt, model="demo", tokens=4, stream=False):
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    request = urllib.request.Request(f"{base}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=120)


def ask(prompt, base=GATEWAY, **more):
    with post(base, prompt, **more) as answer:
        answer.read()
        return answer.headers["x-inference-pod"]


def text(topic, words=400):
    return " ".join(f"{topic}{n}" for n in range(words))


@contextlib.contextmanager
def busy(requests):
    """Long streams, each (base, model); the pods that took them are in the list it gives."""
    took, streams = [], []
    for number, (base, model) in enumerate(requests):
        stream = post(base, text(f"busy{model}{number}-", 20), model=model, tokens=4000, stream=True)
        took.append(stream.headers["x-inference-pod"])
        stream.readline()
        streams.append(stream)
    time.sleep(SETTLE)
    try:
        yield took
    finally:
        for stream in streams:
            stream.close()
        time.sleep(SETTLE)


def told(what, good, seen):
    print(f"{'ok  ' if good else 'BAD '} {what}: {seen}", flush=True)
    return good


def shown(pods):
    return ", ".join(f"{pod} {count}" for pod, count in sorted(collections.Counter(pods).items()))


def prefix():
    """A conversation stays where its beginning is, and different ones are spread."""
    first = {}
    for topic in ("sea", "sun", "ice", "oak", "ash", "elm"):
        first[topic] = ask(text(topic))
    good = True
    again = {topic: ask(text(topic) + " and more") for topic in first}
    good &= told("the same beginning, the same pod", again == first, again)
    return good & told("other beginnings, other pods", len(set(first.values())) > 1, shown(first.values()))


def load():
    """A pod with 20 streams is passed by, though it has the prefix of none."""
    with busy([(PODS["pod-2"], "demo")] * 20):
        went = [ask(text(f"calm{n}")) for n in range(12)]
    return told("twelve new prompts pass a busy pod-2 by", "pod-2" not in went, shown(went))


def idle():
    """The pod without requests gets the new prompts."""
    with busy([(PODS["pod-1"], "demo")] * 9 + [(PODS["pod-3"], "demo")] * 4):
        went = [ask(text(f"quiet{n}")) for n in range(12)]
    return told("twelve new prompts prefer the idle pod-2", set(went) == {"pod-2"}, shown(went))


def lora():
    """Adapters came and went; then each of two is at work on a pod, and its next requests go there."""
    for name in ("sql", "chat", "law", "sql", "law", "chat"):
        for base in PODS.values():
            ask(text(name, 5), base=base, model=name)
    good = True
    with busy([(PODS["pod-1"], "sql"), (PODS["pod-2"], "chat"), (PODS["pod-3"], "law")]):
        for name, pod in (("sql", "pod-1"), ("chat", "pod-2"), ("law", "pod-3")):
            went = [ask(text(f"{name}{n}-", 30), model=name) for n in range(4)]
            good &= told(f"{name} is at work on {pod}", set(went) == {pod}, shown(went))
    return good


def precise():
    """Prompts given to pods directly, which no picker could remember, are found by their blocks."""
    good = True
    # Pods that send to the picker connect to it first.
    time.sleep(2 * SETTLE)
    for n, base in enumerate(PODS.values()):
        for part in range(2):
            ask(text(f"direct{n}{part}-"), base=base)
    time.sleep(SETTLE)
    for n, pod in enumerate(PODS):
        went = [ask(text(f"direct{n}{part}-") + " and more") for part in range(2)]
        good &= told(f"what {pod} was given directly", set(went) == {pod}, shown(went))
    return good


def after_restart_dialled():
    """A new picker asks each pod for the events that it missed."""
    time.sleep(2 * SETTLE)
    good = True
    for n, pod in enumerate(PODS):
        went = [ask(text(f"direct{n}{part}-") + " once more") for part in range(2)]
        good &= told(f"what {pod} has from before", set(went) == {pod}, shown(went))
    return good


def after_restart_central():
    """Pods that send to the picker have nobody who asks them again: it knows what is stored from now on."""
    time.sleep(2 * SETTLE)
    went = {pod: ask(text(f"direct{n}0-") + " once more") for n, pod in enumerate(PODS)}
    print(f"     what the pods had from before goes anywhere: {went}", flush=True)
    good = True
    for n, base in enumerate(PODS.values()):
        ask(text(f"fresh{n}-"), base=base)
    time.sleep(SETTLE)
    for n, pod in enumerate(PODS):
        went = ask(text(f"fresh{n}-") + " and more")
        good &= told(f"what {pod} stored since", went == pod, went)
    return good


def prompt_tokens(pod, source):
    """Prompt tokens of a pod that came from a source: local_compute, local_cache_hit, external_kv_transfer."""
    # A decode pod behind a side-car has its page on its own port.
    for base in (PODS[pod].replace("8000", "8200"), PODS[pod]):
        try:
            with urllib.request.urlopen(f"{base}/metrics") as page:
                lines = [line.decode() for line in page]
        except OSError:
            continue
        marks = ("vllm:prompt_tokens_by_source_total{", f'source="{source}"')
        return sum(float(line.split()[-1]) for line in lines if all(mark in line for mark in marks))
    raise SystemExit(f"{pod} has no metrics")


def prefilled():
    return {pod: prompt_tokens(pod, "local_compute") for pod in PODS}


def disaggregated():
    """Long prompts are prefilled by pod-1 and pod-2 and decoded by pod-3."""
    before = prefilled()
    went = [ask(text(f"long{n}-")) for n in range(8)]
    tokens = {pod: count - before[pod] for pod, count in prefilled().items()}
    good = told("long prompts are answered by pod-3", set(went) == {"pod-3"}, shown(went))
    good &= told("and were prefilled by pod-1 and pod-2", tokens["pod-1"] > 100 < tokens["pod-2"], tokens)
    moved = prompt_tokens("pod-3", "external_kv_transfer")
    return good & told("whose blocks pod-3 took", moved > 100, f"{moved:.0f} tokens")


def local_prefill():
    """Short prompts stay with pod-3."""
    before = prefilled()
    went = [ask(f"a short question {n}") for n in range(6)]
    kept = all(prefilled()[pod] == before[pod] for pod in ("pod-1", "pod-2"))
    return told("short prompts stay with pod-3", kept and set(went) == {"pod-3"}, shown(went))


def main():
    good = True
    for name in sys.argv[2:]:
        good &= globals()[name.replace("-", "_")]()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
