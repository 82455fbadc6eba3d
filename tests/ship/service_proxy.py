"""The Services of a cluster without kube-proxy: each cluster address is one of this machine's, and connections to it
go to a ready endpoint, one after the other."""

import asyncio
import itertools
import subprocess
import threading


class ServiceProxy(threading.Thread):
    def __init__(self, api, gateway):
        super().__init__(daemon=True)
        self.api, self.gateway = api, gateway
        # Service by (namespace, name); the ready endpoints of each of its ports by number.
        self.services, self.ready, self.servers = {}, {}, {}
        self.turn = itertools.count()
        # asyncio itself holds its tasks weakly.
        self.tasks = set()

    def hosts(self, space):
        """Names of all Services, as a hosts file of a pod in a namespace has them."""
        lines = ["127.0.0.1 localhost"]
        for (where, name), service in list(self.services.items()):
            addresses = [service["spec"].get("clusterIP")]
            if addresses == ["None"]:
                addresses = sorted({host for port in self.ready.get((where, name), {}).values() for host, _ in port})
            names = [f"{name}.{where}.svc.cluster.local", f"{name}.{where}.svc", f"{name}.{where}"] + ([name] if where == space else [])
            lines += [f"{address} {' '.join(names)}" for address in addresses]
        return "\n".join(lines) + "\n"

    def look(self):
        services = self.api.get("/api/v1/services")["items"]
        slices = self.api.get("/apis/discovery.k8s.io/v1/endpointslices")["items"]
        ready = {}
        for piece in slices:
            owner = (piece["metadata"]["namespace"], piece["metadata"].get("labels", {}).get("kubernetes.io/service-name"))
            for port in piece.get("ports") or []:
                hosts = [address for endpoint in piece.get("endpoints") or [] if endpoint["conditions"].get("ready") for address in endpoint["addresses"]]
                ready.setdefault(owner, {}).setdefault(port.get("name", ""), []).extend((host, port["port"]) for host in hosts)
        self.services = {(one["metadata"]["namespace"], one["metadata"]["name"]): one for one in services}
        self.ready = ready

    async def serve(self):
        for (space, name), service in self.services.items():
            address = service["spec"].get("clusterIP")
            if name == "kubernetes" or address in (None, "", "None"):
                continue
            for port in service["spec"]["ports"]:
                key = (address, port["port"])
                if key in self.servers:
                    continue
                subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "cni0"], capture_output=True)
                owner, which = (space, name), port.get("name", "")
                handler = lambda reader, writer, owner=owner, which=which: self.accept(owner, which, reader, writer)
                self.servers[key] = await asyncio.start_server(handler, address, port["port"])

    def accept(self, *connection):
        task = asyncio.ensure_future(self.forward(*connection))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def forward(self, owner, which, reader, writer):
        targets = sorted(self.ready.get(owner, {}).get(which, []))
        if not targets:
            writer.close()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*targets[next(self.turn) % len(targets)])
        except OSError:
            writer.close()
            return
        await asyncio.gather(self.copy(reader, far_writer), self.copy(far_reader, writer))

    async def copy(self, reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
        except OSError:
            writer.close()

    async def loop(self):
        while True:
            await asyncio.get_running_loop().run_in_executor(None, self.look)
            await self.serve()
            await asyncio.sleep(0.1)

    def run(self):
        asyncio.run(self.loop())
