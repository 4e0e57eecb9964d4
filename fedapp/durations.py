"""How durations are written, wherever one is shown.

Time without another word is wall time: the seconds that a run's rounds took, as `wall_seconds` in `rounds.jsonl` has
them, training and evaluation included. Starting an engine and loading data are not part of it. The papers' clock is
always called simulated time.
"""

FOREVER = 1e10  # seconds: no run takes that long


def human_time(seconds: float) -> str:
    """Write a duration, such as 0.34 s, 4.2 s, 42 s, 7 min 42 s or 1 h 7 min."""
    if not 0 <= seconds < FOREVER:
        return "?"
    if seconds < 9.95:
        digits = f"{seconds:.2f}" if seconds < 0.995 else f"{seconds:.1f}"
        return f"{digits.rstrip('0').rstrip('.')} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        parts = [(minutes, "min"), (rest, "s")]
    else:
        hours, rest = divmod(round(seconds / 60), 60)
        parts = [(hours, "h"), (rest, "min")]
    return " ".join(f"{count:,} {unit}" for count, unit in parts if count)
