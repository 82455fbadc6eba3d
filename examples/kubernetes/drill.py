"""What the Job runs: a chat that is refused once, by the standard library. OPENAI_BASE_URL says where."""

import json
import os
import time
import urllib.error
import urllib.request

BASE = os.environ["OPENAI_BASE_URL"]
ADMIN = f"{BASE.removesuffix('/v1')}/admin"


def ask(url: str, body: object = None) -> dict:
    """The JSON of an answer; a body makes it a POST."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def patient_chat(text: str) -> str:
    """What is tested: a client that waits as long as it is told to."""
    while True:
        try:
            body = {"model": "demo", "messages": [{"role": "user", "content": text}]}
            return ask(f"{BASE}/chat/completions", body)["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise
            time.sleep(float(error.headers["Retry-After"]))


ask(f"{ADMIN}/replies", [{"say": "Here I am.", "fail": {"times": 1, "error": "rate_limit", "retry_after": 1}}])
assert patient_chat("busy?") == "Here I am."
seen = ask(f"{ADMIN}/requests?wait=2")["requests"]
assert [request["status"] for request in seen] == [429, 200], seen
print("waited as long as it was told to")
