"""Reads the metric families of vLLM, with their labels, buckets and HELP texts, from the sources.

Nothing is imported: `Reader` follows the calls that create metrics, and the assignments before them.
"""
import ast

# Sources of the families of a server, in the order of its page; the first four are other packages.
SOURCES = """
prometheus_client/gc_collector.py
prometheus_client/platform_collector.py
prometheus_client/process_collector.py
prometheus_fastapi_instrumentator/metrics.py
vllm/v1/metrics/loggers.py
vllm/v1/metrics/perf.py
vllm/v1/spec_decode/metrics.py
vllm/distributed/kv_transfer/kv_connector/v1/nixl/stats.py
vllm/distributed/kv_transfer/kv_connector/v1/offloading/metrics.py
vllm/v1/kv_offload/cpu/spec.py
vllm/v1/simple_kv_offload/metrics.py
vllm/parser/metrics.py
vllm/entrypoints/serve/dev/sleep/metrics.py
vllm/entrypoints/rl/online/metrics.py
vllm/entrypoints/speech_to_text/realtime/metrics.py
""".split()
ENGINE_LABELS = ["model_name", "engine"]
OFFLOADING = [f"Offloading{kind}Metadata" for kind in ("Counter", "Gauge", "Histogram")]
KINDS = {"counter": "COUNTER", "gauge": "GAUGE", "histogram": "HISTOGRAM", "summary": "SUMMARY", "info": "GAUGE"}
TOKENS = "request_tokens"
"""Key of the buckets that depend on the context length."""


class Metadata:
    """A family without its name, as the offloading modules declare it."""

    def __init__(self, documentation, buckets=None, labelnames=()):
        self.documentation, self.buckets, self.labelnames = documentation, buckets, labelnames


class Attributes:
    """Values that the sources assign to `self` or in the body of a class."""


class Settings:
    """Settings of a server, whose values no family depends on."""

    def __getattr__(self, name):
        return Settings()


class Reader(ast.NodeVisitor):
    """Evaluates assignments and calls of one source in their order; what it does not know is skipped."""

    def __init__(self, root, path, buckets, follow_imports=True):
        self.root, self.path, self.buckets, self.families = root, path, buckets, {}
        self.follow_imports = follow_imports
        own = Attributes()
        own._labelnames, own._prefix = ENGINE_LABELS, "process_"
        self.names = {
            "self": own, "labelnames": ENGINE_LABELS, "type": "cache_config", "metrics_info": {},
            "additional_label_names": (), "extra_config": {}, "is_diffusion": False,
            "max_model_len": None, "custom_buckets": None, "vllm_config": Settings(),
            # Up to 0.30.
            "build_1_2_5_buckets": lambda _: TOKENS,
            **dict.fromkeys(OFFLOADING, Metadata),
            "histogram_buckets": lambda key, **_: key if key == TOKENS else buckets[key.upper() + "_BUCKETS"],
        }

    def value(self, node):
        return eval(compile(ast.Expression(node), self.path, "eval"), self.names)

    def try_value(self, node, default=None):
        try:
            return default if node is None else self.value(node)
        except Exception:
            return default

    def read(self):
        self.visit(ast.parse((self.root / self.path).read_text()))
        return self

    def visit_ImportFrom(self, node):
        path = f"{(node.module or '').replace('.', '/')}.py"
        if self.follow_imports and "offload" in path and (self.root / path).exists():
            imported = Reader(self.root, path, self.buckets, follow_imports=False).read().names
            names = [name.name for name in node.names if name.name in imported and name.name not in self.names]
            self.names.update((name, imported[name]) for name in names)

    def visit_ClassDef(self, node):
        attributes = Attributes()
        for statement in node.body:
            if isinstance(statement, ast.Assign):
                setattr(attributes, statement.targets[0].id, self.try_value(statement.value))
        self.names[node.name] = attributes
        self.generic_visit(node)

    def assign(self, target, node):
        self.visit(node)
        try:
            value = self.value(node)
        except Exception:
            return
        names, values = [target], [value]
        if isinstance(target, ast.Tuple):
            names, values = target.elts, value
        for name, value in zip(names, values):
            if isinstance(name, ast.Name):
                self.names[name.id] = value
            elif isinstance(name, ast.Attribute) and ast.unparse(name.value) == "self":
                setattr(self.names["self"], name.attr, value)

    def visit_Assign(self, node):
        if isinstance(node.targets[0], ast.Subscript):
            self.visit_Dict(ast.Dict([node.targets[0].slice], [node.value]))
        self.assign(node.targets[0], node.value)

    def visit_AnnAssign(self, node):
        if node.value is not None:
            self.assign(node.target, node.value)

    def visit_FunctionDef(self, node):
        before = dict(self.names)
        for argument, default in zip(node.args.args[::-1], node.args.defaults[::-1]):
            if isinstance(default, ast.Tuple):
                self.names[argument.arg] = self.try_value(default)
        self.generic_visit(node)
        self.names = before

    def visit_Dict(self, node):
        """Families of the offloading modules: a name for each OffloadingCounterMetadata(…)."""
        for key, call in zip(node.keys, node.values):
            name, kind = self.try_value(key), kind_of(call)
            if isinstance(name, str) and kind:
                words = {word.arg: word.value for word in call.keywords}
                labels = ENGINE_LABELS + list(self.try_value(words.get("labelnames"), ()))
                self.add(kind, name, self.value(words["documentation"]), labels, self.try_value(words.get("buckets")))

    def visit_ListComp(self, node):
        """Families that differ only in name and HELP: [… Counter(name=name, …) … for name, doc in specs]."""
        loop = node.generators[0]
        for values in self.try_value(loop.iter, ()):
            if isinstance(loop.target, ast.Tuple) and isinstance(values, tuple):
                self.names.update(zip((name.id for name in loop.target.elts), values))
                self.visit(node.elt)

    def visit_Call(self, node):
        self.generic_visit(node)
        kind = kind_of(node)
        words = {word.arg: word.value for word in node.keywords}
        name = words.get("name", node.args[0] if node.args else None)
        text = words.get("documentation", node.args[1] if len(node.args) > 1 else None)
        labels = words.get("labelnames", words.get("labels", node.args[2] if len(node.args) > 2 else None))
        name, text, labels = self.try_value(name), self.try_value(text), self.try_value(labels, [])
        if kind and isinstance(name, str) and isinstance(text, str):
            labels = [label for label in labels if isinstance(label, str)] if isinstance(labels, (list, tuple)) else []
            self.add(kind, name, text, labels, self.try_value(words.get("buckets")))

    def add(self, kind, name, text, labels, buckets):
        if kind == "HISTOGRAM" and not buckets:
            raise ValueError(f"{self.path}: the buckets of {name} are unknown")
        if kind == "COUNTER":
            name = name.removesuffix("_total") + "_total"
        self.families[name] = (kind, text, sorted(labels), buckets)


def kind_of(call):
    """The type of the family that a call creates, by the name of what it calls."""
    if not isinstance(call, ast.Call):
        return None
    name = ast.unparse(call.func).split(".")[-1].lower()
    if name == "_add_metric":
        return "GAUGE"
    return next((kind for word, kind in KINDS.items() if word in name and "labels" not in name), None)


def sources(root):
    """Returns the modules of vLLM that create metrics: those that name one, and those of the page."""
    names = [path for path in (root / "vllm").rglob("*.py") if {"v1", "parser", "entrypoints", "distributed"} & set(path.parts)]
    texts = {str(path.relative_to(root)): path.read_text() for path in names}
    named = {path for path, text in texts.items() if '"vllm:' in text or "OffloadingCounterMetadata(" in text}
    return sorted(named | {path for path in SOURCES if path.startswith("vllm/") and (root / path).exists()})


def read_buckets(root):
    """Returns the lists of buckets of vllm/v1/metrics/buckets.py, by their names."""
    buckets, path = {}, root / "vllm/v1/metrics/buckets.py"
    if path.exists():
        exec("from typing import Any\n" + "\n".join(
            ast.unparse(n) for n in ast.parse(path.read_text()).body
            if isinstance(n, ast.AnnAssign) and n.target.id.endswith("_BUCKETS")), buckets)
    return buckets


def page_families(roots):
    """Yields the families of a server's page, source by source; `roots` has the folder of each package."""
    buckets = read_buckets(roots["vllm"])
    for source in SOURCES:
        yield source, Reader(roots[source.split("/")[0]], source, buckets).read().families
