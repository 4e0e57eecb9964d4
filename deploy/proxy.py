"""Write the nginx configuration of the SuperNodes' door: `python deploy/proxy.py nginx.conf --credentials DIR`.

Flower serves nodes, users and the ServerApp on one port, and asks only nodes who they are: whoever reaches that port
may start runs. So the SuperLink listens on loopback, and nginx stands before it. It passes the ten requests with which a
registered SuperNode works, and refuses all others. Users of `flwr` reach loopback over SSH. See docs/deploy.md.
"""

import argparse
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for those who start this file from anywhere

from fedapp.errors import ConfigError  # noqa: E402

# What a SuperNode with a registered key asks of the SuperLink (flwr 1.41, FleetHttpClient). Left out on purpose:
# register-node and unregister-node, with which a node would let itself in.
FLEET_ROUTES = [
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
]
REFUSAL = "Only SuperNodes are served here: users connect to the SuperLink over SSH."
MAX_BODY = "16m"  # Flower sends arrays in chunks of 5 MiB, however large the model is

CONFIGURATION = """\
# Written by deploy/proxy.py. Everything that is not named here is refused.
{user}daemon off;
worker_processes 1;
pid "{directory}/nginx.pid";
error_log stderr warn;

events {{
    worker_connections 1024;
}}

http {{
    server_tokens off;
    map $status $refused {{ ~^[45] 1; default 0; }}
    access_log "{directory}/refused.log" combined if=$refused;
    client_body_temp_path "{directory}/body";
    proxy_temp_path "{directory}/proxy";
    fastcgi_temp_path "{directory}/fastcgi";
    uwsgi_temp_path "{directory}/uwsgi";
    scgi_temp_path "{directory}/scgi";

    # Limits: of one request, and of one address (over them: 503, which a SuperNode tries again).
    client_max_body_size {max_body};
    limit_conn_zone $binary_remote_addr zone=connections:1m;
    limit_req_zone $binary_remote_addr zone=requests:1m rate=100r/s;
    limit_conn connections 100;
    limit_req zone=requests burst=1000 nodelay;
    client_header_timeout 15s;
    client_body_timeout 30s;
    send_timeout 30s;
    keepalive_requests 100000;
    proxy_connect_timeout 10s;
    proxy_read_timeout 120s;

    server {{
        listen {listen} ssl;
        ssl_certificate "{credentials}/superlink.crt";
        ssl_certificate_key "{credentials}/superlink.key";
        ssl_protocols TLSv1.2 TLSv1.3;

        # The SuperLink keeps TLS, which its node authentication demands; its certificate is checked here, too.
        proxy_ssl_verify on;
        proxy_ssl_trusted_certificate "{credentials}/ca.crt";
        proxy_ssl_name {superlink_name};
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header X-Forwarded-For $remote_addr;

        default_type text/plain;
        set $args "";
        location / {{
            return 403 "{refusal}\\n";
        }}
{locations}    }}
}}
"""

# The path is spelled out in proxy_pass: the SuperLink gets this one, however the request has written it.
LOCATION = """\
        location = /v1/fleet/{route} {{
            limit_except POST {{ deny all; }}
            proxy_pass https://{superlink}/v1/fleet/{route};
        }}
"""


def find_nginx() -> str:
    """Return nginx's path; Debian keeps it where only root looks."""
    path = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if path is None:
        raise ConfigError(
            "A secure federation needs nginx in front of the SuperLink: install it "
            "(on Debian and Ubuntu `sudo apt-get install nginx`)."
        )
    return path


def nginx_configuration(
    listen: str,
    superlink: str,
    credentials: str,
    directory: str,
    superlink_name: str = "localhost",
    max_body: str = MAX_BODY,
    user: str = "",
) -> str:
    """Return the configuration of a proxy at `listen` that passes what nodes need to `superlink`.

    `directory` is where nginx keeps its log of refused requests and its temporary files. `superlink_name` is a name in the
    SuperLink's certificate. `user` is for a proxy that root starts, and whom its workers shall be.
    """
    locations = [LOCATION.format(route=route, superlink=superlink) for route in FLEET_ROUTES]
    return CONFIGURATION.format(
        user=f"user {user};\n" if user else "",
        listen=listen,
        credentials=credentials,
        directory=directory,
        superlink_name=superlink_name,
        max_body=max_body,
        refusal=REFUSAL,
        locations="".join(locations),
    )


def main() -> int:
    """Write the configuration that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path, metavar="NGINX.CONF")
    parser.add_argument(
        "--credentials",
        required=True,
        metavar="DIR",
        help="where nginx finds ca.crt, superlink.crt and superlink.key",
    )
    parser.add_argument(
        "--directory",
        metavar="DIR",
        help="for the log of refused requests and temporary files; default: beside NGINX.CONF",
    )
    parser.add_argument("--listen", default="0.0.0.0:9100", help="default: %(default)s")
    parser.add_argument(
        "--superlink", default="127.0.0.1:9101", help="where it listens; default: %(default)s"
    )
    parser.add_argument(
        "--superlink-name",
        default="localhost",
        help="a name in its certificate; default: %(default)s",
    )
    parser.add_argument(
        "--max-body",
        default=MAX_BODY,
        help="the largest request that is taken, in nginx's units; default: %(default)s",
    )
    given = parser.parse_args()
    text = nginx_configuration(
        given.listen,
        given.superlink,
        str(Path(given.credentials).absolute()),  # nginx would look beside its configuration
        given.directory or str(given.path.absolute().parent),
        given.superlink_name,
        given.max_body,
    )
    given.path.write_text(text)
    print(f"{given.path}: start it with `nginx -e stderr -c {given.path.absolute()}`.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
