"""Sockets on which this process and its descendants listen, from Linux's /proc."""

import ipaddress
import os
from pathlib import Path

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def processes() -> set[int]:
    """Return this process and all that descend from it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def address(hexadecimal: str) -> Address:
    """Read an address of /proc/net: words of four bytes, each with its lowest byte first."""
    words = bytes.fromhex(hexadecimal)
    found = ipaddress.ip_address(b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4)))
    return getattr(found, "ipv4_mapped", None) or found


def listening() -> dict[str, tuple[int, Address]]:
    """Return the sockets that these processes listen on: inode -> process and address."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                sockets[f"socket:[{fields[9]}]"] = address(fields[1].partition(":")[0])
    found = {}
    for process in processes():
        for link in Path(f"/proc/{process}/fd").glob("*"):
            try:
                name = str(link.readlink())
            except OSError:
                continue
            if name in sockets:
                found[name] = process, sockets[name]
    return found
