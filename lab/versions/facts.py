"""Reads what a vLLM release offers to users and peers, from the files of its wheel.

    facts.py FOLDER OUT.json     FOLDER has vllm/ of the wheel

`collect` prefers vLLM's own objects (argument parser, FastAPI application); the rest is read from the syntax tree, so that no
GPU and no compiled file is needed. The result has one dictionary of texts per topic; README.md lists the topics.
"""
import ast
import importlib
import json
import os
import re
import sys
import typing
from pathlib import Path

import metric_families

PARSER_MODULES = ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
APP_MODULES = ("vllm.entrypoints.launchers.app", "vllm.entrypoints.openai.api_server")
# Files whose error texts reach clients.
ERROR_FILES = ("vllm/entrypoints/**/*.py", "vllm/renderers/**/*.py", "vllm/sampling_params.py", "vllm/pooling_params.py",
               "vllm/v1/engine/*.py", "vllm/exceptions.py")
MESSAGE_FILES = {"vllm/v1/engine/__init__.py": None, "vllm/sampling_params.py": None, "vllm/pooling_params.py": None,
                 "vllm/lora/request.py": None, "vllm/v1/outputs.py": ("LogprobsLists", "LogprobsTensors", "SamplingMaskLists"),
                 "vllm/v1/metrics/stats.py": ("BaseCacheStats", "PrefixCacheStats", "SchedulerStats", "PrefillStats", "CachingMetrics",
                                             "RequestSpecDecodeMetrics", "KVCacheEvictionEvent", "SchedulerIterationDetails")}


def first_module(names):
    """Returns the first of the modules that this release has."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name and not name.startswith(f"{error.name}."):
                raise
    raise SystemExit(f"none of {', '.join(names)} in this wheel")


def shown(value):
    """Returns a value as text that does not depend on addresses or the order of sets."""
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(shown, value))) + "}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def flag_facts(parser):
    """Returns the flags of `vllm serve`: kind, short names, default and choices of each."""
    flags = {}
    for action in parser._actions:
        longs = [word[2:] for word in action.option_strings if word.startswith("--")]
        shorts = [word[1:] for word in action.option_strings if not word.startswith("--")]
        names = [name for name in longs if not (name.startswith("no-") and name[3:] in longs)]
        kind = "switch" if action.nargs == 0 else "list" if action.nargs in ("*", "+") else "value"
        optional = kind == "switch" or type(action).__name__ == "BooleanOptionalAction"
        for name in names:
            if name in ("help", "version"):
                continue
            flags[name] = {"kind": "switch" if optional else kind, "shorts": shorts, "default": shown(action.default)}
            if action.choices:
                flags[name]["choices"] = sorted(map(str, action.choices))
            if len(names) > 1 and name != names[0]:
                flags[name]["alias"] = names[0]
    return flags


class OneModel:
    """Stands in for a model's configuration: every pooling route is on."""

    hf_config = type("HfConfig", (), {"num_labels": 1})()
    pooling_task = "embed"

    def __init__(self, pooling_task):
        self.pooling_task = pooling_task

    def get_pooling_task(self, tasks):
        return self.pooling_task

    def __getattr__(self, name):
        return None


def openapi_facts(parser):
    """Returns the OpenAPI document of the server with every optional route."""
    from vllm import tasks
    from vllm.config import ProfilerConfig

    args = parser.parse_args([])
    for name in ("enable_tokenizer_info_endpoint", "enable_scale_out", "enable_fault_tolerance", "tokens_only"):
        if hasattr(args, name):
            setattr(args, name, True)
    args.profiler_config = ProfilerConfig(profiler="torch", torch_profiler_dir="/tmp")
    every = []

    def flatten(kind):
        inner = typing.get_args(kind)
        every.extend([kind] if not inner else [])
        for part in inner:
            flatten(part)

    flatten(tasks.SupportedTask)
    build_app = first_module(APP_MODULES).build_app
    # The routes of token embeddings exclude those of embeddings: two servers have all routes.
    document = build_app(args, tuple(every), OneModel("embed")).openapi()
    other = build_app(args, tuple(every), OneModel("token_embed")).openapi()
    for path, item in other["paths"].items():
        document["paths"].setdefault(path, item)
    for name, schema in other["components"]["schemas"].items():
        document["components"]["schemas"].setdefault(name, schema)
    return document


def environment_facts(root):
    """Returns the environment variables of vllm/envs.py, each with the expression that reads it."""
    tree = ast.parse((root / "vllm/envs.py").read_text())
    for node in ast.walk(tree):
        target = getattr(node, "target", None) or (getattr(node, "targets", None) or [None])[0]
        if isinstance(target, ast.Name) and target.id == "environment_variables" and isinstance(node.value, ast.Dict):
            pairs = zip(node.value.keys, node.value.values)
            return {ast.literal_eval(key): ast.unparse(value).removeprefix("lambda: ") for key, value in pairs}
    raise SystemExit("vllm/envs.py has no environment_variables")


def class_facts(path, names=None):
    """Returns the classes of a file: bases and keywords of each, and its fields with type and default."""
    facts = {}
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.ClassDef) or (names and node.name not in names):
            continue
        facts[node.name] = ", ".join(ast.unparse(part) for part in [*node.bases, *node.keywords])
        position = 0
        for field in node.body:
            if isinstance(field, ast.AnnAssign):
                value = f" = {ast.unparse(field.value)}" if field.value is not None else ""
                facts[f"{node.name}.{field.target.id}"] = f"#{position} {ast.unparse(field.annotation)}{value}"
                position += 1
            elif isinstance(field, ast.Assign) and isinstance(field.targets[0], ast.Name):
                facts[f"{node.name}.{field.targets[0].id}"] = ast.unparse(field.value)
    return facts


def scheduler_facts(root):
    """Returns the fields of the scheduler's and cache's settings, and the defaults that depend on the GPU."""
    facts = {}
    for name in ("scheduler", "cache", "kv_events", "kv_transfer", "parallel", "speculative", "lora", "observability"):
        path = root / f"vllm/config/{name}.py"
        if path.exists():
            facts.update(class_facts(path))
    for node in ast.walk(ast.parse((root / "vllm/engine/arg_utils.py").read_text())):
        if isinstance(node, ast.FunctionDef) and "default" in node.name:
            facts[f"EngineArgs.{node.name}()"] = "\n".join(map(ast.unparse, node.body))
    return facts


def template(node):
    """Returns the text of a literal, `{expression}` for what an f-string inserts; None for other nodes."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{" + ast.unparse(part.value) + "}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
        left = template(node.left)
        return left and left + (template(node.right) or "" if isinstance(node.op, ast.Add) else "")
    return None


def error_facts(root):
    """Returns the texts of errors that the protocol and serving modules raise or return, each with its files."""
    facts = {}
    for path in sorted({path for pattern in ERROR_FILES for path in root.glob(pattern)}):
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.exc if isinstance(node, ast.Raise) else node
            if not isinstance(called, ast.Call):
                continue
            name = ast.unparse(called.func).split(".")[-1]
            if not (isinstance(node, ast.Raise) or "error" in name.lower() and "logger" not in ast.unparse(called.func)):
                continue
            for argument in [*called.args, *(word.value for word in called.keywords if word.arg in ("message", "detail", "err_msg"))]:
                text = template(argument)
                if text and " " in text:
                    facts.setdefault(text, set()).add(str(path.relative_to(root)))
    return {text: ", ".join(sorted(files)) for text, files in facts.items()}


def metric_facts(root):
    """Returns the metric families: type, labels, buckets and HELP text of each."""
    buckets = metric_families.read_buckets(root)
    facts = {}
    for path in metric_families.sources(root):
        try:
            families = metric_families.Reader(root, path, buckets).read().families
        except (ValueError, SyntaxError) as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        for name, (kind, text, labels, bounds) in families.items():
            if name.startswith("vllm:"):
                bounds = bounds if isinstance(bounds, str) else [float(bound) for bound in bounds or ()]
                facts[name] = {"type": kind, "labels": labels, "buckets": bounds, "help": text, "source": path}
    return facts


def collect(root):
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_SERVER_DEV_MODE="1",
                      VLLM_ALLOW_RUNTIME_LORA_UPDATING="1", PYTHONPATH=str(root))
    sys.path.insert(0, str(root))
    platforms = importlib.import_module("vllm.platforms")
    platforms._current_platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform()
    parser_class = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    parser = first_module(PARSER_MODULES).make_arg_parser(parser_class())
    messages = {}
    for path, names in MESSAGE_FILES.items():
        if (root / path).exists():
            messages.update(class_facts(root / path, names))
    return {
        "flags": flag_facts(parser),
        "environment": environment_facts(root),
        "openapi": openapi_facts(parser),
        "metrics": metric_facts(root),
        "errors": error_facts(root),
        "settings": scheduler_facts(root),
        "engine core": messages,
        "kv events": class_facts(root / "vllm/distributed/kv_events.py", ("EventBatch", "KVCacheEvent", "BlockStored", "BlockRemoved", "AllBlocksCleared", "KVEventBatch")),
    }


if __name__ == "__main__":
    folder, out = map(Path, sys.argv[1:3])
    out.write_text(json.dumps(collect(folder.resolve()), indent=1, sort_keys=True))
