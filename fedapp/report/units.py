"""Units that people use: kB, MB and GB; minutes, hours and days."""

# Each unit with its size, the smallest first.
UNITS: dict[str, list[tuple[str, float]]] = {
    "bytes": [("bytes", 1), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12)],
    "bits": [("bits", 1), ("kbit", 1e3), ("Mbit", 1e6), ("Gbit", 1e9), ("Tbit", 1e12)],
    "seconds": [("seconds", 1), ("minutes", 60), ("hours", 3600), ("days", 86400)],
}
SYMBOLS = {"seconds": "s", "minutes": "min", "hours": "h", "days": "d"}  # in tables
LEAST = {"seconds": 3.0}  # minutes begin with three of them


def familiar_unit(kind: str, value: float) -> tuple[str, float]:
    """Return the largest unit of which a value has at least one (three, for times), and its size."""
    units = UNITS[kind]
    least = LEAST.get(kind, 1.0)
    return next((unit for unit in reversed(units) if value >= least * unit[1]), units[0])


def in_unit(label: str, kind: str, unit: str) -> str:
    """Write a label with its unit: "uplink bytes, all clients" in MB is "uplink, all clients (MB)"."""
    return f"{label.replace(f' {kind}', '', 1)} ({unit})"
