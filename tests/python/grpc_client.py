"""Calls a running server with Python's own gRPC, knowing nothing of it but its address.

    pip install grpcio grpcio-reflection grpcio-health-checking
    vllm-sim --model m --port 8000 --inter-token-latency 20ms &
    python tests/python/grpc_client.py localhost:8000

Messages come from the server's reflection. Ends with «ok», or with a failed assertion.
"""
import sys
import threading
import time

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

ENGINE = "vllm.grpc.engine.VllmEngine"
channel = grpc.insecure_channel(sys.argv[1].removeprefix("http://"))

database = ProtoReflectionDescriptorDatabase(channel)
assert ENGINE in database.get_services(), database.get_services()
service = descriptor_pool.DescriptorPool(database).FindServiceByName(ENGINE)


def call(name, **fields):
    """One answer, or an iterator over them when the method streams."""
    method = service.methods_by_name[name]
    ask, answer = (message_factory.GetMessageClass(t) for t in (method.input_type, method.output_type))
    kind = channel.unary_stream if method.server_streaming else channel.unary_unary
    function = kind(
        f"/{ENGINE}/{name}",
        request_serializer=ask.SerializeToString,
        response_deserializer=answer.FromString,
    )
    return function(ask(**fields), timeout=30)


def active():
    return call("GetServerInfo").active_requests


def until_idle():
    until = time.time() + 5
    while active():
        assert time.time() < until, "a request was not given up"
        time.sleep(0.01)


# Health, in both forms.
assert call("HealthCheck").healthy
probe = health_pb2_grpc.HealthStub(channel)
for name in ("", ENGINE):
    status = probe.Check(health_pb2.HealthCheckRequest(service=name)).status
    assert status == health_pb2.HealthCheckResponse.SERVING, status

# What it is.
model = call("GetModelInfo")
assert model.model_path and model.is_generation and model.max_context_length > 0, model
info = call("GetServerInfo")
assert info.server_type == "vllm-grpc" and info.uptime_seconds > 0, info

# Whole and streamed.
eight = {"max_tokens": 8, "ignore_eos": True, "seed": 5}
prompt = {"input_ids": [1, 2, 3]}
(whole,) = call("Generate", request_id="a", tokenized=prompt, sampling_params=eight)
assert whole.WhichOneof("response") == "complete", whole
whole = whole.complete
assert (len(whole.output_ids), whole.completion_tokens, whole.prompt_tokens) == (8, 8, 3), whole
assert whole.finish_reason == "length", whole
*chunks, last = call("Generate", request_id="b", tokenized=prompt, sampling_params=eight, stream=True)
# The end says the last chunk's token again.
end = last.complete
assert list(end.output_ids) == list(whole.output_ids)[-1:], last
assert (end.completion_tokens, end.finish_reason) == (1, "length"), last
assert [i for c in chunks for i in c.chunk.token_ids] == list(whole.output_ids), chunks

# Text.
(said,) = call("Generate", request_id="c", text="This is a test.", sampling_params={"max_tokens": 3})
assert 1 <= said.complete.completion_tokens <= 3, said

# Embeddings repeat.
one, two = (call("Embed", tokenized=prompt) for _ in range(2))
assert one == two and len(one.embedding) == one.embedding_dim and one.prompt_tokens == 3, one

# A refusal has a code and a text.
try:
    list(call("Generate", tokenized=prompt, sampling_params={"temperature": -1}))
    raise AssertionError("a negative temperature was taken")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error
    assert "temperature must be non-negative" in error.details(), error

# Many at once on one connection.
done = []
threads = [
    threading.Thread(
        target=lambda n=n: done.append(
            len(list(call("Generate", request_id=f"t{n}", tokenized=prompt, sampling_params=eight)))
        )
    )
    for n in range(20)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert done == [1] * 20, done

# Given up by the client, and ended from outside. Both need a server that takes its time.
long = {"max_tokens": 500, "ignore_eos": True}
stream = call("Generate", request_id="d", tokenized=prompt, sampling_params=long, stream=True)
next(stream)
stream.cancel()
until_idle()
stream = call("Generate", request_id="e", tokenized=prompt, sampling_params=long, stream=True)
next(stream)
call("Abort", request_ids=["e"])
last = list(stream)[-1].complete
assert (last.finish_reason, last.completion_tokens) == ("abort", 0), last
until_idle()
print("ok")
