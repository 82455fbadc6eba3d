#!/usr/bin/env python3
"""custom.metrics.k8s.io for tests, in place of Prometheus and its adapter: what pods say themselves.

    custom_metrics.py --server URL --token TOKEN --certificate PEM --port N

The API server sends here what its APIService names. Each metric is the sum of a series of /metrics of a pod: the
colon that names of series may have is a `_` here, as adapters write it.
"""

import argparse
import re
import ssl
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import json

from kubelet import Api, now

GROUP = "custom.metrics.k8s.io/v1beta2"
METRIC = "vllm_num_requests_waiting"
PODS = re.compile(rf"/apis/{GROUP}/namespaces/([^/]+)/pods/\*/([^/?]+)")


def value(address, metric):
    """A metric of the pod at an address; None: it does not say."""
    try:
        with urllib.request.urlopen(f"http://{address}:8000/metrics", timeout=2) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return None
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#") and re.split(r"[{ ]", line)[0].replace(":", "_") == metric]
    return sum(values) if values else None


class Handler(BaseHTTPRequestHandler):
    api = None

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        if url.path == f"/apis/{GROUP}":
            resource = {"name": f"pods/{METRIC}", "singularName": "", "namespaced": True, "kind": "MetricValueList", "verbs": ["get"]}
            return self.answer({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP, "resources": [resource]})
        asked = PODS.fullmatch(urllib.parse.unquote(url.path))
        if not asked:
            return self.answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}, 404)
        space, metric = asked.groups()
        selector = urllib.parse.parse_qs(url.query).get("labelSelector", [""])[0]
        pods = self.api.get(f"/api/v1/namespaces/{space}/pods?" + urllib.parse.urlencode({"labelSelector": selector}))
        items = []
        for pod in pods["items"]:
            found = value(pod["status"].get("podIP"), metric)
            if found is not None:
                name = {"kind": "Pod", "namespace": space, "name": pod["metadata"]["name"], "apiVersion": "/v1"}
                items.append({"describedObject": name, "metric": {"name": metric}, "timestamp": now(), "value": str(int(found))})
        self.answer({"kind": "MetricValueList", "apiVersion": GROUP, "metadata": {}, "items": items})

    def answer(self, body, status=200):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main():
    parser = argparse.ArgumentParser()
    for name in ("server", "token", "certificate", "port"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    Handler.api = Api(args.server, args.token)
    server = ThreadingHTTPServer(("127.0.0.1", int(args.port)), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(args.certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
