#!/usr/bin/env python3
"""Starts the server as the pods of rendered manifests would, and asks it things.

    chart_args.py BINARY FILE_OR_FOLDER…

For each workload: its command, arguments, environment, ConfigMaps and Secrets are put into a root of
their own, the process is started there (as user 65532 if we are root), in a network of its own, and
then the probes are called as written, every HTTP port gets a chat and a scrape, and the other ports
must listen. Where a prefill and a decode workload stand together, a request takes llm-d's two steps.

A dynamically linked BINARY gets the libraries that `ldd` names.
"""

import fcntl
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import stat
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import yaml

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
FIXTURE = REPOSITORY / "tests/fixtures/tiny-llama"
USER = 65532
KEY = "a-key-of-the-test"
WORKLOADS = ("Deployment", "StatefulSet", "Pod", "DaemonSet", "Job", "LLMInferenceService")


class Wrong(Exception):
    """What a manifest promises and the server does not do."""


def own_network():
    """Starts this script again in a network namespace with nothing but a loopback device."""
    if os.environ.get("OWN_NETWORK"):
        name = b"lo".ljust(16, b"\0")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            up = struct.pack("16sh", name, 1)
            fcntl.ioctl(control, 0x8914, up)  # SIOCSIFFLAGS
        return
    words = ["unshare", "--net"] + ([] if os.getuid() == 0 else ["--map-root-user"])
    os.environ["OWN_NETWORK"] = "as root" if os.getuid() == 0 else "as user"
    os.execvp("unshare", [*words, sys.executable, *sys.argv])


class Root:
    """The file system of one pod."""

    def __init__(self, folder, binary):
        self.folder = folder
        for name in ("tmp", "home/nonroot", "mnt", "usr/local/bin"):
            (folder / name).mkdir(parents=True)
        (folder / "tmp").chmod(0o777)
        (folder / "home/nonroot").chmod(0o777)
        target = folder / "usr/local/bin/vllm-sim"
        shutil.copy(binary, target)
        for name in ("vllm", "llm-d-inference-sim"):
            (folder / "usr/local/bin" / name).symlink_to("vllm-sim")
        if os.environ["OWN_NETWORK"] == "as root":
            # A static program reads randomness from a device.
            (folder / "dev").mkdir()
            os.mknod(folder / "dev/urandom", 0o666 | stat.S_IFCHR, os.makedev(1, 9))
            os.mknod(folder / "dev/random", 0o666 | stat.S_IFCHR, os.makedev(1, 8))
        found = subprocess.run(["ldd", str(binary)], capture_output=True, text=True)
        for library in re.findall(r"(/\S+) \(", found.stdout):
            place = folder / library.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, place)

    def path(self, inside):
        return self.folder / str(inside).lstrip("/")

    def write(self, inside, text):
        place = self.path(inside)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def copy(self, source, inside):
        shutil.copytree(source, self.path(inside), dirs_exist_ok=True)


def certificates(folder):
    """An authority, and a certificate of it that serves for both sides."""
    folder.mkdir(exist_ok=True)
    run = lambda *words: subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    run("req", "-x509", *ec, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test authority")
    run("req", *ec[:-2], "-keyout", "tls.key", "-out", "tls.csr", "-subj", "/CN=localhost")
    (folder / "ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    run("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "ext", "-out", "tls.crt")
    return folder


class Pod:
    def __init__(self, workload, documents, binary, folder):
        self.name = workload["metadata"]["name"]
        self.kind = workload["kind"]
        self.kserve = self.kind == "LLMInferenceService"
        if self.kind == "Pod":
            self.spec, self.labels = workload["spec"], workload["metadata"].get("labels", {})
        else:
            template = workload["spec"]["template"]
            self.spec = template if self.kserve else template["spec"]
            self.labels = template.get("metadata", {}).get("labels", {})
        self.documents = documents
        self.container = self.server()
        self.root = Root(folder / self.name, binary)
        self.binary = binary
        self.certificates = None
        self.process = None

    def server(self):
        for container in self.spec["containers"]:
            if re.search(r"vllm-sim|llm-d-inference-sim", container.get("image", "")):
                return container
        return None

    def object(self, kind, name):
        for document in self.documents:
            if document["kind"] == kind and document["metadata"]["name"] == name:
                return document
        return None

    def mount(self):
        """Fills the volumes, as far as a manifest says what is in them."""
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes", [])}
        # Outer mounts first.
        for mount in sorted(self.container.get("volumeMounts", []), key=lambda mount: mount["mountPath"]):
            path, volume = mount["mountPath"], volumes.get(mount["name"])
            if volume is None:
                raise Wrong(f"volume {mount['name']} is not declared")
            self.root.path(path).mkdir(parents=True, exist_ok=True)
            if "configMap" in volume:
                config = self.object("ConfigMap", volume["configMap"]["name"])
                for name, text in (config or {}).get("data", {}).items():
                    self.root.write(f"{path}/{name}", text)
            elif "secret" in volume:
                self.certificates = certificates(self.root.folder.with_name(self.name + "-certificates"))
                for name in ("tls.crt", "tls.key", "ca.crt"):
                    self.root.write(f"{path}/{name}", (self.certificates / name).read_text())
            elif "persistentVolumeClaim" in volume and "model" in volume["name"]:
                self.root.copy(FIXTURE, f"{path}/tiny")
            elif volume["name"] == "dataset":
                self.dataset(path)
            else:
                self.root.path(path).chmod(0o777)

    def dataset(self, path):
        """What the init container would have downloaded."""
        recorded = [{"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day."}]}]
        made = self.root.folder.with_name(self.name + "-dataset")
        made.mkdir()
        (made / "c.json").write_text(json.dumps(recorded))
        words = ["dataset", "build", "--local-path", str(made), "--input-file", "c.json", "--model", "demo"]
        words += ["--force-dummy-tokenizer", "--output-file", str(made / "out")]
        subprocess.run([self.binary, *words], check=True, capture_output=True, timeout=60)
        file = next(made.glob("out*.sqlite3"))
        names = {env.get("name"): env.get("value") for init in self.spec.get("initContainers", []) for env in init.get("env", [])}
        shutil.copy(file, self.root.path(names.get("FILE") or f"{path}/dataset.sqlite3"))

    def environment(self):
        fields = {
            "metadata.name": f"{self.name}-1",
            "metadata.namespace": "test",
            "status.podIP": "127.0.0.1",
            "metadata.labels['apps.kubernetes.io/pod-index']": "1",
        }
        values = {"PATH": "/usr/local/bin", "HOME": "/home/nonroot"}
        for source in self.container.get("envFrom", []):
            config = self.object("ConfigMap", source["configMapRef"]["name"])
            values.update(config["data"])
        for env in self.container.get("env", []):
            source = env.get("valueFrom", {})
            if "fieldRef" in source:
                values[env["name"]] = fields[source["fieldRef"]["fieldPath"]]
            elif "secretKeyRef" in source:
                values[env["name"]] = KEY
            else:
                values[env["name"]] = str(env.get("value", ""))
        return values

    def words(self, environment):
        if self.kserve:
            # What KServe's own template runs, after `vllm --version` told it the release.
            self.root.copy(FIXTURE, "/mnt/models")
            return ["vllm", "serve", "/mnt/models", "--served-model-name", "a/model", "publishers/test/models/a/model",
                    "--port", "8000", "--disable-access-log-for-endpoints", "/health,/metrics,/ping", "--shutdown-timeout", "15"]
        words = [*self.container.get("command", ["vllm-sim"]), *self.container.get("args", [])]
        return [re.sub(r"\$\((\w+)\)", lambda name: environment.get(name[1], name[0]), str(word)) for word in words]

    def start(self):
        self.mount()
        environment = self.environment()
        words = self.words(environment)
        user = [f"--userspec={USER}:{USER}"] if os.environ["OWN_NETWORK"] == "as root" else []
        self.log = open(self.root.folder.with_name(self.name + ".log"), "w+")
        program = f"/usr/local/bin/{os.path.basename(words[0])}"
        self.process = subprocess.Popen(
            ["/usr/sbin/chroot", *user, str(self.root.folder), program, *words[1:]],
            env=environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def ports(self):
        found = {port.get("name", str(port["containerPort"])): port["containerPort"] for port in self.container.get("ports", [])}
        return found or {"http": 8000}

    def ask(self, port, path, body=None, scheme=None):
        secure = scheme == "https" or (scheme is None and self.secure())
        context = None
        if secure:
            context = ssl._create_unverified_context()
            if self.certificates:
                context = ssl.create_default_context(cafile=self.certificates / "ca.crt")
                context.load_cert_chain(self.certificates / "tls.crt", self.certificates / "tls.key")
        request = urllib.request.Request(f"http{'s' if secure else ''}://localhost:{port}{path}")
        request.add_header("Authorization", f"Bearer {KEY}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            return answer.read().decode()

    def secure(self):
        probe = self.container.get("livenessProbe", {}).get("httpGet", {})
        return probe.get("scheme") == "HTTPS" or self.certificates is not None

    def probe(self, kind, seconds=15):
        probe = self.container.get(kind)
        if probe is None:
            return
        target = probe.get("httpGet") or probe.get("tcpSocket") or {"path": "/health", "port": 8000}
        port = self.ports().get(str(target.get("port")), target.get("port")) or 8000
        until = time.monotonic() + seconds
        while True:
            if self.process.poll() is not None:
                raise Wrong(f"ended with {self.process.returncode}")
            try:
                if "path" in target:
                    self.ask(port, target["path"], scheme=target.get("scheme", "HTTP").lower())
                else:
                    socket.create_connection(("127.0.0.1", port), 5).close()
                return
            except OSError as error:
                if time.monotonic() > until:
                    raise Wrong(f"{kind}: {error}") from error
                time.sleep(0.05)

    def chat(self, port):
        model = json.loads(self.ask(port, "/v1/models"))["data"][0]["id"]
        body = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
        for _ in range(40):
            try:
                answer = json.loads(self.ask(port, "/v1/chat/completions", body))
                break
            except urllib.error.HTTPError as error:
                # A scenario fails on purpose, but not always.
                if not self.fails() or error.code < 400:
                    raise
        else:
            raise Wrong("no chat got through")
        choice = answer["choices"][0]
        if choice["finish_reason"] not in ("stop", "length"):
            raise Wrong(f"finish_reason {choice['finish_reason']}")
        return model

    def fails(self):
        text = json.dumps([self.documents, self.container])
        return "failure-injection-rate" in text or "scenario" in text

    def check(self):
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            self.probe(kind)
        ports = self.ports()
        asked = []
        for name, port in ports.items():
            if name.startswith(("kv-", "grpc", "zmq")):
                if self.kind == "StatefulSet" and name.startswith(("kv-", "zmq")) and "-0" not in name and not name.endswith("-1"):
                    continue
                try:
                    socket.create_connection(("127.0.0.1", port), 5).close()
                except OSError as error:
                    raise Wrong(f"{name} {port}: {error}") from error
            else:
                asked.append(self.chat(port))
                page = self.ask(port, "/metrics")
                if "vllm:num_requests_running{" not in page:
                    raise Wrong("no vllm:num_requests_running")
        return f"{len(asked)} chat(s) with {asked[0]}, ports {', '.join(map(str, ports.values()))}"

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                code = self.process.wait(20)
                if code != 0:
                    raise Wrong(f"SIGTERM: exit code {code}")
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise Wrong("SIGTERM: still running after 20 s") from None


def two_steps(prefill, decode):
    """A request as llm-d's side-car sends it (llm-d-router, connector nixlv2)."""
    a, b = list(prefill.ports().values())[0], list(decode.ports().values())[0]
    model = json.loads(prefill.ask(a, "/v1/models"))["data"][0]["id"]
    body = {"model": model, "max_tokens": 6, "messages": [{"role": "user", "content": "Tell me of the sea. " * 20}]}
    remote = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
              "remote_block_ids": None, "remote_host": None, "remote_port": None}
    first = json.loads(prefill.ask(a, "/v1/chat/completions", body | {"max_tokens": 1, "stream": False, "kv_transfer_params": remote}))
    given = first.get("kv_transfer_params")
    if not given or not given.get("do_remote_prefill"):
        raise Wrong(f"prefill gave {given}")
    second = json.loads(decode.ask(b, "/v1/chat/completions", body | {"kv_transfer_params": given}))
    if second["usage"]["completion_tokens"] < 1:
        raise Wrong("decode gave nothing")
    return "prefill and decode"


def check(file, binary, folder):
    documents = [document for document in yaml.safe_load_all(file.read_text()) if document]
    workloads = [d for d in documents if d["kind"] in WORKLOADS and not d["metadata"].get("annotations", {}).get("helm.sh/hook")]
    pods = [Pod(workload, documents, binary, folder) for workload in workloads]
    pods = [pod for pod in pods if pod.container]
    failed = 0
    running = {}
    together = {pod.labels.get("llm-d.ai/role") for pod in pods} >= {"prefill", "decode"}
    for pod in pods:
        try:
            pod.start()
            print(f"ok   {file.name}: {pod.kind} {pod.name}: {pod.check()}", flush=True)
            running[pod.labels.get("llm-d.ai/role")] = pod
            if together and {"prefill", "decode"} <= running.keys():
                print(f"ok   {file.name}: {two_steps(running['prefill'], running['decode'])}", flush=True)
            if not together:
                pod.stop()
        except (Wrong, OSError, subprocess.SubprocessError, KeyError) as error:
            failed += 1
            pod.log.flush()
            tail = pathlib.Path(pod.log.name).read_text()[-1500:] if hasattr(pod, "log") else ""
            print(f"FAIL {file.name}: {pod.kind} {pod.name}: {error!r}\n{tail}", flush=True)
            if pod.process:
                pod.process.kill()
    for pod in running.values():
        if pod.process.poll() is None:
            pod.stop()
    return failed


def listed(folder, rendered):
    """The manifests of a folder; where there is a kustomization, what it makes of them."""
    made = {file.parent for file in folder.rglob("kustomization.yaml")}
    for place in sorted(made):
        file = rendered / ("-".join(place.relative_to(folder).parts) + ".yaml")
        out = subprocess.run(["kubectl", "kustomize", str(place)], check=True, capture_output=True, text=True)
        file.write_text(out.stdout)
        yield file
    yield from (file for file in sorted(folder.rglob("*.yaml")) if file.parent not in made)


def main():
    own_network()
    binary = str(pathlib.Path(sys.argv[1]).resolve())
    rendered = tempfile.TemporaryDirectory()
    files = []
    for name in map(pathlib.Path, sys.argv[2:]):
        files += listed(name, pathlib.Path(rendered.name)) if name.is_dir() else [name]
    failed = 0
    for file in files:
        if not any(f"kind: {kind}" in file.read_text() for kind in WORKLOADS):
            continue
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder).chmod(0o755)
            failed += check(file, binary, pathlib.Path(folder))
    print(f"{failed} failed" if failed else "all started and answered")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
