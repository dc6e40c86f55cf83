"""`python -m weft.bench`: a training step of a transformer block, sparsified against plain PyTorch.

Both blocks run in one process, in turns, on the same batch; a ratio is the plain step of a round over
the sparsified one, and what is printed is the median with its quartiles. The planner's first steps, in
which it measures, are not counted. Masks, packing, sampling and AdamW are.

The column "calls" is what Python and autograd add to the core: of the time of forward and backward
passes of the block's layers, each called alone with nothing to mask or pack, the share that is not
spent in the core. The gradient of a bias, a sum of torch in Python and in C++, is left out.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import weft

DEFAULT = ["t-sr-ste 2:4", "t-sr-ste 1:4", "t-sr-ste 1:8x2", "s-ste 2:4", "sr-ste 2:4", "bi-mask 2:4"]
TRIAL_STEPS = 34  # 16, and as many again if a product was too close to call


class Block(torch.nn.Module):
    """Pre-norm attention and MLP, as a PyTorch user writes it."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.proj = torch.nn.Linear(width, width)
        self.fc1 = torch.nn.Linear(width, hidden)
        self.fc2 = torch.nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.proj(mixed.reshape(batch, length, width))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


def make_step(model: torch.nn.Module, x: Tensor, target: Tensor) -> Callable[[], float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if any(isinstance(m, weft.nn.SparseLayer) for m in model.modules()):
        weft.attach(model, optimizer)

    def step() -> float:
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        F.mse_loss(model(x), target).backward()
        optimizer.step()
        return 1e3 * (time.perf_counter() - begin)

    return step


class CoreClock:
    """A layer's core that sums the seconds of the calls to it."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.core, name)
        if not callable(member):
            return member

        def timed(*arguments: Any) -> Any:
            begin = time.perf_counter()
            result = member(*arguments)
            self.seconds += time.perf_counter() - begin
            return result

        return timed


def cost_of_calls(model: torch.nn.Module, tokens: int, rounds: int) -> float:
    """The share of layer calls that is not spent in the core: the median over the rounds."""
    layers = [m for m in model.modules() if isinstance(m, weft.nn.Linear)]
    clocks = []
    for layer in layers:
        layer._weft.core = clock = CoreClock(layer._weft.core)
        layer.bias.requires_grad_(False)
        clocks.append(clock)
    inputs = [torch.randn(tokens, layer.in_features, requires_grad=True) for layer in layers]
    gradients = [torch.randn(tokens, layer.out_features) for layer in layers]
    shares = []
    for _ in range(rounds):
        all_seconds = 0.0
        before = sum(clock.seconds for clock in clocks)
        for layer, x, g in zip(layers, inputs, gradients):
            x.grad = None
            layer.zero_grad(set_to_none=True)
            begin = time.perf_counter()
            y = layer(x)
            y.backward(g)
            all_seconds += time.perf_counter() - begin
            del y  # as in a training step, where it is still in use
        shares.append(1.0 - (sum(clock.seconds for clock in clocks) - before) / all_seconds)
    for layer, clock in zip(layers, clocks):
        layer._weft.core = clock.core
        layer.bias.requires_grad_(True)
    return statistics.median(shares)


def measure(recipe: str, pattern: str, args: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    plain = Block(args.width, args.hidden, args.width // 64)
    sparse = copy.deepcopy(plain)
    weft.sparsify_(
        sparse, recipe, pattern, total_steps=1_000_000, first_and_last_dense=False, plan=args.plan
    )
    shape = (args.tokens // args.length, args.length, args.width)
    x = torch.randn(shape, requires_grad=True)
    target = torch.randn(shape)
    dense_step, sparse_step = make_step(plain, x, target), make_step(sparse, x, target)
    for _ in range(TRIAL_STEPS if args.plan == "auto" else 2):
        sparse_step()
    dense_step()
    rounds = [(dense_step(), sparse_step()) for _ in range(args.rounds)]
    ratios = [dense / own for dense, own in rounds]
    low, middle, high = statistics.quantiles(ratios, n=4)
    ways = {row["plan"] for row in weft.telemetry(sparse).values()}
    return {
        "recipe": recipe,
        "pattern": pattern,
        "dense_ms": statistics.median(dense for dense, _ in rounds),
        "sparse_ms": statistics.median(own for _, own in rounds),
        "ratio": middle,
        "low": low,
        "high": high,
        "calls": cost_of_calls(sparse, args.tokens, args.rounds),
        "products": " ".join(sorted(ways)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m weft.bench", description=__doc__)
    parser.add_argument("cases", nargs="*", default=DEFAULT, help="'RECIPE PATTERN', quoted")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--hidden", type=int, default=3072)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--plan", default="auto", choices=["auto", "dense", "sparse"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    weft.set_threads(args.threads)
    print(
        f"block {args.width}/{args.hidden}, {args.tokens} tokens, AdamW, fp32, {args.threads} "
        f"threads, {weft.isa()}, torch {torch.__version__}"
    )
    print(
        f"{'recipe':<12} {'pattern':<8} {'torch ms':>9} {'weft ms':>9} {'ratio':>6}  quartiles    "
        "calls  products"
    )
    for case in args.cases:
        recipe, _, pattern = case.partition(" ")
        row = measure(recipe, pattern or "2:4", args)
        print(
            f"{row['recipe']:<12} {row['pattern']:<8} {row['dense_ms']:>9.1f} "
            f"{row['sparse_ms']:>9.1f} {row['ratio']:>6.2f}  {row['low']:.2f} - {row['high']:.2f}  "
            f"{row['calls']:>4.1%}  {row['products']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
