#!/usr/bin/env python3
"""Runs the Dockerfile without Docker, and the image's content as a container would run.

    image_root.py [--binary FILE]

The stages `build` and `runtime` are read from the Dockerfile. The commands of `build` run in an overlay
of this machine's root, which stands in for the Rust image; `--binary` takes a finished static program
instead of compiling (minutes). What `runtime` copies lands in an empty root with the users file of
distroless, which is then mounted read-only. In it, as user 65532 without capabilities, every name of
the program is called, and a server answers a chat. Needs root, or user namespaces.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 40 * 1024 * 1024
# What distroless/static brings: users, certificates, time zones.
BASE = 3 * 1024 * 1024


def stages():
    """Stage name to its instructions, with continued lines joined."""
    text = re.sub(r"\\\n", " ", (REPOSITORY / "Dockerfile").read_text())
    found, stage = {}, None
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        word, rest = line.split(None, 1)
        if word == "FROM":
            stage = found.setdefault(rest.split(" AS ")[1], [])
        elif stage is not None:
            stage.append((word, rest))
    return found


def again_in_namespaces():
    if not os.environ.get("OWN_MOUNTS"):
        os.environ["OWN_MOUNTS"] = "1"
        user = [] if os.getuid() == 0 else ["--map-root-user"]
        os.execvp("unshare", ["unshare", "--mount", "--net", *user, sys.executable, *sys.argv])
    run("mount", "--make-rprivate", "/")


def run(*words, **more):
    return subprocess.run(words, check=True, **more)


def build(work, binary):
    """The build stage; returns the folder that /out became."""
    root = work / "build"
    for name in ("upper", "layers", "build"):
        (work / name).mkdir()
    options = f"lowerdir=/,upperdir={work}/upper,workdir={work}/layers"
    run("mount", "-t", "overlay", "overlay", "-o", options, str(root))
    for name in ("dev", "proc", "sys"):
        run("mount", "--rbind", f"/{name}", str(root / name))
    environment = dict(os.environ)
    # In the Rust image the toolchain is on the path, and sources are at hand or downloadable.
    folder = "/"
    for word, rest in stages()["build"]:
        if word == "WORKDIR":
            folder = rest
            (root / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "ENV":
            name, value = rest.split("=", 1)
            environment[name] = value
        elif word == "COPY":
            sources = rest.split()[:-1]
            target = root / folder.lstrip("/")
            names = sources if sources != ["."] else ["Cargo.toml", "Cargo.lock", "src", "crates", "benches", "examples", "proto"]
            for name in names:
                origin = REPOSITORY / name
                if origin.is_dir():
                    shutil.copytree(origin, target / name, dirs_exist_ok=True)
                else:
                    shutil.copy(origin, target / name)
        elif word == "RUN":
            # Caches between builds are Docker's.
            command = re.sub(r"--mount=\S+ ", "", rest)
            if binary:
                # The finished program stands in for what cargo would make.
                command = re.sub(r"cargo (build|rustc) .*?(?=&&|$)", "true ", command)
                triple = f"{os.uname().machine}-unknown-linux-gnu"
                made = root / folder.lstrip("/") / f"target/{triple}/dist/vllm-sim"
                made.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(binary, made)
            environment.pop("CARGO_TARGET_DIR", None)
            print("RUN", command[:100], flush=True)
            run("chroot", str(root), "bash", "-euo", "pipefail", "-c", f"cd {folder}; {command}", env=environment)
    return root / "out"


def assemble(work, out):
    """What the images hold, beside what distroless brings."""
    root = work / "final"
    for name in ("etc", "tmp", "home/nonroot", "dev", "proc"):
        (root / name).mkdir(parents=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n")
    (root / "etc/group").write_text("root:x:0:\nnonroot:x:65532:\n")
    # The runtime writes this one.
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    for word, rest in stages()["runtime"]:
        if word == "COPY":
            assert rest == "--from=build /out/ /", rest
            shutil.copytree(out, root, symlinks=True, dirs_exist_ok=True)
    return root


def inside(root, *words, env=None, **more):
    """A process as the container runtime would start it: the change of user drops capabilities."""
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/nonroot", **(env or {})}
    command = ["/usr/sbin/chroot", "--userspec=65532:65532", str(root), *words]
    return subprocess.Popen(command, env=environment, cwd="/", text=True, **more)


def says(root, *words):
    process = inside(root, *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=20)
    if process.returncode != 0:
        sys.exit(f"{words}: exit code {process.returncode}: {out}")
    return out.strip()


def ask(port, path, body=None, scheme="http"):
    request = urllib.request.Request(f"{scheme}://127.0.0.1:{port}{path}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    until = time.monotonic() + 15
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10, context=ssl._create_unverified_context()) as answer:
                return answer.read().decode()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def serves(root, words, port, model):
    server = inside(root, *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        scheme = "https" if "--self-signed-certs" in words else "http"
        ask(port, "/health", scheme=scheme)
        answer = json.loads(ask(port, "/v1/chat/completions", scheme=scheme, body={"model": model, "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]}))
        status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
        user = re.search(r"^Uid:\s+(\d+)", status, re.M)[1]
        capabilities = re.search(r"^CapEff:\s+(\w+)", status, re.M)[1]
        assert user == "65532", f"runs as {user}"
        assert int(capabilities, 16) == 0, f"capabilities {capabilities}"
        assert answer["usage"]["completion_tokens"] >= 1
        if port == 8000:
            # The port that the image probes.
            print(f"ok   HEALTHCHECK: {says(root, *probe())}")
        print(f"ok   {' '.join(words)}: {answer['choices'][0]['message']['content']!r}")
    finally:
        server.terminate()
        out, _ = server.communicate(timeout=20)
    if server.returncode != 0:
        sys.exit(f"{words}: exit code {server.returncode} after SIGTERM: {out}")


def probe():
    """The words of the image's HEALTHCHECK."""
    (found,) = [rest for word, rest in stages()["runtime"] if word == "HEALTHCHECK"]
    return json.loads(found.partition("CMD ")[2])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary")
    binary = parser.parse_args().binary
    binary = binary and str(pathlib.Path(binary).resolve())
    again_in_namespaces()
    run("ip", "link", "set", "lo", "up")
    work = pathlib.Path(tempfile.mkdtemp(prefix="image-root-", dir=os.environ.get("IMAGE_ROOT_DIR")))
    work.chmod(0o755)
    try:
        out = build(work, binary)
        root = assemble(work, out)
        program = root / "usr/local/bin/vllm-sim"
        linked = subprocess.run(["ldd", str(program)], capture_output=True, text=True)
        assert "not a dynamic executable" in linked.stderr + linked.stdout or "statically linked" in linked.stdout, linked.stdout
        run("mount", "--bind", str(root), str(root))
        run("mount", "-o", "remount,bind,ro", str(root))
        run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(root / "tmp"))
        # A container runtime brings these too; a static program reads randomness from a device.
        run("mount", "--rbind", "/dev", str(root / "dev"))

        size = program.stat().st_size
        whole = sum(path.lstat().st_size for path in out.rglob("*") if not path.is_dir())
        layer = len(subprocess.run(["tar", "-cz", "-C", str(out), "."], check=True, capture_output=True).stdout)
        print(f"ok   the program has {size / 1e6:.1f} MB, statically linked; all that is copied {whole / 1e6:.1f} MB, {layer / 1e6:.1f} MB as a layer")
        if not binary:
            assert whole + BASE < LIMIT, "the image is to stay under 40 MB"
        version = says(root, "/usr/local/bin/vllm-sim", "--version")
        assert says(root, "/app/llm-d-inference-sim", "--version") == version
        short = says(root, "/usr/local/bin/vllm", "--version")
        assert re.fullmatch(r"\d+\.\d+\.\d+", short.split()[-1]), short
        print(f"ok   vllm-sim --version: {version}; vllm --version: {short}")
        try:
            (root / "written").write_text("")
            sys.exit("the root is not read-only")
        except OSError:
            print("ok   the root is read-only")
        serves(root, ["/usr/local/bin/vllm-sim", "--model", "demo"], 8000, "demo")
        serves(root, ["/usr/local/bin/vllm", "serve", "demo", "--port", "8001"], 8001, "demo")
        entry = {name: json.loads(dict(found)["ENTRYPOINT"])[0] for name, found in stages().items() if name in ("final", "llm-d")}
        assert entry == {"final": "/usr/local/bin/vllm-sim", "llm-d": "/app/llm-d-inference-sim"}, entry
        serves(root, [entry["llm-d"], "--model", "demo", "--port", "8002"], 8002, "demo")
        serves(root, ["/usr/local/bin/python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "demo", "--port", "8003"], 8003, "demo")
        serves(root, ["/usr/local/bin/vllm-sim", "--model", "demo", "--port", "8005", "--self-signed-certs"], 8005, "demo")
        # Names are looked up by the resolver in the program.
        serves(root, ["/usr/local/bin/vllm-sim", "--model", "demo", "--port", "8004", "--host", "localhost"], 8004, "demo")
    finally:
        # The namespace's mounts end with it.
        subprocess.run(["umount", "-l", str(work / "build")], capture_output=True)
        subprocess.run(["umount", "-R", "-l", str(work / "final")], capture_output=True)
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
