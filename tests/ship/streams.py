#!/usr/bin/env python3
"""Keeps streams open through an address until a file is there, and fails if one breaks.

    streams.py URL STREAMS STOP_FILE

Each stream is a chat of its own connection; the next one begins when it ends. STOP_FILE.begun says that all run.
"""

import collections
import http.client
import json
import os
import sys
import threading
import time
import urllib.parse


def one(address, number, begun):
    """A whole stream: nothing, or what went wrong, and the pod."""
    body = {"model": "demo", "stream": True, "max_tokens": 40, "ignore_eos": True, "messages": [{"role": "user", "content": f"Count to {number}."}]}
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        pod = answer.headers.get("x-inference-pod", "?")
        if answer.status != 200:
            return f"status {answer.status}", pod
        answer.readline()
        begun()
        # A stream that is given up may still end in good form.
        return ("" if b'"finish_reason":"length"' in answer.read() else "cut"), pod
    except (OSError, http.client.HTTPException) as error:
        return repr(error), "?"
    finally:
        connection.close()


def main():
    address, streams, stop = urllib.parse.urlsplit(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    wrong, pods, lock = collections.Counter(), collections.Counter(), threading.Lock()

    threads_begun = set()

    def begun():
        threads_begun.add(threading.get_ident())
        if len(threads_begun) == streams:
            open(stop + ".begun", "w").close()

    def keep():
        number = 0
        while not os.path.exists(stop):
            number += 1
            error, pod = one(address, number, begun)
            with lock:
                pods[pod] += 1
                if error:
                    wrong[error] += 1
                    time.sleep(0.05)

    threads = [threading.Thread(target=keep) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{sum(pods.values())} streams over {len(pods)} pods, {sum(wrong.values())} broken {dict(wrong) or ''}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
