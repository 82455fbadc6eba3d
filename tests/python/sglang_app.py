#!/usr/bin/env python3
"""Serves SGLang's own HTTP application over a scripted scheduler, without a GPU.

    sglang_app.py SOURCES PORT [flag of sglang.launch_server ...]

SOURCES is the folder that holds the package `sglang` of SGLang's wheel, unpacked. Its application
(`srt/entrypoints/http_server.py`) and its tokenizer manager run unchanged: they read requests, check
them, encode prompts and write responses. Only the scheduler behind the tokenizer manager is a script,
which answers each request with a fixed text. Native packages that are not installed are replaced by
empty ones. Needs torch, transformers, xgrammar, fastapi, uvicorn and dill.
"""

import array
import asyncio
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
import traceback
import types

# Packages of the wheel that import needs and that no request uses here.
REPLACED = ["IPython", "torchvision", "compressed_tensors", "gguf", "soundfile"]

WORDS = "One day a small ship left the harbour and sailed slowly to the north with seven sailors. "

# Messages of `model_runner_components/weight_updater.py`.
MESSAGES = {
    "UpdateWeightFromDiskReqInput": "Succeeded to update model weights.",
    "UpdateWeightsFromDistributedReqInput": "Succeeded to update parameter online.",
    "UpdateWeightsFromIPCReqInput": "Succeeded to update model weights.",
    "InitWeightsUpdateGroupReqInput": "Succeeded to initialize custom process group.",
    "DestroyWeightsUpdateGroupReqInput": "Succeeded to destroy custom process group.",
    "CheckWeightsReqInput": "Success.",
}

# Messages of `managers/scheduler.py` without hierarchical cache.
FAILURES = {
    "ClearHiCacheReqInput": "",
    "AttachHiCacheStorageReqInput": "Hierarchical cache is not enabled.",
    "DetachHiCacheStorageReqInput": "Hierarchical cache is not enabled.",
}


class Anything(type):
    """Class of the classes in replaced packages: every attribute is such a class."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})


class EmptyModule(types.ModuleType):
    """Module with every attribute."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})


class Replace(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the replaced packages that are not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in REPLACED:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = EmptyModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


def replace_packages():
    """Installs the finder, once transformers knows which packages are really there."""
    from transformers.utils import import_utils
    for name in dir(import_utils):
        if name.startswith("is_") and name.endswith("_available"):
            try:
                getattr(import_utils, name)()
            except Exception:  # some of these functions need an argument
                pass
    sys.meta_path.append(Replace())


class Script:
    """The scheduler: answers what the tokenizer manager sends."""

    def __init__(self, manager, structs, span):
        self.manager, self.structs, self.span = manager, structs, span
        self.sessions, self.tasks = set(), set()

    def receive(self, sent):
        """Handles a message to the scheduler."""
        name = type(sent).__name__
        if name.startswith("BatchTokenized"):
            for one in sent.batch:
                self.receive(one)
        elif name == "TokenizedGenerateReqInput":
            self.start(self.generate(sent))
        elif name == "TokenizedEmbeddingReqInput":
            self.start(self.embed(sent))
        else:
            asyncio.get_running_loop().call_soon(self.control, name, sent)

    def start(self, work):
        """Runs an answer; its failure ends the process."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.ended)

    def ended(self, task):
        self.tasks.discard(task)
        if task.exception():
            traceback.print_exception(task.exception())
            os._exit(3)

    def control(self, name, sent):
        """Answers a request that controls the scheduler."""
        structs = self.structs
        if name == "OpenSessionReqInput":
            fresh = sent.session_id not in self.sessions
            self.sessions.add(sent.session_id)
            return self.manager._result_dispatcher(
                structs.OpenSessionReqOutput(session_id=sent.session_id, success=fresh))
        if name == "CloseSessionReqInput":
            return self.sessions.discard(sent.session_id)
        if name == "GetInternalStateReq":
            state = {"last_gen_throughput": 0.0, "memory_usage": {"token_capacity": 1000}}
            return self.manager._result_dispatcher(
                structs.GetInternalStateReqOutput(internal_state=structs.wrap_as_pickle(state)))
        kind = getattr(structs, name.removesuffix("Input").removesuffix("Req") + "ReqOutput", None)
        if kind is None:
            return None
        if name == "GetWeightsByNameReqInput":
            return self.manager._result_dispatcher(structs.GetWeightsByNameReqOutput(parameter=None))
        if name == "GetHiCacheL3LayoutReq":
            from sglang.srt.mem_cache.hicache_storage import disabled_l3_layout
            layout = disabled_l3_layout("Hierarchical cache is disabled", page_size=1)
            return self.manager._result_dispatcher(kind(layout=layout))
        given = {"success": name not in FAILURES, "message": MESSAGES.get(name, "Success")}
        if name in FAILURES:
            given["message"] = FAILURES[name]
        if name == "CheckWeightsReqInput" and sent.action not in ("snapshot", "compare"):
            given = {"success": False, "message": f"Unsupported action={sent.action!r}"}
        given = {key: value for key, value in given.items() if key in kind.__struct_fields__}
        return self.manager._result_dispatcher(kind(**given))

    def text_for(self, sampling):
        """Returns the whole text of an output."""
        if sampling.json_schema:
            return example(json.loads(sampling.json_schema))
        if sampling.structural_tag:
            return '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
        if sampling.regex:
            return "yes"
        return WORDS * 40

    async def generate(self, sent):
        session = sent.session_params and sent.session_params.id
        if session and session not in self.sessions:
            message = f"Invalid request: session id {session} does not exist"
            reason = {"type": "abort", "message": message, "status_code": 400, "err_type": "BadRequestError"}
            return await self.manager._handle_batch_output(self.output(sent, "", [], reason))
        sampling, tokenizer = sent.sampling_params, self.manager.tokenizer
        failure = grammar_error(sampling)
        if failure:
            reason = {"type": "abort", "message": failure, "status_code": 400, "err_type": "BadRequestError"}
            return await self.manager._handle_batch_output(self.output(sent, "", [], reason))
        text = self.text_for(sampling)
        ids = tokenizer.encode(text, add_special_tokens=False)
        limit = sampling.max_new_tokens
        if limit is None:
            limit = self.manager.context_len - len(sent.input_ids) - 1
        ids = ids[:max(limit, 1)]
        ends = len(ids) < max(limit, 1)
        if ends:
            ids.append(tokenizer.eos_token_id)
        whole, kept, reason = "", [], None
        stops = [sampling.stop_strs] if isinstance(sampling.stop_strs, str) else sampling.stop_strs or []
        for count in range(1, len(ids) + 1):
            shown = tokenizer.decode(ids[:count], skip_special_tokens=True)
            last = count == len(ids)
            if last:
                reason = ({"type": "stop", "matched": tokenizer.eos_token_id} if ends
                          else {"type": "length", "length": limit})
            if sampling.stop_token_ids and ids[count - 1] in sampling.stop_token_ids:
                reason = {"type": "stop", "matched": ids[count - 1]}
            for stop in stops:
                if stop in shown:
                    reason = {"type": "stop", "matched": stop}
                    shown = shown if sampling.no_stop_trim else shown[:shown.find(stop)]
            kept.append(ids[count - 1])
            if limit == 0:
                shown, kept = "", []
            await self.manager._handle_batch_output(
                self.output(sent, shown[len(whole):], kept, reason))
            whole = shown
            if reason:
                break
            await asyncio.sleep(0.01)

    def output(self, sent, text, ids, reason):
        """Builds the output of one step: the text and the token that it adds."""
        self.manager.last_receive_tstamp = time.time()
        count, last = len(ids), ids[-1:]
        values = dict.fromkeys(self.structs.BatchStrOutput.__struct_fields__)
        if sent.return_logprob:
            values |= self.logprobs(sent, ids)
        values |= {
            "rids": [sent.rid], "finished_reasons": [reason], "output_strs": [text],
            "output_ids": [array.array("q", last)], "prompt_tokens": [len(sent.input_ids)],
            "completion_tokens": [count], "reasoning_tokens": [0], "cached_tokens": [0],
            "retraction_counts": [0], "cached_tokens_details": [None], "dp_ranks": [None],
            "weight_versions": [[self.span(version="default", start=0, end=count)]] if reason else None,
        }
        return self.structs.BatchStrOutput(**values)

    def logprobs(self, sent, ids):
        """Builds the log probabilities of one step."""
        top = sent.top_logprobs_num
        prompt = list(sent.input_ids)
        start = sent.logprob_start_len
        start = len(prompt) if start < 0 else start
        shown = prompt[start:] if len(ids) < 2 else []
        first = ids[-1] if ids else 0
        row = [[-0.5 - place for place in range(top)]]
        row_ids = [[first + place for place in range(top)]]
        values = [None if start == 0 and at == 0 else -1.0 for at in range(len(shown))]
        wanted = sent.token_ids_logprob
        by_id = [[[-1.0 - place for place in range(len(wanted))]]] if wanted else [[]]
        by_ids = [[list(wanted)]] if wanted else [[]]
        return {
            "input_token_logprobs_val": [values], "input_token_logprobs_idx": [shown],
            "output_token_logprobs_val": [[-0.5]], "output_token_logprobs_idx": [[first]],
            "input_top_logprobs_val": [[None if at is None else row[0] for at in values] if top else []],
            "input_top_logprobs_idx": [[None if at is None else row_ids[0] for at in values] if top else []],
            "output_top_logprobs_val": [row if top else []],
            "output_top_logprobs_idx": [row_ids if top else []],
            "input_token_ids_logprobs_val": [[]], "input_token_ids_logprobs_idx": [[]],
            "output_token_ids_logprobs_val": by_id, "output_token_ids_logprobs_idx": by_ids,
        }

    async def embed(self, sent):
        await asyncio.sleep(0.002)
        size = sent.dimensions or self.manager.model_config.hidden_size
        values = dict.fromkeys(self.structs.BatchEmbeddingOutput.__struct_fields__) | {
            "rids": [sent.rid], "finished_reasons": [{"type": "length", "length": 0}],
            "embeddings": [[1.0 / size ** 0.5] * size], "prompt_tokens": [len(sent.input_ids)],
            "cached_tokens": [0], "retraction_counts": [0],
        }
        await self.manager._handle_batch_output(self.structs.BatchEmbeddingOutput(**values))


def grammar_error(sampling):
    """Returns the error of a grammar that does not compile, as the scheduler's `grammar_manager.py` words it."""
    import xgrammar
    for kind, text, compile_text in [
        ("json", sampling.json_schema, xgrammar.Grammar.from_json_schema),
        ("regex", sampling.regex, xgrammar.Grammar.from_regex),
        ("ebnf", sampling.ebnf, xgrammar.Grammar.from_ebnf),
        ("structural_tag", sampling.structural_tag, xgrammar.Grammar.from_structural_tag),
    ]:
        try:
            # The former kind of tag is converted first.
            if text and '"structures"' not in text:
                compile_text(text)
        except Exception as error:
            return f"Failed to compile {kind} grammar: {error}"
    return None


def example(schema):
    """Returns a small JSON text for a schema of the requests that are compared."""
    return json.dumps(value_of(schema, schema))


def value_of(schema, root):
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if schema.get(key):
            return value_of(schema[key][0], root)
    if "$ref" in schema:
        place = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            place = place[part]
        return value_of(place, root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if kind == "object":
        return {name: value_of(of, root) for name, of in schema.get("properties", {}).items()}
    if kind == "array":
        return [value_of(schema.get("items", {}), root)] * max(1, schema.get("minItems", 1))
    return {"string": "text", "integer": 1, "number": 1.5, "boolean": True}.get(kind)


def main():
    sources, port, flags = sys.argv[1], sys.argv[2], sys.argv[3:]
    sys.path.insert(0, sources)
    os.environ.setdefault("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "false")
    replace_packages()
    import sglang.srt.entrypoints.http_server as server
    from sglang.srt.entrypoints.engine import init_tokenizer_manager
    from sglang.srt.managers import io_struct
    from sglang.srt.managers.tokenizer_manager import ServerStatus, TokenizerManager
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import PortArgs, prepare_server_args
    from sglang.srt.utils.weight_versions import WeightVersionSpan

    class Manager(TokenizerManager):
        """SGLang's tokenizer manager, with the script in place of the socket to the scheduler."""

        def _dispatch_to_scheduler(self, sent):
            self.script.receive(sent)

        async def _async_dispatch_to_scheduler(self, sent):
            self.script.receive(sent)

    args = prepare_server_args([*flags, "--device", "cpu", "--host", "127.0.0.1", "--port", port])
    args.resolve_once()
    args.check_server_args()
    publish(args, role="tokenizer")
    ports = PortArgs.init_new(args)
    manager, templates = init_tokenizer_manager(args, ports, Manager)
    manager.script = Script(manager, io_struct, WeightVersionSpan)
    manager.max_req_input_len = manager.context_len - 1
    info = {"status": "ready", "max_total_num_tokens": 262144, "max_req_input_len": manager.context_len - 1}
    manager.set_startup_time({})
    manager.server_status = ServerStatus.Up
    server._setup_and_run_http_server(
        args, manager, templates, ports, [info], None, execute_warmup_func=lambda *_: True)


if __name__ == "__main__":
    main()
