#!/usr/bin/env python3
"""Holds the files around the program to one version and to the names of what .ci/dist packs: ways_in.py [BINARY]

Without BINARY only versions and names in the files are compared; with it .ci/dist packs BINARY, and each way in
must find its file there. Needs nothing but Python.
"""

import filecmp
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
ADDRESS = "https://github.com/vllm-sim/vllm-sim"


def text(path):
    return (REPOSITORY / path).read_text()


def one(path, pattern):
    """What stands in a file at the one place of a pattern."""
    found = re.findall(pattern, text(path), re.M)
    assert len(found) == 1, f"{path}: {len(found)} places of {pattern}"
    return found[0]


def versions():
    """The version that each file names, by file."""
    npm = json.loads(text("npm/package.json"))
    return {
        "npm/package.json": npm["version"],
        **{f"npm/package.json, {name}": version for name, version in npm["optionalDependencies"].items()},
        "action.yml": one("action.yml", r"^  version:\n    .*\n    default: (.*)$"),
        "helm/vllm-sim/Chart.yaml": one("helm/vllm-sim/Chart.yaml", r"^version: (.*)$"),
        "helm/vllm-sim/Chart.yaml, appVersion": one("helm/vllm-sim/Chart.yaml", r'^appVersion: "(.*)"$'),
        "Dockerfile": one("Dockerfile", r"^ARG VERSION=(.*)$"),
    }


def names(cargo, version, machine):
    """The tarball of a machine as each way in asks for it, by file."""
    binstall = cargo["package"]["metadata"]["binstall"]
    variables = {"repo": cargo["package"]["repository"], "name": "vllm-sim", "version": version, "target-arch": machine, "target-family": "linux", "bin": "vllm-sim"}
    fill = lambda template: re.sub(r"\{ ([\w-]+) \}", lambda found: variables[found[1]], template)
    url = fill(binstall["pkg-url"])
    assert url.startswith(f"{ADDRESS}/releases/download/v{version}/"), url
    stem = fill(binstall["bin-dir"]).removesuffix("/vllm-sim")
    formula = re.findall(rf'url "(.*-{machine}-linux.*)"', text("packaging/homebrew/vllm-sim.rb"))
    assert len(formula) == 1, formula
    action = one("packaging/action/install.sh", r"^  name=(.*)$").replace("$version", version).replace("$machine", machine)
    return {
        "Cargo.toml, pkg-url": url.rpartition("/")[2],
        "Cargo.toml, bin-dir": f"{stem}.tar.gz",
        "packaging/homebrew/vllm-sim.rb": formula[0].replace("@VERSION@", version).rpartition("/")[2],
        "packaging/action/install.sh": action,
    }


def differing(what, wanted, found):
    return [f"{where}: {what} is {value}, not {wanted}" for where, value in found.items() if value != wanted]


def packed(binary, wanted, machine, version):
    """What is wrong with the files that .ci/dist makes of a program."""
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        subprocess.run([REPOSITORY / ".ci/dist", binary, folder], check=True, stdout=subprocess.DEVNULL)
        npm = {"x86_64": "x64", "aarch64": "arm64"}[machine]
        for name in (wanted, f"vllm-sim-linux-{npm}-{version}.tgz"):
            if not (folder / name).exists():
                return [f".ci/dist makes no {name}, but {sorted(path.name for path in folder.iterdir())}"]
        with tarfile.open(folder / wanted) as archive:
            at = f"{wanted.removesuffix('.tar.gz')}/vllm-sim"
            if at not in archive.getnames():
                return [f"{wanted} has no {at}"]
        # The formula of a release needs both machines.
        sums = folder / "SHA256SUMS"
        other = "aarch64" if machine == "x86_64" else "x86_64"
        sums.write_text(f"{sums.read_text()}{'0' * 64}  {wanted.replace(machine, other)}\n")
        formula = subprocess.run([REPOSITORY / "packaging/homebrew/fill.sh", sums], capture_output=True, text=True, check=True).stdout
        digest = re.search(rf"^(\w+)  {re.escape(wanted)}$", sums.read_text(), re.M)[1]
        if digest not in formula or "@" in formula:
            return [f"the formula is not filled:\n{formula}"]
    return []


def main():
    cargo = tomllib.loads(text("Cargo.toml"))
    version = cargo["workspace"]["package"]["version"]
    wrong = differing("version", version, versions())
    for machine in ("x86_64", "aarch64"):
        wanted = f"vllm-sim-{version}-{machine}-linux.tar.gz"
        wrong += differing("name", wanted, names(cargo, version, machine))
        if len(sys.argv) > 1 and os.uname().machine == machine:
            wrong += packed(pathlib.Path(sys.argv[1]).resolve(), wanted, machine, version)
    if not filecmp.cmp(REPOSITORY / "LICENSE", REPOSITORY / "npm/LICENSE", shallow=False):
        wrong.append("npm/LICENSE is no copy of LICENSE")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
