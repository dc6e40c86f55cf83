"""Functions on arrays, against what NumPy computes of the same definitions."""

import os
import subprocess
import sys

import numpy as np
import pytest
import weft

rng = np.random.default_rng(7)


def matrix(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def largest_of_groups(w, keep, group):
    """The definition: of every group along inputs, the `keep` largest magnitudes."""
    parts = np.abs(w).reshape(-1, group)
    order = np.argsort(-parts, axis=1, kind="stable")[:, :keep]
    mask = np.zeros_like(parts, dtype=bool)
    np.put_along_axis(mask, order, True, axis=1)
    return mask.reshape(w.shape)


@pytest.mark.parametrize("keep, group", [(2, 4), (1, 4), (2, 8), (1, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mask_keeps_the_largest_of_every_group(keep, group, dtype):
    w = matrix(12, 32, dtype=dtype)
    found = weft.mask(w, f"{keep}:{group}")
    assert found.dtype == bool
    np.testing.assert_array_equal(found, largest_of_groups(w, keep, group))


@pytest.mark.parametrize("pattern", ["2:4", "1:4", "3:5", "4:8", "2:16"])
def test_a_short_last_group_keeps_its_best_or_all(pattern):
    """A group size that does not divide the inputs: docs/masks.md has the policy."""
    keep, group = map(int, pattern.split(":"))
    w = matrix(9, 22)
    found = weft.mask(w, pattern)
    for first in range(0, 22, group):
        part = w[:, first : first + group]
        width = part.shape[1]
        np.testing.assert_array_equal(
            found[:, first : first + group], largest_of_groups(part, min(keep, width), width)
        )
    assert weft.check(w * found, pattern)
    assert bool(weft.check(np.ones_like(w), pattern)) is False


def test_a_transposable_mask_obeys_along_both_axes():
    w = matrix(16, 32)
    found = weft.mask(w, "2:4", transposable=True)
    assert weft.check(found, "2:4", axis="both")
    assert (found.reshape(4, 4, 8, 4).sum(axis=(1, 3)) == 8).all()  # every tile is full
    plain = weft.mask(w, "2:4")
    assert not weft.check(plain, "2:4", axis="out")
    greedy = weft.mask(w, "2:4", transposable=True, solver="greedy-keep")
    assert np.abs(w)[greedy].sum() <= np.abs(w)[found].sum()


def test_masks_of_convolutions_run_along_channels():
    w = matrix(4, 8, 3, 3)
    found = weft.mask(w, "2:4")
    np.testing.assert_array_equal(found.reshape(4, 2, 4, 9).sum(axis=2), 2)


def test_check_names_the_first_violation():
    w = np.zeros((3, 8), dtype=np.float32)
    w[1, 4:7] = 1
    result = weft.check(w, "2:4")
    assert not result and result.violations == 1
    assert result.first_violation == (1, 6, 0)


def test_samples_are_unbiased_and_repeat():
    g = matrix(8, 3)
    draws = np.stack([weft.sample(g, "2:4", seed=1, step=i) for i in range(4000)])
    assert all((d.reshape(2, 4, 3) != 0).sum(axis=1).max() <= 2 for d in draws[:50])
    spread = np.std(draws, axis=0, dtype=np.float64) / np.sqrt(len(draws))
    np.testing.assert_array_less(np.abs(np.mean(draws, axis=0, dtype=np.float64) - g), 5 * spread + 1e-6)
    np.testing.assert_array_equal(draws[3], weft.sample(g, "2:4", seed=1, step=3))
    assert not np.array_equal(draws[3], draws[4])


def test_soft_threshold_shrinks_by_the_largest_dropped():
    w = matrix(6, 16)
    values, beta = weft.soft_threshold(w, "2:4")
    groups = w.reshape(-1, 4)
    threshold = np.sort(np.abs(groups), axis=1)[:, 1:2]
    shrunk = np.sign(groups) * np.maximum(np.abs(groups) - threshold, 0)
    expected = (groups * shrunk).sum() / (shrunk**2).sum()
    assert beta == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(values.reshape(-1, 4), beta * shrunk, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("format, bits", [("e4m3", 3), ("e5m2", 2)])
def test_fp8_rounds_to_few_bits(format, bits):
    x = matrix(1000)
    rounded = weft.round_fp8(x, format)
    large = np.abs(x) > 0.1
    error = np.abs(rounded - x)[large] / np.abs(x)[large]
    assert 0 < error.max() <= 2.0 ** -(bits + 1) * 1.001


@pytest.mark.parametrize("layout", ["panel", "stream"])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_products_of_a_packed_matrix(layout, tokens):
    w, x, g = matrix(48, 64), matrix(tokens, 64), matrix(tokens, 48)
    bits = weft.mask(w, "2:4")
    packed = weft.pack(w, bits, "2:4", layout=layout)
    kept = w * bits
    np.testing.assert_array_equal(packed.dense(), kept)
    np.testing.assert_allclose(packed.forward(x), x @ kept.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        packed.forward(x, bias=np.ones(48, np.float32)), x @ kept.T + 1, rtol=1e-4, atol=1e-4
    )
    np.testing.assert_allclose(packed.backward_data(g), g @ kept, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(packed.backward_weight(g, x), (g.T @ x) * bits, rtol=1e-4, atol=1e-4)


def test_a_stream_is_smaller_than_the_matrix_and_survives_bytes():
    w = matrix(256, 256)
    packed = weft.pack(w, pattern="2:4", layout="stream")
    assert packed.nbytes < 0.6 * w.nbytes
    again = weft.PackedMatrix.from_bytes(packed.to_bytes())
    np.testing.assert_array_equal(again.dense(), packed.dense())
    with pytest.raises(weft.Error):
        weft.PackedMatrix.from_bytes(packed.to_bytes()[:-8])


def test_adaprune_beats_its_mask():
    x = matrix(400, 32, dtype=np.float64) @ matrix(32, 32, dtype=np.float64)
    w = matrix(16, 32, dtype=np.float64)
    done = weft.convert_layer(w, x.T @ x / len(x), "2:4", "adaprune", samples=len(x))
    assert weft.check(done.weight, "2:4")
    error = np.sum((x @ (done.weight - w).T) ** 2) / np.sum((x @ w.T) ** 2)
    assert error == pytest.approx(done.error_after, rel=1e-6)
    assert done.error_after < done.error_before


def test_plan_says_how_each_product_runs():
    rows = weft.plan(64, 64, 64, "2:4")
    assert [row.product for row in rows] == ["fwd", "bwd_x", "bwd_w"]
    assert all(row.path in ("dense", "sparse") and row.reason for row in rows)


def test_wrong_calls_get_one_clear_line():
    w = matrix(4, 8)
    wrong = [
        (lambda: weft.mask(w, "5:4"), "5:4"),
        (lambda: weft.mask(w, "two:four"), "two:four"),
        (lambda: weft.mask(w.astype(np.int32)), "int32"),
        (lambda: weft.mask(w[:, ::2]), "contiguous"),
        (lambda: weft.mask(matrix(4)), "dimensions"),
        (lambda: weft.mask(w, solver="guess"), "guess"),
        (lambda: weft.mask(np.full((4, 8), np.nan, np.float32)), "nan"),
        (lambda: weft.check(w, axis="up"), "up"),
        (lambda: weft.round_fp8(w, "e3m4"), "e3m4"),
        (lambda: weft.pack(w, np.ones((4, 8), bool), "2:4"), "2:4"),
        (lambda: weft.pack(w, np.ones((2, 8), bool), "2:4"), "[2, 8]"),
        (lambda: weft.pack(w).forward(matrix(2, 3)), "x"),
        (lambda: weft.convert_layer(w, method="adaprune"), "adaprune"),
    ]
    for call, word in wrong:
        with pytest.raises(weft.Error) as caught:
            call()
        assert word in str(caught.value) and "\n" not in str(caught.value), str(caught.value)
    assert issubclass(weft.Error, ValueError)


def test_the_environment_forces_an_instruction_set():
    def imported(name):
        return subprocess.run(
            [sys.executable, "-c", "import weft; print(weft.isa())"],
            env={**os.environ, "WEFT_ISA": name}, capture_output=True, text=True,
        )  # fmt: skip

    lowest = "neon" if weft.isa() == "neon" else "sse4"
    assert imported(lowest).stdout.strip() == lowest
    wrong = imported("avx9")
    assert wrong.returncode == 1 and "WEFT_ISA: " in wrong.stderr.splitlines()[-1]
