"""The reverse proxy: of the SuperLink's APIs, only the nodes' is open to the outside.

The SuperLink has no accounts: who reaches its control API can start runs. It listens on loopback,
and nginx passes on to it ``POST /v1/fleet/NAME``, and nothing else.
"""

from __future__ import annotations

import ipaddress
import shutil
import socket
import ssl
from pathlib import Path

from fedpeft.errors import UserError
from fedpeft.files import write_atomic
from server.host.state import ServerState

# 100 nodes behind one address ask every 3 s, and ten times as much while a round ends. Both
# limits answer 503, which Flower's client takes for "later".
_REQUESTS, _BURST, _CONNECTIONS = 300, 3000, 1000
_LARGEST = "1g"  # of a request's body; a full model is 500 MB
_CONFIGURATION = """\
# Made by fedpeft server up at each start; changes are lost.
daemon off;
worker_processes 2;
worker_rlimit_nofile 8192;
pid "@FOLDER@/nginx.pid";
error_log stderr info;
events {
    worker_connections 4000;
}
http {
    server_tokens off;
    # One line for what was refused, read by server/host/outputs.py.
    log_format refused escape=json '{"address": "$remote_addr", "method": "$request_method", '
        '"uri": "$request_uri", "status": $status, "tls": "$ssl_protocol"}';
    map $status $unusual {
        "~^2" 0;
        default 1;
    }
    access_log /dev/stdout refused if=$unusual;
    # As sent, not as understood: nothing is left for the server behind to understand otherwise.
    map "$request_method $request_uri" $of_a_node {
        "~^POST /v1/fleet/[a-z-]+$" 1;
        default 0;
    }
    limit_req_zone $binary_remote_addr zone=requests:4m rate=@REQUESTS@r/s;
    limit_conn_zone $binary_remote_addr zone=connections:4m;

    client_body_temp_path "@FOLDER@/body";
    proxy_temp_path "@FOLDER@/proxy";
    fastcgi_temp_path "@FOLDER@/fastcgi";
    uwsgi_temp_path "@FOLDER@/uwsgi";
    scgi_temp_path "@FOLDER@/scgi";

    server {
        listen @LISTEN@ ssl;
        ssl_certificate "@CERTIFICATE@";
        ssl_certificate_key "@KEY@";
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_session_cache shared:tls:4m;
        ssl_session_tickets off;

        client_header_timeout 20s;
        client_body_timeout 60s;   # between two pieces: a link may be slow
        send_timeout 60s;
        keepalive_timeout 75s;
        client_max_body_size @LARGEST@;
        limit_req zone=requests burst=@BURST@ nodelay;
        limit_conn connections @CONNECTIONS@;

        location / {
            return 403;
        }
        location = /v1/fleet {   # nginx would redirect it
            return 403;
        }
        location /v1/fleet/ {
            if ($of_a_node = 0) {
                return 403;
            }
            proxy_pass https://127.0.0.1:@CONTROL@;
            proxy_ssl_verify on;
            proxy_ssl_name localhost;
            proxy_ssl_trusted_certificate "@CA@";
            proxy_ssl_protocols TLSv1.2 TLSv1.3;
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            proxy_set_header Connection "";
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Proto https;
            # What nodes send and get never lies in a file of the proxy.
            proxy_request_buffering off;
            proxy_max_temp_file_size 0;
            proxy_connect_timeout 5s;
            proxy_send_timeout 60s;
            proxy_read_timeout 120s;
        }
    }
}
"""


def find_nginx() -> str:
    """Return the path of nginx, which users' PATH often leaves out.

    Raises:
        UserError: it is not installed.
    """
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise UserError("nginx is not installed: apt-get install nginx-light")
    return found


def write_configuration(state: ServerState) -> Path:
    """Write nginx's configuration into the state folder and return its path.

    Raises:
        UserError: a path that cannot stand in it.
    """
    path = state.path / "nginx" / "nginx.conf"
    write_atomic(path, configuration(state))
    return path


def configuration(state: ServerState) -> str:
    """Return nginx's configuration for a server.

    Raises:
        UserError: a path that cannot stand in it.
    """
    values = {
        "FOLDER": state.path / "nginx",
        "CERTIFICATE": state.certificate,
        "KEY": state.key,
        "CA": state.ca,
        "LISTEN": f"{bracketed(state.host)}:{state.ports['public']}",
        "CONTROL": state.ports["control"],
        "REQUESTS": _REQUESTS,
        "BURST": _BURST,
        "CONNECTIONS": _CONNECTIONS,
        "LARGEST": _LARGEST,
    }
    text = _CONFIGURATION
    for name, value in values.items():
        if any(letter in '"\\$' or not letter.isprintable() for letter in str(value)):
            raise UserError(f"'{value}': quotes, backslashes and $ cannot stand in this path")
        text = text.replace(f"@{name}@", str(value))
    return text


def command(state: ServerState, configured: Path) -> list[str]:
    """Return the command that runs nginx with a configuration, as the user who starts it."""
    return [find_nginx(), "-e", "stderr", "-p", str(state.path / "nginx"), "-c", str(configured)]


def answers(state: ServerState) -> bool:
    """Return whether the public port speaks TLS with the server's certificate."""
    # Nobody can be reached at "all addresses"; loopback is one of them.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(state.host, state.host)
    try:
        context = ssl.create_default_context(cafile=state.ca)
        with (
            socket.create_connection((host, state.ports["public"]), timeout=3) as line,
            context.wrap_socket(line, server_hostname="localhost"),
        ):
            return True
    except OSError:  # ssl.SSLError is one
        return False


def bracketed(host: str) -> str:
    """Return an IP address as it stands before a port.

    Raises:
        UserError: it is none.
    """
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        raise UserError(
            f"--host '{host}': expected an IP address of this machine, 0.0.0.0 for all"
        ) from None
    return f"[{address}]" if address.version == 6 else str(address)
