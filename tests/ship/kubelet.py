#!/usr/bin/env python3
"""Plays a node without containers: runs the pods that are scheduled to it as processes.

    kubelet.py --server URL --token TOKEN --node NAME --state DIR --image WORD=PROGRAM…

Each pod has a network namespace and an address of its own. Each container's command, as the API server has it,
runs in a root of its own with config maps, secrets and volumes laid out, as the user that it names if we are root.
Init containers, native side-cars, probes, preStop, grace periods, restarts and statuses are those of Kubernetes as
far as the chart uses them. An image is a program of this machine: `vllm-sim=FILE` for images whose name holds
`vllm-sim`; `curl=host` runs the command with this machine's own programs.

Services are served by service_proxy.py. Needs a network namespace with the bridge cni0 (cluster.sh makes it).
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from chart_args import Root
from service_proxy import ServiceProxy

TICK = 0.1
GATEWAY = "10.244.0.1"


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Api:
    """The API server, as its administrator."""

    def __init__(self, server, token):
        self.server, self.token = server, token
        self.context = ssl._create_unverified_context()

    def call(self, method, path, body=None, kind="application/json"):
        request = urllib.request.Request(self.server + path, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", kind)
        with urllib.request.urlopen(request, context=self.context, timeout=30) as answer:
            return json.load(answer)

    def get(self, path):
        return self.call("GET", path)

    def find(self, path):
        try:
            return self.get(path)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise


def run(*words):
    subprocess.run(words, check=True, capture_output=True)


class Network:
    """An address for each pod behind the bridge cni0, which has GATEWAY."""

    def __init__(self):
        self.lock, self.number = threading.Lock(), 1

    def join(self):
        """A process that holds a namespace of its own, and the address that this has."""
        with self.lock:
            self.number += 1
            number = self.number
        own = os.readlink("/proc/self/ns/net")
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
            time.sleep(0.005)
        address = f"10.244.{number // 250}.{number % 250 + 2}"
        run("ip", "link", "add", f"pod{number}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        run("ip", "link", "set", f"pod{number}", "master", "cni0", "up")
        setup = f"ip link set lo up; ip address add {address}/16 dev eth0; ip link set eth0 up; ip route add default via {GATEWAY}"
        run("nsenter", f"--net=/proc/{holder.pid}/ns/net", "sh", "-ec", setup)
        return holder, address


class Container:
    """One container of a pod: its process, its probes and its status."""

    def __init__(self, pod, spec, init):
        self.pod, self.spec, self.init = pod, spec, init
        self.name = spec["name"]
        self.always = spec.get("restartPolicy") == "Always" if init else pod.spec.get("restartPolicy", "Always") == "Always"
        self.process, self.code, self.restarts = None, None, 0
        self.started = self.ready = False
        self.failures, self.due, self.began = {}, {}, None

    def environment(self):
        own = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/nonroot", "KUBERNETES_SERVICE_HOST": GATEWAY,
               "KUBERNETES_SERVICE_PORT": self.pod.node.server.rsplit(":", 1)[1]}
        for source in self.spec.get("envFrom", []):
            for kind, key in (("configmaps", "configMapRef"), ("secrets", "secretRef")):
                if key in source:
                    own |= self.pod.data(kind, source[key]["name"])
        for entry in self.spec.get("env", []):
            source = entry.get("valueFrom", {})
            if "fieldRef" in source:
                value = self.pod.field(source["fieldRef"]["fieldPath"])
            elif "secretKeyRef" in source:
                value = self.pod.data("secrets", source["secretKeyRef"]["name"])[source["secretKeyRef"]["key"]]
            elif "configMapKeyRef" in source:
                value = self.pod.data("configmaps", source["configMapKeyRef"]["name"])[source["configMapKeyRef"]["key"]]
            else:
                value = entry.get("value", "")
            own[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda name: own.get(name[1], name[0]), value)
        return own

    def start(self):
        environment = self.environment()
        program = self.pod.node.program(self.spec["image"])
        fill = lambda words: [re.sub(r"\$\((\w+)\)", lambda name: environment.get(name[1], name[0]), word) for word in words]
        command, args = fill(self.spec.get("command", [])), fill(self.spec.get("args", []))
        script, words = ["set -e"], command + args
        if program == "host":
            environment["PATH"] = os.environ["PATH"]
            script.append(f"mount --bind {self.pod.hosts()} /etc/hosts")
        else:
            folder = self.pod.folder / f"{self.name}.root"
            shutil.rmtree(folder, ignore_errors=True)
            root = Root(folder, program)
            root.write("etc/hosts", self.pod.hosts().read_text())
            for mount in sorted(self.spec.get("volumeMounts", []), key=lambda mount: mount["mountPath"]):
                target = root.path(mount["mountPath"])
                target.mkdir(parents=True, exist_ok=True)
                script.append(f"mkdir -p {target}; mount --bind {self.pod.volumes[mount['name']]} {target}")
            user = self.spec.get("securityContext", {}).get("runAsUser", self.pod.spec.get("securityContext", {}).get("runAsUser"))
            spec = [f"--userspec={user}:{user}"] if user and os.environ["OWN_NETWORK"] == "as root" else []
            entry = ["/usr/local/bin/" + os.path.basename(command[0])] + command[1:] if command else ["/usr/local/bin/vllm-sim"]
            words = ["chroot", *spec, str(folder), *entry, *args]
            environment["PATH"] += ":/usr/sbin:/sbin"
        script.append('exec "$@"')
        log = open(self.pod.folder / f"{self.name}.log", "a")
        self.process = subprocess.Popen(
            ["nsenter", f"--net=/proc/{self.pod.holder.pid}/ns/net", "unshare", "--mount", "sh", "-c", "\n".join(script), "run", *words],
            env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        self.code, self.began = None, now()
        self.started = "startupProbe" not in self.spec
        self.ready = self.started and "readinessProbe" not in self.spec
        self.failures = {}
        self.due = {kind: time.monotonic() + self.spec.get(kind, {}).get("initialDelaySeconds", 0) for kind in ("startupProbe", "readinessProbe", "livenessProbe")}

    def alive(self):
        if self.process is None:
            return False
        if self.code is None and self.process.poll() is not None:
            self.code, self.ready = self.process.returncode, False
        return self.code is None

    def ask(self, probe):
        port = next((target["port"] for target in (probe.get(kind) for kind in ("httpGet", "tcpSocket", "grpc")) if target))
        for named in self.spec.get("ports", []):
            if named.get("name") == port:
                port = named["containerPort"]
        timeout = probe.get("timeoutSeconds", 1)
        if "httpGet" not in probe:
            # Of a gRPC health service only that it listens.
            socket.create_connection((self.pod.address, port), timeout).close()
            return
        scheme = probe["httpGet"].get("scheme", "HTTP").lower()
        url = f"{scheme}://{self.pod.address}:{port}{probe['httpGet'].get('path', '/')}"
        urllib.request.urlopen(url, timeout=timeout, context=ssl._create_unverified_context()).close()

    def probe(self, kind):
        """Whether a probe came to a verdict that changes something: True, False, or None."""
        probe = self.spec.get(kind)
        if probe is None or time.monotonic() < self.due[kind]:
            return None
        self.due[kind] = time.monotonic() + probe.get("periodSeconds", 10)
        try:
            self.ask(probe)
            self.failures[kind] = 0
            return True
        except (OSError, ValueError):
            self.failures[kind] = self.failures.get(kind, 0) + 1
            return False if self.failures[kind] >= probe.get("failureThreshold", 3) else None

    def tick(self, ending):
        if not self.alive():
            if self.process and self.always and not ending and time.monotonic() > self.due.setdefault("restart", time.monotonic() + 1):
                self.restarts += 1
                self.start()
            return
        if not self.started:
            verdict = self.probe("startupProbe")
            self.started = verdict is True
            if verdict is False:
                self.process.kill()
            if self.started:
                self.ready = "readinessProbe" not in self.spec
            return
        verdict = self.probe("readinessProbe")
        self.ready = self.ready if verdict is None else verdict
        if self.probe("livenessProbe") is False and not ending:
            print(f"{self.pod.name}: {self.name} is not alive", flush=True)
            self.process.terminate()

    def end(self, deadline):
        """preStop, SIGTERM, and SIGKILL when the grace period is over."""
        if self.alive():
            sleep = self.spec.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
            time.sleep(max(0, min(sleep, deadline - time.monotonic())))
            self.process.terminate()
            try:
                self.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                print(f"{self.pod.name}: {self.name} is killed", flush=True)
                self.process.kill()
                self.process.wait()
            self.alive()

    def status(self):
        if self.process is None:
            state = {"waiting": {"reason": "PodInitializing"}}
        elif self.code is None:
            state = {"running": {"startedAt": self.began}}
        else:
            state = {"terminated": {"exitCode": self.code if self.code >= 0 else 128 - self.code, "reason": "Error" if self.code else "Completed", "startedAt": self.began}}
        return {"name": self.name, "image": self.spec["image"], "imageID": self.spec["image"], "ready": self.ready,
                "started": self.started and self.code is None, "restartCount": self.restarts, "state": state}


class Pod(threading.Thread):
    def __init__(self, node, pod):
        super().__init__(daemon=True)
        self.node, self.spec, self.meta = node, pod["spec"], pod["metadata"]
        self.name, self.space = self.meta["name"], self.meta["namespace"]
        self.path = f"/api/v1/namespaces/{self.space}/pods/{self.name}"
        self.folder = node.state / f"{self.name}-{self.meta['uid'][:8]}"
        self.grace, self.said, self.volumes, self.start_time = None, None, {}, now()
        self.ending = threading.Event()
        self.inits = [Container(self, spec, True) for spec in self.spec.get("initContainers", [])]
        self.containers = [Container(self, spec, False) for spec in self.spec["containers"]]

    def data(self, kind, name):
        """What a config map or a secret holds, as text."""
        found = self.node.api.get(f"/api/v1/namespaces/{self.space}/{kind}/{name}").get("data") or {}
        if kind == "secrets":
            import base64
            return {key: base64.b64decode(value).decode() for key, value in found.items()}
        return found

    def field(self, path):
        if path == "status.podIP":
            return self.address
        if path == "spec.nodeName":
            return self.node.name
        named = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
        return self.meta.get(named[1], {}).get(named[2], "") if named else self.meta[path.removeprefix("metadata.")]

    def hosts(self):
        file = self.folder / "hosts"
        file.write_text(self.node.services.hosts(self.space) + f"{self.address} {self.name}\n")
        return file

    def lay_out(self):
        for volume in self.spec.get("volumes", []):
            place = self.folder / "volumes" / volume["name"]
            place.mkdir(parents=True)
            self.volumes[volume["name"]] = place
            sources = volume["projected"]["sources"] if "projected" in volume else [volume]
            for source in sources:
                content = {}
                if "configMap" in source:
                    content = self.data("configmaps", source["configMap"]["name"])
                elif "secret" in source:
                    content = self.data("secrets", source["secret"].get("secretName") or source["secret"]["name"])
                elif "serviceAccountToken" in source:
                    account = self.spec.get("serviceAccountName", "default")
                    wish = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
                    token = self.node.api.call("POST", f"/api/v1/namespaces/{self.space}/serviceaccounts/{account}/token", wish)
                    content = {source["serviceAccountToken"]["path"]: token["status"]["token"]}
                elif "downwardAPI" in source:
                    content = {item["path"]: self.field(item["fieldRef"]["fieldPath"]) for item in source["downwardAPI"]["items"]}
                for name, text in content.items():
                    (place / name).write_text(text)
            if "emptyDir" in volume or "persistentVolumeClaim" in volume:
                place.chmod(0o777)

    def show(self):
        if self.ending.is_set() and all(not one.alive() for one in self.containers) or all(one.process and not one.alive() and not one.always for one in self.containers):
            phase = "Failed" if any(one.code for one in self.containers) else "Succeeded"
        else:
            phase = "Running" if any(one.process for one in self.containers) else "Pending"
        ready = all(one.ready for one in self.containers)
        done = all(one.code == 0 or (one.always and one.started) for one in self.inits)
        truth = lambda kind, is_so: {"type": kind, "status": "True" if is_so else "False"}
        status = {"phase": phase, "hostIP": GATEWAY, "podIP": self.address, "podIPs": [{"ip": self.address}], "startTime": self.start_time,
                  "conditions": [truth("PodScheduled", True), truth("Initialized", done), truth("ContainersReady", ready), truth("Ready", ready)],
                  "initContainerStatuses": [one.status() for one in self.inits], "containerStatuses": [one.status() for one in self.containers]}
        if status != self.said:
            try:
                self.node.api.call("PATCH", self.path + "/status", {"metadata": {"uid": self.meta["uid"]}, "status": status}, "application/merge-patch+json")
                self.said = status
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise

    def tick(self):
        for one in self.inits + self.containers:
            one.tick(self.ending.is_set())
        self.show()

    def wait(self, done):
        while not done() and not self.ending.is_set():
            self.tick()
            time.sleep(TICK)

    def run(self):
        try:
            self.folder.mkdir(parents=True)
            self.folder.chmod(0o755)
            self.holder, self.address = self.node.network.join()
            self.lay_out()
            for one in self.inits:
                one.start()
                self.wait(lambda one=one: one.started if one.always else one.code == 0)
            for one in self.containers:
                if not self.ending.is_set():
                    one.start()
            self.wait(lambda: False)
            deadline = time.monotonic() + self.grace
            ends = [threading.Thread(target=one.end, args=(deadline,)) for one in self.containers]
            for thread in ends:
                thread.start()
            while any(thread.is_alive() for thread in ends):
                self.tick()
                time.sleep(TICK)
            for one in reversed(self.inits):
                one.end(deadline)
            self.show()
        except Exception as error:
            print(f"{self.name}: {error!r}", flush=True)
        finally:
            self.ending.wait()
            self.holder.kill()
            self.holder.wait()
            shutil.rmtree(self.folder / "volumes", ignore_errors=True)
            for root in self.folder.glob("*.root"):
                shutil.rmtree(root, ignore_errors=True)
            wish = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.meta["uid"]}}
            try:
                self.node.api.call("DELETE", self.path, wish)
            except urllib.error.HTTPError:
                pass


class Node:
    def __init__(self, given):
        self.api, self.name, self.state = Api(given.server, given.token), given.node, pathlib.Path(given.state)
        self.server, self.images = given.server, [entry.split("=", 1) for entry in given.image]
        self.network, self.pods = Network(), {}
        self.services = ServiceProxy(self.api, GATEWAY)

    def program(self, image):
        for word, program in self.images:
            if word in image:
                return program
        raise ValueError(f"no program stands for the image {image}: --image")

    def register(self):
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "100Gi"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name, "labels": {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"}}}
        self.api.call("POST", "/api/v1/nodes", node)
        conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now()}]
        status = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": conditions, "addresses": [{"type": "InternalIP", "address": GATEWAY}]}}
        self.api.call("PATCH", f"/api/v1/nodes/{self.name}/status", status, "application/merge-patch+json")

    def beat(self):
        """Renews the node's lease, without which its pods would be moved."""
        space = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40,
                "renewTime": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        if self.api.find(f"{space}/{self.name}"):
            self.api.call("PATCH", f"{space}/{self.name}", {"spec": spec}, "application/merge-patch+json")
        else:
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name}, "spec": spec}
            self.api.call("POST", space, lease)

    def look(self):
        seen = self.api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.name}")["items"]
        for pod in seen:
            uid = pod["metadata"]["uid"]
            if uid not in self.pods:
                self.pods[uid] = Pod(self, pod)
                self.pods[uid].start()
            elif pod["metadata"].get("deletionTimestamp") and not self.pods[uid].ending.is_set():
                self.pods[uid].grace = pod["metadata"].get("deletionGracePeriodSeconds", 30)
                self.pods[uid].ending.set()
        here = {pod["metadata"]["uid"] for pod in seen}
        for uid, pod in self.pods.items():
            if uid not in here and not pod.ending.is_set():
                pod.grace = 0
                pod.ending.set()

    def run(self):
        self.register()
        self.services.start()
        beat = 0
        while True:
            if time.monotonic() > beat:
                self.beat()
                beat = time.monotonic() + 10
            self.look()
            time.sleep(TICK)

    def stop(self):
        for pod in self.pods.values():
            for one in pod.containers + pod.inits:
                if one.alive():
                    one.process.kill()
            if getattr(pod, "holder", None):
                pod.holder.kill()


def main():
    parser = argparse.ArgumentParser()
    for name in ("server", "token", "node", "state"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--image", action="append", default=[])
    node = Node(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        node.run()
    finally:
        node.stop()


if __name__ == "__main__":
    main()
