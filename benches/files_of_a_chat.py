#!/usr/bin/env python3
"""Files of ours with a function that runs for one streamed chat.

    benches/files_of_a_chat.py BINARY [FLAGS OF THE SERVER...]

Starts BINARY (by default as `--model demo`) under callgrind, warms it up with three chats, and collects
one streamed chat alone. Symbols become files by debug information where BINARY has it (build with
`CARGO_PROFILE_RELEASE_STRIP=none CARGO_PROFILE_RELEASE_DEBUG=line-tables-only`), else by the path of their module.
Inlined functions without debug information are not seen: the number is a lower bound.
"""
import json, pathlib, re, subprocess, sys, tempfile

from instructions import ask_once, free_port, wait_up

ROOT = pathlib.Path(__file__).resolve().parents[1]
# One folder of sources for each crate, by the name that symbols have.
CRATES = {"vllm_sim": ROOT / "src"} | {
    re.search(r'^name = "(.*)"', manifest.read_text(), re.M)[1].replace("-", "_"): manifest.parent / "src"
    for manifest in ROOT.glob("crates/*/Cargo.toml")
}
STEP = re.compile(r"(?<![\w:])(vllm_sim\w*)((?:::[a-z_]\w*)+)")
FILE = re.compile(r"^(?:fl|fi|fe|cfi|cfl)=\((\d+)\)(?: (.*))?$")
NAME = re.compile(r"^c?fn=\((\d+)\)(?: (.*))?$")


def of_module(name, path):
    """The file of a module, from the longest part of a path that is one."""
    folder, parts = CRATES.get(name), path.split("::")[1:]
    while folder and parts:
        for file in (folder.joinpath(*parts).with_suffix(".rs"), folder.joinpath(*parts, "mod.rs")):
            if file.exists():
                return file
        parts.pop()
    return next((file for file in (folder / "lib.rs", folder / "main.rs") if file.exists()), None) if folder else None


def files_of(profile):
    """Files of ours in a profile of callgrind, named in it or found by the modules in the names of functions that
    ran; and those of them that have such a function themselves, not only a type in generic code or a destructor."""
    files, found, running = {}, set(), set()
    for line in profile.splitlines():
        if match := FILE.match(line):
            path = files.setdefault(match[1], match[2] or "")
            for folder in CRATES.values():
                at = path.find(f"{folder.relative_to(ROOT)}/")
                if path and at >= 0 and (at == 0 or path[at - 1] == "/") and "/registry/" not in path:
                    running.add(path[at:])
        elif (match := NAME.match(line)) and match[2]:
            name = match[2]
            own = name if name.startswith("vllm_sim") else name[1:] if name.startswith("<vllm_sim") else ""
            own = own or (name.partition(" as ")[2] if name.startswith("<") else "")
            for step in STEP.finditer(name):
                if file := of_module(*step.groups()):
                    found.add(str(file.relative_to(ROOT)))
                    if own.startswith(step[0]):
                        running.add(str(file.relative_to(ROOT)))
    found, running = ([file for file in files if (ROOT / file).exists()] for files in (found | running, running))
    return sorted(found), running


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    binary, flags, port = sys.argv[1], sys.argv[2:] or ["--model", "demo"], free_port()
    body = json.dumps({"messages": [{"role": "user", "content": "lorem " * 10}], "max_tokens": 16, "stream": True})
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out",
                   binary, *flags, "--host", "127.0.0.1", "--port", str(port), "--seed", "1"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        try:
            wait_up(port, server, log)
            for _ in range(3):
                ask_once(port, body)
            for order in ("-i on", "-z"):
                subprocess.run(["callgrind_control", *order.split(), str(server.pid)], check=True, capture_output=True)
            ask_once(port, body)
            subprocess.run(["callgrind_control", "-d", str(server.pid)], check=True, capture_output=True)
            profile = "".join(path.read_text(errors="replace") for path in pathlib.Path(folder).glob("out*"))
        finally:
            server.terminate()
            server.wait(60)
    found, running = files_of(profile)
    print("\n".join(file if file in running else f"{file} (types and destructors)" for file in found))
    print(f"{len(found)} files for one streamed chat, {len(running)} with a function that ran: {' '.join(flags)}")


if __name__ == "__main__":
    main()
