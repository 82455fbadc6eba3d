#!/bin/sh
# HAProxy: BALANCE=roundrobin, or BALANCE=leastconn, or BALANCE='hdr(x-session-id)' for sticky sessions.
. "$(dirname "$0")/../score.sh"

cat >"$work/haproxy.cfg" <<CONF
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    # Without it the first tokens of a stream are held back 200 ms.
    option http-no-delay
frontend gateway
    bind 127.0.0.1:$port
    default_backend pods
backend pods
    balance ${BALANCE:-roundrobin}
    option httpchk GET /health
    server pod-0 $(pod 0) check
    server pod-1 $(pod 1) check
    server pod-2 $(pod 2) check
CONF
pods
gateway haproxy -db -f "$work/haproxy.cfg"
score "$@"
