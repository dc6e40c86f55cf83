"""Progress of long work on standard error."""

from __future__ import annotations

import sys
import time
from typing import Any


class Progress:
    """A bar that is rewritten on a terminal; elsewhere a line every ten seconds.

    Work of less than half a second (a terminal) or ten seconds (elsewhere) shows nothing.
    """

    WIDTH = 30

    def __init__(self, label: str, *, shown: bool = True, stream: Any = None) -> None:
        self._label = label
        self._shown = shown
        self._stream = stream
        self._begun = self._last = time.monotonic()
        self._drawn = False

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *problem: object) -> None:
        if self._drawn:
            self._write("\r\033[K")
            self._drawn = False

    def reach(self, fraction: float, what: str) -> None:
        """``fraction`` of the work is done; ``what`` comes next."""
        if not self._shown:
            return
        stream = self._stream or sys.stderr
        terminal = stream is not None and stream.isatty()
        now = time.monotonic()
        elapsed, since = now - self._begun, now - self._last
        if not terminal:
            if since >= 10:
                self._last = now
                self._write(f"weft: {self._label}: {fraction:.0%}, {what}\n")
            return
        if elapsed < 0.5 or (self._drawn and since < 0.1):
            return
        self._last, self._drawn = now, True
        filled = int(fraction * self.WIDTH)
        bar = "#" * filled + "." * (self.WIDTH - filled)
        left = f"{elapsed * (1 - fraction) / fraction:.0f} s left  " if fraction > 0 else ""
        self._write(f"\r{self._label} [{bar}] {fraction:4.0%}  {left}{what}\033[K")

    def _write(self, text: str) -> None:
        try:
            stream = self._stream or sys.stderr
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):
            pass  # progress that cannot be shown is no reason to stop
