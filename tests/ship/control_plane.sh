#!/usr/bin/env bash
# A control plane of Kubernetes on this machine, without containers.
#
#   tests/ship/control_plane.sh PROGRAMS STATE
#   tests/ship/control_plane.sh --build PROGRAMS
#
# PROGRAMS gets etcd's neighbours: kube-apiserver, kube-controller-manager, kube-scheduler and kubectl are built there
# from the Go module k8s.io/kubernetes unless they are there (minutes). etcd is Debian's package etcd-server. STATE gets
# the data, the logs, and `kubeconfig`. The API server listens on ADDRESS:6443 (127.0.0.1); whoever starts this ends it.
set -euo pipefail
only_build=
[ "$1" != --build ] || { only_build=yes; shift; }
programs=$(mkdir -p "$1" && cd "$1" && pwd)
version=${KUBE_VERSION:-1.33.4}
address=${ADDRESS:-127.0.0.1}

build() {
  local work
  work=$(mktemp -d)
  cd "$work"
  export GOFLAGS=-mod=mod
  printf 'module plane\n\ngo 1.24\n' >go.mod
  # The module replaces its parts by folders that only its repository has: the published ones have the same number.
  python3 - "$(go mod download -json "k8s.io/kubernetes@v$version")" "$version" >new.mod <<'PY'
import json, re, sys
text = open(json.loads(sys.argv[1])["GoMod"]).read()
parts = sorted(set(re.findall(r"(k8s\.io/[\w.-]+) => \./staging", text)))
own = "v0." + sys.argv[2].split(".", 1)[1]
print("module plane\n\ngo 1.24\n\nrequire k8s.io/kubernetes v" + sys.argv[2] + "\n")
print("\n".join(f"replace {part} => {part} {own}" for part in parts))
PY
  mv new.mod go.mod
  printf 'package main\n\nimport _ "k8s.io/kubernetes/cmd/kube-apiserver/app"\n\nfunc main() {}\n' >main.go
  # Clients such as helm read the version that the server tells.
  local stamp=k8s.io/component-base/version
  for name in kube-apiserver kube-controller-manager kube-scheduler kubectl; do
    [ -x "$programs/$name" ] || go build -o "$programs/$name" \
      -ldflags "-X $stamp.gitVersion=v$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=$(echo "$version" | cut -d. -f2)" \
      "k8s.io/kubernetes/cmd/$name"
  done
  rm -rf "$work"
}
for name in kube-apiserver kube-controller-manager kube-scheduler kubectl; do
  [ -x "$programs/$name" ] || (build)
done
[ -z "$only_build" ] || exit 0

state=$(mkdir -p "$2" && cd "$2" && pwd)
cd "$state"
openssl genrsa -out accounts.key 2048 2>/dev/null
openssl rsa -in accounts.key -pubout -out accounts.pub 2>/dev/null
echo 'admin,admin,1,"system:masters"' >tokens.csv
etcd --data-dir "$state/etcd" --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync >etcd.log 2>&1 &
"$programs/kube-apiserver" --etcd-servers http://127.0.0.1:2379 --bind-address 0.0.0.0 --advertise-address "$address" \
  --secure-port 6443 --cert-dir "$state/certificates" --token-auth-file tokens.csv --authorization-mode RBAC \
  --service-account-issuer https://kubernetes --service-account-key-file accounts.pub \
  --service-account-signing-key-file accounts.key --service-cluster-ip-range 10.96.0.0/16 >apiserver.log 2>&1 &
cat >kubeconfig <<YAML
apiVersion: v1
kind: Config
clusters: [{ name: test, cluster: { server: "https://$address:6443", insecure-skip-tls-verify: true } }]
users: [{ name: admin, user: { token: admin } }]
contexts: [{ name: test, context: { cluster: test, user: admin } }]
current-context: test
YAML
export KUBECONFIG=$state/kubeconfig
for _ in $(seq 120); do
  "$programs/kubectl" get --raw /readyz >/dev/null 2>&1 && break
  sleep 0.5
done
"$programs/kubectl" get --raw /readyz >/dev/null
"$programs/kube-controller-manager" --kubeconfig kubeconfig --service-account-private-key-file accounts.key \
  --root-ca-file "$state/certificates/apiserver.crt" --use-service-account-credentials --bind-address 127.0.0.1 \
  --horizontal-pod-autoscaler-sync-period 2s --leader-elect=false >controllers.log 2>&1 &
"$programs/kube-scheduler" --kubeconfig kubeconfig --bind-address 127.0.0.1 --leader-elect=false >scheduler.log 2>&1 &
