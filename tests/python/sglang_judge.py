#!/usr/bin/env python3
"""Compares the responses of `vllm-sim sglang` with the response classes of SGLang.

    sglang_judge.py BINARY SOURCES

SOURCES is the folder `sglang` of SGLang's wheel, unpacked. Its classes of responses
(`srt/entrypoints/openai/protocol.py`, `sse_utils.py`, `usage_processor.py`) and the codecs of its
native API (`api/v1/api_types.py`) need neither GPU nor torch. Each response of the program is read
into the class and written again: members, their order and those that are left out must be equal.
Refusals of `/generate` are compared with those of SGLang's decoder. Needs pydantic, msgspec, openai
and fastapi.
"""

import importlib
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import types
import urllib.error
import urllib.request

MESSAGES = [{"role": "user", "content": "Hello there"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}]


def load(root):
    """Imports SGLang's modules without its packages, which need torch."""
    for name in ("sglang", "sglang.srt", "sglang.srt.entrypoints", "sglang.srt.entrypoints.openai",
                 "sglang.api", "sglang.api.v1"):
        module = types.ModuleType(name)
        module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    utils = types.ModuleType("sglang.utils")
    utils.convert_json_schema_to_str = lambda schema: schema if isinstance(schema, str) else json.dumps(schema)
    sys.modules["sglang.utils"] = utils
    names = ("srt.entrypoints.openai.protocol", "srt.entrypoints.openai.sse_utils", "api.v1.api_types")
    return [importlib.import_module(f"sglang.{name}") for name in names]


class Server:
    """The program on a free port."""

    def __init__(self, binary, flags):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        log = tempfile.TemporaryFile()
        command = [binary, "sglang", "--model-path", "judged", "--port", str(self.port), *flags]
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        until = time.monotonic() + 20
        while self.ask("/health")[0] != 200:
            if time.monotonic() > until or self.process.poll() is not None:
                log.seek(0)
                sys.exit(f"no server: {log.read().decode()}")
            time.sleep(0.05)

    def ask(self, path, body=None):
        """Returns status and text of a response."""
        data = None if body is None else json.dumps(body).encode()
        kind = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, kind)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""


def events(text):
    """Yields the JSON of each event; the last event must be `[DONE]`."""
    *rest, done = text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]", done
    for event in rest:
        yield event.removeprefix("data: ")


def chat_bodies():
    """Chat requests, one for each member of the response that a request changes."""
    base = {"messages": MESSAGES, "max_tokens": 4}
    changes = [{}, {"n": 2}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 2},
               {"return_token_ids": True}, {"return_prompt_token_ids": True}, {"return_meta_info": True},
               {"stop": ["e"]}, {"temperature": 0}, {"seed": 3}, {"max_tokens": 40},
               {"response_format": {"type": "json_object"}, "max_tokens": 60},
               {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "required", "max_tokens": 99},
               {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}, "max_tokens": 99},
               {"rid": "mine"}, {"model": "other"}, {"separate_reasoning": False, "max_tokens": 40}]
    return [base | change for change in changes]


def completion_bodies():
    """Completion requests, one for each member of the response that a request changes."""
    base = {"prompt": "Hello there", "max_tokens": 4}
    changes = [{}, {"prompt": ["a", "b"]}, {"prompt": [5, 6, 7]}, {"prompt": [[5], [6, 7]]}, {"n": 2},
               {"logprobs": 0}, {"logprobs": 2}, {"echo": True}, {"echo": True, "logprobs": 1},
               {"return_token_ids": True}, {"stop": "e"}, {"regex": "(yes|no)"}, {"temperature": 0}]
    return [base | change for change in changes]


def generate_bodies():
    """Native requests, one for each member of the response that a request changes."""
    params = {"max_new_tokens": 3}
    base = {"text": "Hello there", "sampling_params": params}
    changes = [{}, {"text": ["a", "b"]}, {"text": None, "input_ids": [5, 6]}, {"rid": "mine"},
               {"return_logprob": True}, {"return_logprob": True, "top_logprobs_num": 2},
               {"return_logprob": True, "logprob_start_len": 0, "return_text_in_logprobs": True},
               {"return_prompt_token_ids": True}, {"sampling_params": params | {"stop": "e"}},
               {"sampling_params": params | {"temperature": 0}}, {"sampling_params": None}]
    return [base | change for change in changes]


REFUSED_PARAMS = [{"max_tokens": 1}, {"temperature": "x"}, {"top_k": 1.5}, {"n": "2"}, {"stop": 3},
                  {"ignore_eos": 1}, {"regex": 5}, {"logit_bias": 3}, {"stop_token_ids": "x"},
                  {"max_new_tokens": [1]}, {"json_schema": {}}, {"skip_special_tokens": "no"}]


class Judge:
    """Counts the comparisons and shows those that differ."""

    def __init__(self, server, protocol, sse, api):
        self.server, self.protocol, self.sse, self.api = server, protocol, sse, api
        self.count, self.wrong = 0, 0

    def equal(self, what, ours, theirs):
        self.count += 1
        if ours != theirs:
            self.wrong += 1
            print(f"differs: {what}\n  ours   {ours}\n  SGLang {theirs}")

    def rewritten(self, what, text, kind, **options):
        """Reads a response into a class and compares what the class writes."""
        try:
            theirs = kind.model_validate_json(text).model_dump_json(**options)
        except ValueError as error:
            theirs = f"refused: {error}"
        self.equal(what, compact(text), compact(theirs))

    def chunk(self, what, text):
        """Compares a chunk of a chat stream: by msgspec for text, by pydantic for the rest."""
        chunk = json.loads(text)
        choices = chunk["choices"]
        if not choices or "tool_calls" in choices[0]["delta"]:
            return self.rewritten(what, text, self.protocol.ChatCompletionStreamResponse)
        choice = choices[0]
        theirs = self.sse.build_sse_content(
            chunk["id"], chunk["created"], chunk["model"], choice["index"], **choice["delta"],
            finish_reason=choice["finish_reason"], logprobs=choice["logprobs"],
            matched_stop=choice["matched_stop"], usage=chunk.get("usage"))
        self.equal(what, compact(text), compact(theirs.removeprefix("data: ").strip()))

    def openai(self):
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        for body in chat_bodies():
            _, text = self.server.ask("/v1/chat/completions", body)
            self.rewritten(f"chat {body}", text, self.protocol.ChatCompletionResponse)
            status, text = self.server.ask("/v1/chat/completions", body | usage)
            if status != 200:
                self.rewritten(f"chat {body}", text, self.protocol.ErrorResponse)
                continue
            for event in events(text):
                self.chunk(f"chat chunk {body}", event)
        for body in completion_bodies():
            _, text = self.server.ask("/v1/completions", body)
            self.rewritten(f"completion {body}", text, self.protocol.CompletionResponse)
            _, text = self.server.ask("/v1/completions", body | usage)
            kind = self.protocol.CompletionStreamResponse
            for event in events(text):
                last = not json.loads(event)["choices"]
                self.rewritten(f"completion chunk {body}", event, kind, exclude_none=last)

    def others(self):
        for path, body, kind in [
            ("/v1/models", None, "ModelList"), ("/v1/models/judged", None, "ModelCard"),
            ("/tokenize", {"prompt": "a b"}, "TokenizeResponse"), ("/tokenize", {"prompt": ["a"]}, "TokenizeResponse"),
            ("/tokenize", {"messages": MESSAGES}, "TokenizeResponse"), ("/detokenize", {"tokens": [5]}, "DetokenizeResponse"),
            ("/detokenize", {"tokens": [[5], [6]]}, "DetokenizeResponse"),
            ("/v1/chat/completions", {"messages": []}, "ErrorResponse"), ("/v1/chat/completions", {}, "ErrorResponse"),
            ("/v1/completions", {"prompt": ""}, "ErrorResponse"), ("/v1/completions", {"prompt": "x", "n": "y"}, "ErrorResponse"),
        ]:
            _, text = self.server.ask(path, body)
            self.rewritten(f"{path} {body}", text, getattr(self.protocol, kind))

    def native(self):
        for body in generate_bodies():
            _, text = self.server.ask("/generate", body)
            outputs = json.loads(text)
            for output in outputs if isinstance(outputs, list) else [outputs]:
                self.native_output(f"generate {body}", output)
            _, text = self.server.ask("/generate", body | {"stream": True})
            for event in events(text):
                self.native_output(f"generate chunk {body}", json.loads(event))
        for params in REFUSED_PARAMS:
            body = {"text": "x", "sampling_params": params}
            _, text = self.server.ask("/generate", body)
            try:
                self.api.GenerateRequest.from_json_value(body)
                theirs = "accepted"
            except self.api.JsonContractError as error:
                theirs = str(error)
            said = json.loads(text).get("error", text)
            self.equal(f"generate {body}", said.get("message", said) if isinstance(said, dict) else said, theirs)

    def native_output(self, what, output):
        """Checks that SGLang's codec reads an output and loses no member that it knows."""
        try:
            theirs = self.api.GenerateResponse.from_json_value(output).to_json_value()
        except ValueError as error:
            return self.equal(what, output, f"refused: {error}")
        known = {name: output["meta_info"].get(name) for name in theirs.get("meta_info", {})}
        return self.equal(what, known, theirs.get("meta_info"))


def compact(text):
    """Returns JSON without spaces and with members in their order."""
    try:
        return json.dumps(json.loads(text), separators=(",", ":"))
    except ValueError:
        return text


def main():
    binary, root = sys.argv[1], pathlib.Path(sys.argv[2])
    modules = load(root)
    count = wrong = 0
    for flags in ([], ["--enable-cache-report", "--reasoning-parser", "qwen3", "--tool-call-parser", "qwen25"]):
        server = Server(binary, flags)
        try:
            judge = Judge(server, *modules)
            judge.openai()
            judge.others()
            judge.native()
        finally:
            server.process.terminate()
            server.process.wait()
        count, wrong = count + judge.count, wrong + judge.wrong
    print(f"{count} comparisons, {wrong} differ")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
