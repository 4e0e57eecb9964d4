"""Make what a federation with TLS and node authentication needs: `python deploy/credentials.py DIR --host NAME --nodes N`.

DIR/ca.crt           the federation's own certificate authority: every SuperNode and every user of `flwr` gets it
DIR/superlink.crt    the SuperLink's certificate, signed by it, and
DIR/superlink.key    its key: for the SuperLink and the proxy before it (deploy/proxy.py) alone
DIR/node-<p>         the private key of SuperNode p: for that node alone
DIR/node-<p>.pub     its public key, which `flwr supernode register` tells the SuperLink

The authority's own key is thrown away: nobody can sign a second certificate with it. Keys can be read by
their owner only. Never commit any of it.
"""

import argparse
import ipaddress
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 365


def make_certificates(directory: Path, hosts: list[str], days: int = DAYS) -> None:
    """Write an authority's certificate, and a certificate and key for the SuperLink at `hosts`.

    It is good for loopback, too: the proxy and users, who come over SSH, reach the SuperLink there.
    """
    hosts = list(dict.fromkeys([*hosts, "localhost", "127.0.0.1"]))
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, superlink = _key(), _key()
    issuer = _name("fedapp federation")
    until = datetime.now(UTC) + timedelta(days=days)
    root = (
        _certificate(issuer, issuer, authority.public_key(), until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority, hashes.SHA384())
    )
    certificate = (
        _certificate(_name(hosts[0]), issuer, superlink.public_key(), until)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority, hashes.SHA384())
    )
    pem = superlink.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write_secret(directory / "superlink.key", pem)  # the first: it refuses to replace one
    (directory / "ca.crt").write_bytes(root.public_bytes(Encoding.PEM))
    (directory / "superlink.crt").write_bytes(certificate.public_bytes(Encoding.PEM))


def make_node_key(directory: Path, place: int) -> None:
    """Write the key pair of one SuperNode."""
    key = _key()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write_secret(directory / f"node-{place}", secret)
    (directory / f"node-{place}.pub").write_bytes(public + b"\n")


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(minutes=5))  # clocks differ
        .not_valid_after(until)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_secret(path: Path, content: bytes) -> None:
    """Write a new file that nobody else could ever read; one that is there is not replaced."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def main() -> int:
    """Make the credentials that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument(
        "--host",
        action="append",
        required=True,
        metavar="NAME",
        help="a name or address at which nodes reach the SuperLink's proxy; may be repeated",
    )
    parser.add_argument("--nodes", type=int, required=True, metavar="N", help="SuperNodes")
    parser.add_argument(
        "--days", type=int, default=DAYS, help="how long the certificates are good for"
    )
    arguments = parser.parse_args()
    if arguments.directory.exists() and any(arguments.directory.iterdir()):
        print(f"{arguments.directory} is not empty: choose another DIR.", file=sys.stderr)
        return 2
    make_certificates(arguments.directory, arguments.host, arguments.days)
    for place in range(arguments.nodes):
        make_node_key(arguments.directory, place)
    print(
        f"{arguments.directory}: certificates for {', '.join(arguments.host)} and the keys of "
        f"{arguments.nodes} nodes. docs/deploy.md says where each belongs."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
