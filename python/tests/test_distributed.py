"""DDP and FSDP2: two ranks agree to the bit, and compute what one process computes."""

import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch without torch.distributed", allow_module_level=True)
import distributed_run as run  # noqa: E402
import weft  # noqa: E402
import weft.optimizer  # noqa: E402
from weft.distributed import Ranks  # noqa: E402

CASES = [(kind, recipe) for kind in run.KINDS for recipe in run.RECIPES]
with_fsdp2 = pytest.mark.skipif("fsdp" not in run.KINDS, reason="FSDP2 needs torch 2.6")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What both ranks saw, in one start of torchrun."""
    out = tmp_path_factory.mktemp("torchrun") / "seen"
    # Ranks would look for each other under this machine's name, which it may not know itself.
    launched = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
         "--nproc-per-node", "2", str(pathlib.Path(__file__).parent / "distributed_run.py"),
         str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stdout + launched.stderr
    return [torch.load(f"{out}.{rank}", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def one_process():
    made = {}

    def of(recipe):
        if recipe not in made:
            made[recipe] = run.train(recipe, "alone")
        return made[recipe]

    return of


def distance(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind, recipe", CASES)
def test_two_ranks_agree_and_are_one_process(ranks, one_process, kind, recipe):
    first, second = (seen[f"{kind} {recipe}"] for seen in ranks)
    assert first["hashes"] == second["hashes"]
    expected = one_process(recipe)
    assert expected["losses"][-1] < 0.8 * expected["losses"][0]  # there was something to learn
    for name, gradient in expected["gradients"].items():
        assert distance(first["gradients"][name], gradient) < 1e-6, name
    losses = [(a + b) / 2 for a, b in zip(first["losses"], second["losses"])]
    assert losses == pytest.approx(expected["losses"], rel=1e-4)
    assert first["dense"].keys() == expected["dense"].keys()
    for name, value in expected["dense"].items():
        assert distance(first["dense"][name], value) < 1e-3, name
    assert ("as by one process" in first["text"]) == (recipe not in ("lbc", "bi-mask+lambda=0.1"))


@with_fsdp2
def test_a_sharded_run_goes_on_to_the_bit(ranks):
    for seen in ranks:
        expected, from_state_dict, from_checkpoint = seen["resumed"]
        assert from_state_dict == expected and from_checkpoint == expected


@with_fsdp2
def test_another_mask_is_an_error_on_every_rank(ranks):
    for seen in ranks:
        assert seen["another_mask"].startswith("4: ")
        assert "of rank 1 differs from that of rank 0 after step 2" in seen["another_mask"]


@with_fsdp2
def test_unequal_batches_are_noticed_and_said(ranks):
    for seen in ranks:
        warned, text = seen["unequal_batches"]
        assert warned == 1 and "every rank samples gradients independently" in text
        assert "23 tokens are not a multiple of 4" in seen["broken_groups"]


@with_fsdp2
def test_wrong_orders_are_refused(ranks):
    for seen in ranks:
        errors = dict(seen["wrong_orders"])
        assert "dense_state_dict" in errors.pop("densify_")
        assert "fully_shard" in errors.pop("a layer of its own")
        for what, message in errors.items():
            assert weft.distributed.ORDER in message and "\n" not in message, (what, message)


@with_fsdp2
def test_what_else_works_on_two_ranks(ranks):
    for seen in ranks:
        assert seen["attach_before_ddp"][0] == seen["attach_before_ddp"][1]
        assert seen["decoupled_decay"] < 1e-6
        assert seen["gathered"]


# ---- without torchrun


class FakeRanks(Ranks):
    rank, size = 1, 2


def test_ranks_never_draw_the_same_numbers():
    places = {}
    for tokens in (24, 23):  # of 23 the last group is short: ranks draw on their own
        for rank in (0, 1, 2):
            one = type("Rank", (Ranks,), {"rank": rank, "size": 3})()
            places[tokens, rank] = one.first_token(tokens, 4)
    assert [places[24, rank] for rank in range(3)] == [0, 24, 48]
    alone = sorted(places[23, rank] for rank in range(3))
    assert all(place % 4 == 0 for place in alone)
    assert alone[0] > 10**9 and min(b - a for a, b in zip(alone, alone[1:])) > 10**9


@pytest.mark.parametrize("shape", ["linear", "conv"])
def test_the_plain_path_draws_what_the_kernels_draw(shape):
    def gradient(plain):
        torch.manual_seed(0)
        if shape == "linear":
            layer, x = weft.nn.Linear(16, 8, recipe="s-ste"), torch.randn(12, 16)
        else:
            layer, x = weft.nn.Conv2d(4, 8, 3, recipe="s-ste"), torch.randn(2, 4, 5, 5)
        layer._weft.ranks, layer._weft.plain = FakeRanks(), plain
        (layer(x) ** 2).sum().backward()
        return layer.weight.grad

    torch.testing.assert_close(gradient(True), gradient(False), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("recipe", ["lbc", "bi-mask", "transposable+mask_every=3"])
def test_a_state_without_weights_can_be_saved_at_every_step(recipe, monkeypatch):
    """As of sharded weights: it is loaded as it was before the step, which is counted again."""

    def begin():
        inner, model, optimizer, _ = run.start(recipe, "alone")
        return inner, optimizer

    monkeypatch.setattr(weft.optimizer, "is_sharded", lambda tensor: True)
    monkeypatch.setattr(weft.optimizer, "_decay", lambda *_: None)
    model, optimizer = begin()
    sizes = set()
    for step in range(run.STEPS):
        run.take_step(model, optimizer, *run.batch(step, 0, 1))
        saved = {k: v.clone() for k, v in model.state_dict().items()}
        sizes.add(saved["2._extra_state"].numel())
        again, _ = begin()
        sizes.add(again.state_dict()["2._extra_state"].numel())
        again.load_state_dict(saved)
        model(run.batch(step, 0, 1)[0]), again(run.batch(step, 0, 1)[0])
        assert again[2].step == step + 1
        assert again[2]._weft.core.state() == model[2]._weft.core.state()
    assert len(sizes) == 1


def test_damaged_states_are_refused():
    layer = weft.nn.Linear(16, 8, recipe="s-ste")
    saved = layer.get_extra_state()
    for damaged in (saved[:7], saved[:40], torch.full_like(saved, 255)):
        with pytest.raises(weft.Error, match="damaged|cut short|version"):
            layer.set_extra_state(damaged)
