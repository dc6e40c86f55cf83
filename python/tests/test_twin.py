"""The same network trained from Python and from C++ (tests/torch/train_twin.cpp): the same losses."""

import math
import os
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import weft  # noqa: E402

STEPS, TOKENS, INS, WIDTH, OUTS = 20, 24, 16, 32, 8
PROGRAM = Path(
    os.environ.get("WEFT_TWIN", Path(__file__).parents[2] / "build/release/bin/train_twin")
)

# Intervals of 3, so that every phase is passed: head, refresh, permutation, removal, tail.
RECIPES = [
    "ste",
    "sr-ste+lambda=0.01",
    "static+dense_head=0.2",
    "transposable+mask_every=3",
    "t-sr-ste+mask_every=3+lambda=0.01",
    "bi-mask+permutation_every=3",
    "lbc",
    "s-ste",
]


def sines(shape, scale, phase):
    size = math.prod(shape)
    return torch.tensor([scale * math.sin(0.37 * i + phase) for i in range(size)]).view(shape)


def train(recipe, pattern):
    model = nn.Sequential(
        nn.Linear(INS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(),
        nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, OUTS),
    )  # fmt: skip
    with torch.no_grad():
        for phase, parameter in enumerate(model.parameters()):
            parameter.copy_(sines(parameter.shape, 0.3, phase))
    weft.sparsify_(model, recipe, pattern, total_steps=STEPS, seed=3, plan="sparse")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    weft.attach(model, optimizer)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        output = model(sines((TOKENS, INS), 1.0, step))
        loss = F.mse_loss(output, sines((TOKENS, OUTS), 1.0, 2 * step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM.name} is not built (needs libtorch)")
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("pattern", ["2:4", "1:4"])
def test_losses_are_those_of_the_libtorch_adapter(recipe, pattern):
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    printed = subprocess.run(
        [PROGRAM, recipe, pattern], capture_output=True, text=True, check=True, env=environment
    ).stdout
    expected = [float(line) for line in printed.split()]
    assert len(expected) == STEPS
    assert train(recipe, pattern) == pytest.approx(expected, rel=1e-5)
