"""The Python of docs/python.md runs, and so do the examples in the docstrings."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import weft

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_blocks_of_the_page_run_in_order(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    text = PAGE.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S))
    assert len(blocks) >= 9
    for block in blocks:
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
