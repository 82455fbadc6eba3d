#!/usr/bin/env python3
"""Keeps streams open through an address until a file is there, and fails if one breaks.

    streams.py URL STREAMS STOP_FILE

The next one begins when one ends: every other client on the same connection as long as that is open, the rest on new
ones. STOP_FILE.begun says that all run.
"""

import collections
import http.client
import json
import os
import sys
import threading
import time
import urllib.parse


class Client:
    """One that keeps its connection, or takes a new one for each stream."""

    def __init__(self, address, keeps):
        self.address, self.keeps, self.connection = address, keeps, None

    def ask(self, number):
        """The answer's head. A connection that the server closed meanwhile is replaced once, as clients do."""
        body = {"model": "demo", "stream": True, "max_tokens": 40, "ignore_eos": True, "messages": [{"role": "user", "content": f"Count to {number}."}]}
        while True:
            kept, self.connection = self.connection, None
            connection = kept or http.client.HTTPConnection(self.address.hostname, self.address.port, timeout=60)
            try:
                connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
                return connection, connection.getresponse()
            except (ConnectionError, http.client.RemoteDisconnected):
                connection.close()
                if not kept:
                    raise

    def one(self, number, begun):
        """A whole stream: nothing, or what went wrong, and the pod."""
        try:
            connection, answer = self.ask(number)
            pod = answer.headers.get("x-inference-pod", "?")
            if answer.status != 200:
                return f"status {answer.status}", pod
            answer.readline()
            begun()
            # A stream that is given up may still end in good form.
            whole = b'"finish_reason":"length"' in answer.read()
        except (OSError, http.client.HTTPException) as error:
            return repr(error), "?"
        if self.keeps and whole and connection.sock:
            self.connection = connection
        else:
            connection.close()
        return ("" if whole else "cut"), pod


def main():
    address, streams, stop = urllib.parse.urlsplit(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    wrong, pods, lock = collections.Counter(), collections.Counter(), threading.Lock()

    threads_begun = set()

    def begun():
        threads_begun.add(threading.get_ident())
        if len(threads_begun) == streams:
            open(stop + ".begun", "w").close()

    def keep(client):
        number = 0
        while not os.path.exists(stop):
            number += 1
            error, pod = client.one(number, begun)
            with lock:
                pods[pod] += 1
                if error:
                    wrong[error] += 1
                    time.sleep(0.05)

    threads = [threading.Thread(target=keep, args=(Client(address, index % 2 == 1),)) for index in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{sum(pods.values())} streams over {len(pods)} pods, {sum(wrong.values())} broken {dict(wrong) or ''}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
