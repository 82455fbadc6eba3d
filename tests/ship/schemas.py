#!/usr/bin/env python3
"""Writes the JSON schemas that kubeconform checks the chart and the manifests against.

    schemas.py DIR
    schemas.py --definitions DIR    the definitions of the custom resources themselves, for an API server

Those of Kubernetes come from the PyPI package `kubernetes-validate`, those of custom resources from
the definitions inside the public Go modules of each project (`go mod download`), so nothing of
theirs is stored here. Needs Go and PyYAML.
"""

import json
import pathlib
import subprocess
import sys

import yaml

KUBERNETES = "v1.34.0-local-strict"

# Module, version, folder with definitions, files.
SOURCES = [
    (
        "sigs.k8s.io/gateway-api",
        "v1.4.0",
        "config/crd/standard",
        [
            "gateway.networking.k8s.io_httproutes.yaml",
            "gateway.networking.k8s.io_gateways.yaml",
            "gateway.networking.k8s.io_gatewayclasses.yaml",
        ],
    ),
    (
        "sigs.k8s.io/gateway-api-inference-extension",
        "v1.1.0",
        "config/crd/bases",
        ["inference.networking.k8s.io_inferencepools.yaml"],
    ),
    (
        "github.com/prometheus-operator/prometheus-operator",
        "v0.85.0",
        "example/prometheus-operator-crd",
        [
            "monitoring.coreos.com_servicemonitors.yaml",
            "monitoring.coreos.com_podmonitors.yaml",
            "monitoring.coreos.com_prometheusrules.yaml",
        ],
    ),
    (
        "github.com/kedacore/keda/v2",
        "v2.21.0",
        "config/crd/bases",
        ["keda.sh_scaledobjects.yaml"],
    ),
    (
        "github.com/kserve/kserve",
        "v0.16.0",
        "config/crd/full/llmisvc",
        ["serving.kserve.io_llminferenceservices.yaml"],
    ),
]


def module_folder(module, version):
    """Where Go keeps the module's sources."""
    out = subprocess.run(
        ["go", "mod", "download", "-json", f"{module}@{version}"],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
    )
    facts = json.loads(out.stdout or "{}")
    if "Dir" not in facts:
        sys.exit(f"{module}@{version}: {facts.get('Error') or out.stderr}")
    return pathlib.Path(facts["Dir"])


def strict(schema):
    """Unknown fields are errors, as with `kubectl apply --validate=strict`."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: strict(value) for key, value in schema.items() if key != "description" or isinstance(value, dict)}
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
        schema["oneOf"] = [{"type": "string"}, {"type": "integer"}]
        schema.pop("anyOf", None)
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema and not open_ended:
        schema["additionalProperties"] = False
    return schema


def kubernetes(target):
    """Without the identities by which they refer to each other on the web, but for files."""
    import kubernetes_validate

    folder = pathlib.Path(kubernetes_validate.__path__[0]) / "kubernetes-json-schema" / KUBERNETES
    for path in folder.glob("*.json"):
        text = path.read_text().replace('"/api/_definitions.json#', '"_definitions.json#')
        schema = json.loads(text)
        schema.pop("$id", None)
        (target / path.name).write_text(json.dumps(schema))


def definitions():
    """The file of each custom resource's definition."""
    for module, version, folder, files in SOURCES:
        base = module_folder(module, version) / folder
        for name in files:
            yield base / name


def main():
    if sys.argv[1] == "--definitions":
        target = pathlib.Path(sys.argv[2])
        target.mkdir(parents=True, exist_ok=True)
        for file in definitions():
            (target / file.name).write_text(file.read_text())
        return
    target = pathlib.Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    kubernetes(target)
    for file in definitions():
        definition = yaml.safe_load(file.read_text())
        group, kind = definition["spec"]["group"], definition["spec"]["names"]["kind"]
        for served in definition["spec"]["versions"]:
            schema = strict(served["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            path = target / f"{kind.lower()}-{group}-{served['name']}.json"
            path.write_text(json.dumps(schema))
            print(path.name)


if __name__ == "__main__":
    main()
