#!/usr/bin/env python3
"""Packs a wheel around a program that is built already: pack_wheel.py BINARY [FOLDER]

What `maturin build` makes of pyproject.toml, without compiling: the package, the program among the
scripts, and the tag of the machine and of the oldest glibc that the program runs on.
"""

import base64
import hashlib
import re
import struct
import sys
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MACHINES = {62: "x86_64", 183: "aarch64"}
# glibc that the interpreters of manylinux wheels have at least.
OLDEST = (2, 17)
# The kind of program header that names a loader.
PT_INTERP = 3


def platforms(program: bytes) -> list[str]:
    """The platform tags of an ELF program of 64 bits: a static one runs beside any C library.

    Raises:
        SystemExit: It is none for which there are tags.
    """
    machine = struct.unpack_from("<H", program, 18)[0] if program[:5] == b"\x7fELF\x02" else None
    if machine not in MACHINES:
        sys.exit("the program is no ELF of x86_64 or aarch64")
    name = MACHINES[machine]
    if not has_loader(program):
        return [f"manylinux_{OLDEST[0]}_{OLDEST[1]}_{name}", f"musllinux_1_1_{name}"]
    versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", program)
    major, minor = max([OLDEST, *((int(a), int(b)) for a, b in versions)])
    return [f"manylinux_{major}_{minor}_{name}"]


def has_loader(program: bytes) -> bool:
    """Whether an ELF program of 64 bits names a dynamic loader, which a static one does not."""
    (table,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    kinds = (struct.unpack_from("<I", program, table + size * at)[0] for at in range(count))
    return PT_INTERP in kinds


def metadata(project: dict[str, object], version: str) -> str:
    """METADATA of the project table."""
    fields = [
        ("Metadata-Version", "2.4"),
        ("Name", project["name"]),
        ("Version", version),
        ("Summary", project["description"]),
        ("Keywords", ",".join(strings(project["keywords"]))),
        *(("Classifier", text) for text in strings(project["classifiers"])),
        ("License-Expression", project["license"]),
        ("License-File", "LICENSE"),
        ("Requires-Python", project["requires-python"]),
        ("Description-Content-Type", "text/markdown"),
    ]
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    for extra, packages in extras.items():
        fields.append(("Provides-Extra", extra))
        fields += [("Requires-Dist", f"{name}; extra == '{extra}'") for name in packages]
    head = "".join(f"{name}: {value}\n" for name, value in fields)
    return f"{head}\n{(HERE / str(project['readme'])).read_text()}"


def strings(value: object) -> list[str]:
    """A list of texts, checked."""
    assert isinstance(value, list) and all(isinstance(item, str) for item in value)
    return value


def entry_points(project: dict[str, object]) -> str:
    """entry_points.txt of the project table."""
    groups = project["entry-points"]
    assert isinstance(groups, dict)
    lines = []
    for group, names in groups.items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {target}" for name, target in names.items()]
    return "\n".join(lines) + "\n"


def pack(binary: Path, folder: Path) -> Path:
    """Writes the wheel into ``folder``."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    workspace = tomllib.loads((HERE.parent / "Cargo.toml").read_text())["workspace"]
    version = workspace["package"]["version"]
    name = project["name"].replace("-", "_")
    program = binary.read_bytes()
    tags = platforms(program)
    tag = f"py3-none-{'.'.join(tags)}"
    info = f"{name}-{version}.dist-info"
    wheel = "Wheel-Version: 1.0\nGenerator: pack_wheel\nRoot-Is-Purelib: false\n"
    wheel += "".join(f"Tag: py3-none-{name}\n" for name in tags)
    package = HERE / "src"
    sources = sorted(p for p in package.rglob("*") if p.suffix in (".py", ".typed"))
    files: list[tuple[str, bytes, int]] = [
        *((str(p.relative_to(package)), p.read_bytes(), 0o644) for p in sources),
        (f"{name}-{version}.data/scripts/vllm-sim", program, 0o755),
        (f"{info}/METADATA", metadata(project, version).encode(), 0o644),
        (f"{info}/WHEEL", wheel.encode(), 0o644),
        (f"{info}/entry_points.txt", entry_points(project).encode(), 0o644),
        (f"{info}/licenses/LICENSE", (HERE.parent / "LICENSE").read_bytes(), 0o644),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    record = ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for at, data, mode in files:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{at},sha256={digest},{len(data)}\n"
            add(archive, at, data, mode)
        add(archive, f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), 0o644)
    return path


def add(archive: zipfile.ZipFile, at: str, data: bytes, mode: int) -> None:
    """One file of a wheel, the same bytes whenever it is made."""
    entry = zipfile.ZipInfo(at, (1980, 1, 1, 0, 0, 0))
    entry.external_attr = (0o100000 | mode) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    print(pack(Path(sys.argv[1]), Path(*sys.argv[2:]) if sys.argv[2:] else HERE / "dist"))
