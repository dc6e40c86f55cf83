"""Every Python block of README.md and docs/ runs as it is printed, and so do the docstrings' examples."""

import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import weft

ROOT = Path(__file__).parents[2]
PAGE = "docs/python.md"

# Blocks with the word no-run after their language, by page, with the reason.
NOT_RUN = {"docs/python.md": "needs transformers, and a Trainer; test_integrations.py has the callbacks"}


def blocks_of(page: str) -> list[tuple[int, str, str]]:
    """The line, the words after the language, and the text of every Python block."""
    text = (ROOT / page).read_text()
    found = re.finditer(r"^```python([^\n]*)\n(.*?)^```", text, re.M | re.S)
    return [(text[: block.start(2)].count("\n"), block[1].strip(), block[2]) for block in found]


def pages() -> list[str]:
    names = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
    return [name for name in names if blocks_of(name)]


def run_blocks(page: str, names: dict) -> None:
    for line, words, text in blocks_of(page):
        if words != "no-run":
            exec(compile("\n" * line + text, page, "exec"), names)  # errors name the line


def test_the_blocks_of_the_page_run_in_order(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert len(blocks_of(PAGE)) >= 9
    run_blocks(PAGE, {})
    said = capsys.readouterr().out
    assert "2 of 4 layers are sparse" in said and "by column, every 10" in said


def test_the_readme_sparsifies_a_model():
    torch = pytest.importorskip("torch")
    layers = [torch.nn.Linear(32, 32) for _ in range(3)]
    names = {"torch": torch, "weft": weft, "model": torch.nn.Sequential(*layers)}
    run_blocks("README.md", names)
    assert "1 of 3 layers are sparse" in str(names["report"])


def test_the_page_on_conversion_writes_calibration_that_convert_takes(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    from safetensors.torch import load_file, save_file

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(8, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 16)
    )
    batches = [torch.randn(64, 8, 8, 8) for _ in range(4)]
    run_blocks("docs/convert.md", {"model": model, "calibration_batches": batches})
    written = load_file("inputs.safetensors")
    assert set(written) == {f"{layer}.{what}" for layer in "02" for what in ("gram", "mean", "samples")}
    x = torch.cat([model[1](model[0](batch)) for batch in batches]).detach().double()
    np.testing.assert_allclose(written["2.gram"], x.T @ x / len(x), rtol=1e-5, atol=1e-6)
    save_file(model.state_dict(), "model.safetensors")
    report = weft.convert_file(
        "model.safetensors", "sparse.safetensors", "2:4", calibration="inputs.safetensors"
    )
    assert len(report["layers"]) == 2 and weft.check_file("sparse.safetensors")["valid"]


def test_the_page_on_the_format_reads_what_pack_writes(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    weights = {
        "fc.weight": np.random.default_rng(0).standard_normal((20, 22), dtype=np.float32),
        "conv.weight": np.random.default_rng(1).standard_normal((40, 8, 3, 3), dtype=np.float32),
    }
    files = [str(tmp_path / name) for name in ("model.safetensors", "sparse.safetensors", "packed.safetensors")]
    safetensors.save_file(weights, files[0])
    weft.prune_file(files[0], files[1], "4:8")
    weft.pack_file(files[1], files[2])
    names: dict = {}
    run_blocks("docs/format.md", names)
    sparse = safetensors.load_file(files[1])
    unpacked = dict(names["unpack"](files[2]))
    assert set(unpacked) == set(sparse)
    for name, values in unpacked.items():
        np.testing.assert_array_equal(values, sparse[name])


def test_the_page_on_distributed_training_wraps_a_model(tmp_path):
    torch = pytest.importorskip("torch")
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        names = {
            "torch": torch,
            "weft": weft,
            "DistributedDataParallel": DistributedDataParallel,
            "Model": lambda: torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(3))),
            "steps": 10,
        }
        run_blocks("docs/distributed-python.md", names)
        names["model"](torch.ones(8, 32)).sum().backward()
        names["optimizer"].step()
    finally:
        torch.distributed.destroy_process_group()


def test_no_page_has_a_block_that_nothing_runs():
    source = Path(__file__).read_text()
    for page in pages():
        assert page == PAGE or f'run_blocks("{page}"' in source, page
        left_out = [words for _, words, _ in blocks_of(page) if words]
        assert left_out == (["no-run"] if page in NOT_RUN else []), page
    assert set(NOT_RUN) <= set(pages())


def test_the_page_is_short():
    assert (ROOT / PAGE).read_text().count("\n") < 250


@pytest.mark.parametrize("name", ["weft", "weft.arrays", "weft.method"])
def test_docstrings(name):
    if name != "weft" and name != "weft.arrays":
        pytest.importorskip("torch")
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0 and found.failed == 0
