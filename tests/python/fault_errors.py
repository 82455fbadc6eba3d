"""Which SDK exception each injected failure raises, as a Markdown table.

    vllm-sim --model demo --port 8000
    pip install openai anthropic
    python3 tests/python/fault_errors.py http://127.0.0.1:8000

Every failure is asked for with the header X-Sim-Fault, over chat, completions, responses (openai)
and messages (anthropic), in one piece and streamed: 48 calls. Ends with an error when a failure
raises nothing, has another status than it should, or is not counted.
"""

import sys
import urllib.request

import anthropic
import openai

BASE = (sys.argv + ["http://127.0.0.1:8000"])[1]
SAID = [{"role": "user", "content": "Tell me a story."}]
STATUS = {
    "rate_limit": 429,
    "invalid_api_key": 401,
    "context_length": 400,
    "server_error": 503,
    "invalid_request": 400,
    "model_not_found": 404,
}
one = openai.OpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0)
two = anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0)
model = one.models.list().data[0].id
CALLS = {
    "chat": lambda **k: one.chat.completions.create(model=model, messages=SAID, max_tokens=8, **k),
    "completions": lambda **k: one.completions.create(model=model, prompt="x", max_tokens=8, **k),
    "responses": lambda **k: one.responses.create(model=model, input="x", max_output_tokens=8, **k),
    "messages": lambda **k: two.messages.create(model=model, messages=SAID, max_tokens=8, **k),
}


def counted():
    text = urllib.request.urlopen(BASE + "/metrics").read().decode()
    lines = [line for line in text.splitlines() if line.startswith("vllm_sim_faults_total{")]
    return sum(float(line.split()[-1]) for line in lines)


def raised(api, stream, fault):
    """The name of the exception and the status it carries."""
    try:
        answer = CALLS[api](stream=stream, extra_headers={"X-Sim-Fault": fault})
        for _ in answer if stream else ():
            pass
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        return type(error).__name__, error.status_code
    return "nothing", 200


def main():
    columns = [(api, stream) for api in CALLS for stream in (False, True)]
    heads = [f"{api}{', streamed' if stream else ''}" for api, stream in columns]
    print("| Failure | Status | " + " | ".join(heads) + " |")
    print("|---|---|" + "---|" * len(heads))
    before = counted()
    for fault, status in STATUS.items():
        cells = []
        for api, stream in columns:
            name, seen = raised(api, stream, fault)
            assert seen == status, f"{fault} over {api}: status {seen}"
            cells.append(name)
        print(f"| `{fault}` | {status} | " + " | ".join(cells) + " |")
    assert counted() - before == len(STATUS) * len(columns), "not every failure was counted"


main()
