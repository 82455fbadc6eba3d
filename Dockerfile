# syntax=docker/dockerfile:1
# One static binary on distroless, for amd64 and arm64:
#
#   docker build -t vllm-sim .
#   docker buildx build --platform linux/amd64,linux/arm64 -t vllm-sim .
#   docker build --target kserve -t vllm-sim:kserve .      with bash, for KServe's start script
#   docker build --target llm-d -t vllm-sim:llm-d .        comes up as llm-d-inference-sim
#
# tests/ship/image_root.py runs these steps without Docker.

# Compiled on the machine that builds, for the one that is meant: nothing is emulated.
FROM --platform=$BUILDPLATFORM rust:1.95-bookworm AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /src
ARG TARGETARCH
ARG TARGETPLATFORM

# Kernels with pages of 64 KiB exist on arm64; jemalloc must know the largest page.
ENV JEMALLOC_SYS_WITH_LG_PAGE=16
ENV CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
ENV CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER=x86_64-linux-gnu-gcc
# hadolint ignore=DL3008
RUN own=$(dpkg --print-architecture) && arch=${TARGETARCH:-$own} \
    && case "$arch" in amd64) machine=x86_64 gcc=x86-64 ;; arm64) machine=aarch64 gcc=aarch64 ;; *) exit 1 ;; esac \
    && echo "$machine-unknown-linux-gnu" > /triple \
    && rustup target add "$machine-unknown-linux-gnu" \
    && if [ "$arch" != "$own" ]; then \
        apt-get update && apt-get install -y --no-install-recommends "g++-$gcc-linux-gnu" \
        && rm -rf /var/lib/apt/lists/*; \
    fi
COPY . .
# Linked statically: glibc's resolver and the C++ library go into the binary. The caches outlive the
# layer, so that a change compiles no dependency again; the binary must leave them.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,id=target-$TARGETPLATFORM,target=/src/target \
    triple=$(cat /triple) \
    && cargo rustc --profile dist --locked --target "$triple" --bin vllm-sim --features jemalloc -- -C target-feature=+crt-static -C strip=symbols \
    && cp "target/$triple/dist/vllm-sim" /src/vllm-sim
# The names under which manifests call the programs that this one stands for.
RUN mkdir -p /out/usr/local/bin /out/app \
    && cp /src/vllm-sim /out/usr/local/bin/vllm-sim \
    && for name in vllm llm-d-inference-sim dataset-tool python3; do ln -s vllm-sim "/out/usr/local/bin/$name"; done \
    && ln -s /usr/local/bin/vllm-sim /out/app/llm-d-inference-sim

# KServe starts its pods with a bash script that calls `vllm`.
FROM alpine:3.22 AS kserve
# hadolint ignore=DL3018
RUN apk add --no-cache bash ca-certificates \
    && adduser -D -u 65532 nonroot
COPY --from=build /out/ /
USER 65532:65532
WORKDIR /home/nonroot
EXPOSE 8000
ENTRYPOINT ["/usr/local/bin/vllm-sim"]

FROM gcr.io/distroless/static-debian12:nonroot AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="vllm-sim" \
      org.opencontainers.image.description="A vLLM deployment seen from outside, with no GPU and no model" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="gcr.io/distroless/static-debian12:nonroot"
COPY --from=build /out/ /
USER 65532:65532
WORKDIR /home/nonroot
EXPOSE 8000
STOPSIGNAL SIGTERM
# The program asks itself: there is no shell and no curl. Kubernetes does not read this.
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s CMD ["/usr/local/bin/vllm-sim", "healthcheck"]

# Manifests of llm-d-inference-sim set no command: the entry point is what its image has.
FROM runtime AS llm-d
ENTRYPOINT ["/app/llm-d-inference-sim"]

FROM runtime AS final
ENTRYPOINT ["/usr/local/bin/vllm-sim"]
