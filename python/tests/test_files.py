"""Files: the mirrors of the commands, on files that other tools write and read."""

import subprocess
import sys

import numpy as np
import pytest
import weft

safetensors = pytest.importorskip("safetensors.numpy")


@pytest.fixture
def model(tmp_path):
    rng = np.random.default_rng(3)
    tensors = {
        "fc1.weight": rng.standard_normal((32, 64)).astype(np.float32),
        "fc1.bias": rng.standard_normal(32).astype(np.float32),
        "fc2.weight": rng.standard_normal((16, 32)).astype(np.float32),
    }
    path = tmp_path / "model.safetensors"
    safetensors.save_file(tensors, path)
    return path, tensors


def test_prune_check_pack_unpack(model, tmp_path):
    path, tensors = model
    pruned, packed, back = (tmp_path / f"{n}.safetensors" for n in ("pruned", "packed", "back"))
    report = weft.prune_file(path, pruned, "2:4")
    assert [t["name"] for t in report["tensors"]] == ["fc1.weight", "fc2.weight"]
    assert weft.check_file(pruned)["valid"]
    assert not weft.check_file(path, "2:4")["valid"]
    read = safetensors.load_file(pruned)
    np.testing.assert_array_equal(
        read["fc1.weight"], tensors["fc1.weight"] * weft.mask(tensors["fc1.weight"], "2:4")
    )
    np.testing.assert_array_equal(read["fc1.bias"], tensors["fc1.bias"])
    assert weft.pack_file(pruned, packed)["packed_bytes"] < path.stat().st_size * 0.7
    weft.unpack_file(packed, back)
    for name, values in safetensors.load_file(back).items():
        np.testing.assert_array_equal(values, read[name])


def test_convert_file_without_calibration(model, tmp_path):
    path, _ = model
    out = tmp_path / "converted.safetensors"
    report = weft.convert_file(path, out, "2:4", "magnitude")
    assert len(report["layers"]) == 2 and weft.check_file(out)["valid"]


def test_progress_is_heard(model, tmp_path):
    heard = []
    weft.prune_file(model[0], tmp_path / "o.safetensors", progress=lambda d, t: heard.append((d, t)))
    assert heard and heard[-1][0] == heard[-1][1]


def test_errors_name_the_file_and_leave_nothing_behind(model, tmp_path):
    path, _ = model
    out = tmp_path / "out.safetensors"
    for call in (
        lambda: weft.prune_file(tmp_path / "missing.safetensors", out),
        lambda: weft.prune_file(path, path),
        lambda: weft.prune_file(path, out, include="nothing"),
    ):
        with pytest.raises(weft.Error) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert not out.exists()


def test_the_command_line_is_the_same(model):
    run = subprocess.run(
        [sys.executable, "-m", "weft", "check", str(model[0]), "--pattern", "2:4"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 1 and "fc1.weight" in run.stdout
    train = subprocess.run(
        [sys.executable, "-m", "weft", "train", "--out", str(model[0].parent / "run")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert train.returncode != 0 and "libtorch" in train.stderr
