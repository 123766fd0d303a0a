"""nitroc beside hand-written JAX, and beside itself: medians of sides that take turns, ratios.

python benchmarks/run.py                          # a table of everything
python benchmarks/run.py --quick --json           # the ratios, in under four minutes
python benchmarks/run.py --job digits --job start
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial

import comparisons
from jobs import JOBS
from peers import SHARED
from start import start

Figures = dict[str, float | str]
ALL: dict[str, Callable[[bool], Figures]] = {
    **{name: partial(comparisons.job, name) for name in JOBS},
    "accum_cnn": comparisons.accum_cnn,
    "guards_lm": comparisons.guards_lm,
    "start": start,
}
PEERS: dict[str, Callable[[bool], Figures]] = {
    f"peers_{name}": partial(comparisons.beside_peers, name) for name in SHARED
}


def ratios(name: str, found: Figures) -> Figures | float | str:
    """What `--json` prints of a job: its ratios, or the one ratio that has the job's own name."""
    if name in found:
        return found[name]
    return {key: value for key, value in found.items() if not key.endswith(("_us", "_s"))}


def rounded(value: float | str) -> float | str:
    return value if isinstance(value, str) else round(value, 4)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [*ALL, *PEERS]
    parser.add_argument("--job", action="append", choices=known, help="repeatable; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer epochs, and no peers")
    parser.add_argument("--json", action="store_true", help="one JSON object of ratios")
    options = parser.parse_args()
    chosen = options.job or [*ALL, *([] if options.quick else PEERS)]
    printed: dict[str, Figures | float | str] = {}
    for name in chosen:
        found = {k: rounded(v) for k, v in {**ALL, **PEERS}[name](options.quick).items()}
        printed[name] = ratios(name, found)
        if not options.json:
            print(name)
            for key, value in found.items():
                print(f"  {key:18s} {value:>13}", flush=True)
    if options.json:
        print(json.dumps(printed))


if __name__ == "__main__":
    main()
