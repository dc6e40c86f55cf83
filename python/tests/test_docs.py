"""The Python of docs/python.md runs, and so do the examples in the docstrings."""

import doctest
import importlib
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import weft

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def missing_functions():
    """Functions that the package names and does not have yet."""
    homes = {name: module or name for name, module in weft._NEEDS_TORCH.items()}
    return [name for name, home in homes.items() if find_spec(f"weft.{home}") is None]


def test_the_blocks_of_the_page_run_in_order(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    text = PAGE.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S))
    assert len(blocks) >= 9
    for block in blocks:
        if any(f"weft.{name}(" in block[1] for name in missing_functions()):
            continue
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block[1], str(PAGE), "exec"), names)  # errors name the line
    said = capsys.readouterr().out
    assert "2 of 4 layers are sparse" in said and "by column, every 10" in said


def test_the_page_is_short():
    assert PAGE.read_text().count("\n") < 250


@pytest.mark.parametrize("name", ["weft", "weft.arrays", "weft.method"])
def test_docstrings(name):
    if name != "weft" and name != "weft.arrays":
        pytest.importorskip("torch")
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0 and found.failed == 0
