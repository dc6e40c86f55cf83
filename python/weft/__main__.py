"""`python -m weft` and the console script `weft`: the same command line as the C++ program."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    program = Path(__file__).parent / "bin" / "weft"
    if not program.exists():
        sys.exit(f"weft: the program is not installed with this package: {program} is missing")
    os.execv(program, ["weft", *sys.argv[1:]])


if __name__ == "__main__":
    main()
