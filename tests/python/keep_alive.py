"""An HTTP client that keeps its connection, for the scripts of this folder."""

import http.client
import json
import socket

HOST = "127.0.0.1"


def free_port():
    with socket.socket() as s:
        s.bind((HOST, 0))
        return s.getsockname()[1]


class KeepAlive:
    """One keep-alive connection."""

    def __init__(self, port):
        self.port, self.conn = port, None

    def ask(self, method, path, body=None):
        """Status and bytes of the answer."""
        self.conn = self.conn or http.client.HTTPConnection(HOST, self.port, timeout=60)
        payload = None if body is None else json.dumps(body)
        try:
            self.conn.request(method, path, payload, {"content-type": "application/json"})
            answer = self.conn.getresponse()
        except (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected):
            # The server closed a connection that was idle for its keep-alive time.
            self.conn = None
            return self.ask(method, path, body)
        return answer.status, answer.read()

    def hang_up(self, body):
        """Asks for a stream, and leaves it after its first bytes."""
        conn = http.client.HTTPConnection(HOST, self.port, timeout=60)
        conn.request("POST", "/v1/completions", json.dumps({**body, "stream": True}),
                     {"content-type": "application/json"})
        conn.getresponse().read(10)
        conn.close()
