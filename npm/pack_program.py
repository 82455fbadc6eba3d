#!/usr/bin/env python3
"""Packs a program that is built as the npm package of its machine: pack_program.py BINARY [FOLDER]

The package vllm-sim names these as optional dependencies, so that npm installs the one that fits. The
tarball is what `npm pack` would make, and the same bytes for the same program.
"""

import gzip
import io
import json
import struct
import sys
import tarfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

from pack_wheel import MACHINES, has_loader  # noqa: E402

# The machine as Node's process.arch has it.
ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64"}
# What npm gives the files of a tarball: 26 October 1985.
WHEN = 499162500


def manifest(program: bytes, version: str) -> dict[str, object]:
    """package.json for a program.

    Raises:
        SystemExit: It is no program of a known machine.
    """
    machine = struct.unpack_from("<H", program, 18)[0] if program[:5] == b"\x7fELF\x02" else None
    if machine not in MACHINES:
        sys.exit("the program is no ELF of x86_64 or aarch64")
    architecture = ARCHITECTURES[MACHINES[machine]]
    name = f"@vllm-sim/linux-{architecture}"
    main = json.loads((HERE / "package.json").read_text())
    if main["version"] != version or main["optionalDependencies"].get(name) != version:
        sys.exit(f"npm/package.json must be of version {version} and name {name} of that version")
    return {
        "name": name,
        "version": version,
        "description": f"The program of the package vllm-sim for Linux on {architecture}",
        "license": main["license"],
        "repository": main["repository"],
        "os": ["linux"],
        "cpu": [architecture],
        # A static program runs beside any C library.
        **({"libc": ["glibc"]} if has_loader(program) else {}),
        "preferUnplugged": True,
    }


def pack(binary: Path, folder: Path) -> Path:
    """Writes the tarball into a folder."""
    cargo = tomllib.loads((HERE.parent / "Cargo.toml").read_text())
    program = binary.read_bytes()
    package = manifest(program, cargo["workspace"]["package"]["version"])
    name = str(package["name"])
    readme = f"# {name}\n\n{package['description']}. Install `vllm-sim`, which brings this package along.\n"
    files = [
        ("package.json", json.dumps(package, indent=2).encode() + b"\n", 0o644),
        ("README.md", readme.encode(), 0o644),
        ("LICENSE", (HERE / "LICENSE").read_bytes(), 0o644),
        ("bin/vllm-sim", program, 0o755),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.removeprefix('@').replace('/', '-')}-{package['version']}.tgz"
    with path.open("wb") as out, gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0) as zipped:
        with tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for at, data, mode in files:
                entry = tarfile.TarInfo(f"package/{at}")
                entry.size, entry.mode, entry.mtime = len(data), mode, WHEN
                archive.addfile(entry, io.BytesIO(data))
    return path


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    print(pack(Path(sys.argv[1]), Path(sys.argv[2] if sys.argv[2:] else ".")))
