#!/bin/sh
# nginx: round robin; METHOD='least_conn;', or METHOD='hash $http_x_session_id consistent;' for sticky sessions.
. "$(dirname "$0")/../score.sh"

cat >"$work/nginx.conf" <<CONF
daemon off;
# One process counts for all connections.
worker_processes 1;
pid $work/nginx.pid;
error_log $work/error.log;
events { worker_connections 4096; }
http {
    access_log off;
    client_body_temp_path $work/body;
    proxy_temp_path $work/proxy;
    fastcgi_temp_path $work/fastcgi;
    uwsgi_temp_path $work/uwsgi;
    scgi_temp_path $work/scgi;
    upstream pods {
        ${METHOD:-}
        server $(pod 0);
        server $(pod 1);
        server $(pod 2);
        keepalive 64;
    }
    server {
        listen 127.0.0.1:$port;
        client_max_body_size 64m;
        client_body_buffer_size 1m;
        location / {
            proxy_pass http://pods;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            # Tokens go out as they come.
            proxy_buffering off;
            proxy_read_timeout 1h;
        }
    }
}
CONF
pods
gateway nginx -c "$work/nginx.conf" -e "$work/error.log"
score "$@"
