#!/usr/bin/env python3
"""Plays an OpenTelemetry collector, and checks the spans that a server sends it.

    pip install grpcio opentelemetry-proto
    python3 tests/python/otlp_receiver.py BINARY [PORT]

The collector listens on PORT for gRPC and on PORT + 3 for HTTP, with TLS on PORT + 4 and PORT + 5, the
server on PORT + 1, in both command-line modes and with every way of writing the endpoint. Each request must
give one span per sequence: its name, kind, parent, times, attributes and resource. A collector that is
not there, or whose certificate is not trusted, must not delay answers. Needs openssl. Ends with «ok»,
or with a failed assertion.
"""

import concurrent.futures
import http.server
import json
import os
import queue
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

BINARY = sys.argv[1]
PORT = int((sys.argv + ["24317"])[2])
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
NUMBERS = {
    f"gen_ai.latency.{name}"
    for name in (
        "time_to_first_token",
        "e2e",
        "time_in_queue",
        "time_in_model_prefill",
        "time_in_model_decode",
        "time_in_model_inference",
    )
} | {"gen_ai.request.temperature", "gen_ai.request.top_p"}
WHOLE = {
    "gen_ai.usage.prompt_tokens",
    "gen_ai.usage.completion_tokens",
    "gen_ai.request.max_tokens",
    "gen_ai.request.n",
}


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self):
        self.spans = queue.Queue()

    def Export(self, request, context):
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.put((values(resource.resource.attributes), scope.scope.name, span))
        return trace_service_pb2.ExportTraceServiceResponse()

    def post(self, request):
        """An export over HTTP; what is wrong with it, or nothing."""
        body = request.rfile.read(int(request.headers["Content-Length"]))
        if request.path != "/v1/traces" or request.headers["Content-Type"] != "application/x-protobuf":
            return f"{request.path}: {request.headers['Content-Type']}"
        self.Export(trace_service_pb2.ExportTraceServiceRequest.FromString(body), None)
        return None

    def take(self, count):
        taken = [self.spans.get(timeout=10) for _ in range(count)]
        time.sleep(0.3)
        assert self.spans.empty(), "more spans than sequences"
        return taken


def values(attributes):
    return {a.key: (a.value.WhichOneof("value"), getattr(a.value, a.value.WhichOneof("value"))) for a in attributes}


def listen_http(collector, port, tls=None):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            wrong = collector.post(self)
            self.send_response(400 if wrong else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def certificate(folder):
    """A certificate for localhost, and its key."""
    made = [os.path.join(folder, name) for name in ("cert.pem", "key.pem")]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=CA:FALSE"]
    subprocess.run([*command, "-out", made[0], "-keyout", made[1]], check=True, capture_output=True)
    return made


class Server:
    def __init__(self, port, *flags, **env):
        self.url = f"http://127.0.0.1:{port}"
        # Spans leave the queue at once, instead of every five seconds.
        env = {**os.environ, "OTEL_BSP_SCHEDULE_DELAY": "50", **env}
        command = [BINARY, *flags, "--host", "127.0.0.1", "--port", str(port)]
        self.log = open(os.devnull, "w")
        self.process = subprocess.Popen(command, env=env, stdout=self.log, stderr=self.log)

    def __enter__(self):
        for _ in range(100):
            try:
                urllib.request.urlopen(self.url + "/health", timeout=1)
                return self
            except OSError:
                assert self.process.poll() is None, "the server ended"
                time.sleep(0.1)
        raise AssertionError("the server does not answer")

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self.process.terminate()
        self.process.wait(15)
        self.log.close()

    def complete(self, headers=None, **body):
        body = {"model": "demo", "prompt": "one two three", "max_tokens": 5, "ignore_eos": True, **body}
        request = urllib.request.Request(
            self.url + "/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **(headers or {})},
        )
        return json.load(urllib.request.urlopen(request, timeout=20))


def check(found, *, answer, parent, n=1):
    resource, scope, span = found
    assert span.name == "llm_request", span.name
    assert span.kind == trace_pb2.Span.SPAN_KIND_SERVER, span.kind
    assert scope == "vllm.llm_engine", scope
    assert "service.name" in resource, resource
    attributes = values(span.attributes)
    for names, kind in ((NUMBERS, "double_value"), (WHOLE, "int_value")):
        for name in names:
            assert name in attributes, f"{name} is missing"
            assert attributes[name][0] == kind, (name, attributes[name])
    plain = {name: value for name, (_, value) in attributes.items()}
    assert answer["id"] in plain["gen_ai.request.id"], (answer["id"], plain["gen_ai.request.id"])
    assert plain["gen_ai.request.max_tokens"] == 5
    assert plain["gen_ai.request.temperature"] == 0.5
    assert plain["gen_ai.request.top_p"] == 0.25
    assert plain["gen_ai.request.n"] == n
    assert plain["gen_ai.usage.prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert plain["gen_ai.usage.completion_tokens"] == 5
    took = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    latency = {name.rsplit(".", 1)[1]: plain[name] for name in NUMBERS}
    assert abs(took - latency["e2e"]) < 1e-6, (took, latency)
    assert abs(time.time() - span.end_time_unix_nano / 1e9) < 20
    parts = latency["time_in_model_prefill"] + latency["time_in_model_decode"]
    assert abs(parts - latency["time_in_model_inference"]) < 1e-6, latency
    assert latency["time_in_queue"] + parts <= latency["e2e"] + 1e-3, latency
    assert 0.08 < latency["e2e"] < 5, latency
    if parent:
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
    else:
        assert span.trace_id.hex() != TRACE and not span.parent_span_id


def main():
    collector = Collector()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    assert server.add_insecure_port(f"127.0.0.1:{PORT}") == PORT, "the port is taken"
    folder = tempfile.TemporaryDirectory()
    chain, key = certificate(folder.name)
    with open(chain, "rb") as a, open(key, "rb") as b:
        credentials = grpc.ssl_server_credentials([(b.read(), a.read())])
    assert server.add_secure_port(f"127.0.0.1:{PORT + 4}", credentials) == PORT + 4, "the port is taken"
    server.start()
    listen_http(collector, PORT + 3)
    listen_http(collector, PORT + 5, (chain, key))
    trusting = {"OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE": chain}
    over_http = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
    ways = [(f"{scheme}127.0.0.1:{PORT}", {}) for scheme in ("", "http://", "grpc://")]
    ways += [
        (f"https://localhost:{PORT + 4}", trusting),
        (f"http://127.0.0.1:{PORT + 3}/v1/traces", over_http),
        (f"https://localhost:{PORT + 5}/v1/traces", {**trusting, **over_http}),
    ]
    slow = ["--time-to-first-token", "50ms", "--inter-token-latency", "10ms"]
    timed = ["--latency-model", "delays", *slow]
    modes = {"llm-d": ["--model", "demo", *slow], "vLLM": ["serve", "demo", *timed]}
    sampled = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1"}
    dropped = {"traceparent": f"00-{TRACE}-{SPAN}-00"}
    sampling = {"temperature": 0.5, "top_p": 0.25}
    for mode, flags in modes.items():
        for endpoint, more in ways:
            name = {"OTEL_SERVICE_NAME": "mine", **more}
            with Server(PORT + 1, *flags, "--otlp-traces-endpoint", endpoint, **name) as sim:
                answer = sim.complete(**sampling)
                [found] = collector.take(1)
                check(found, answer=answer, parent=False)
                assert found[0]["service.name"] == ("string_value", "mine"), found[0]
                answer = sim.complete(sampled, **sampling)
                [found] = collector.take(1)
                check(found, answer=answer, parent=True)
                assert found[2].trace_state == "a=1", found[2].trace_state
                answer = sim.complete(sampled, n=2, **sampling)
                for found in collector.take(2):
                    check(found, answer=answer, parent=True, n=2)
                sim.complete(dropped, **sampling)
                collector.take(0)
                sim.complete({"traceparent": "00-garbage"}, **sampling)
                assert not collector.take(1)[0][2].parent_span_id
            print(f"{mode}, {endpoint}: {len(NUMBERS | WHOLE) + 1} attributes")
        # Spans that are queued when the server stops arrive all the same.
        flags_ = [*flags, "--otlp-traces-endpoint", f"127.0.0.1:{PORT}"]
        with Server(PORT + 1, *flags_, OTEL_BSP_SCHEDULE_DELAY="60000") as sim:
            sim.complete(**sampling)
            collector.take(0)
            sim.stop()
            collector.take(1)
        # Nobody listens there, or nobody whom the server trusts.
        for endpoint, more in [
            (f"127.0.0.1:{PORT + 2}", {}),
            (f"127.0.0.1:{PORT + 2}/v1/traces", over_http),
            (f"https://localhost:{PORT + 4}", {}),
            (f"https://localhost:{PORT + 5}/v1/traces", over_http),
        ]:
            with Server(PORT + 1, *flags, "--otlp-traces-endpoint", endpoint, **more) as sim:
                started = time.monotonic()
                for _ in range(5):
                    sim.complete(**sampling)
                assert time.monotonic() - started < 2, "a missing collector delays answers"
                collector.take(0)
        print(f"{mode}: spans of a stopping server arrive, a missing collector delays nothing")
    server.stop(None)
    print("ok")


main()
