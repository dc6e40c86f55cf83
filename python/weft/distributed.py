"""Data-parallel training: sharded parameters, samples of a rank's tokens, and equal masks.

Masks, permutations and β are functions of the whole weight, the seed and the step. Ranks with equal
weights therefore have equal masks, and nothing is exchanged for them: DDP keeps the weights equal,
and FSDP2 (``fully_shard``) gathers them for the forward pass, in which masks are found.
"""

from __future__ import annotations

import collections
import hashlib
import warnings
from typing import Any, Optional

import torch
from torch import Tensor

from ._core import Error

ORDER = "weft.sparsify_, then fully_shard or DDP, then the optimizer, then weft.attach"


# ---- sharded parameters


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor: its own module is imported only by those who use it."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """All of a sharded tensor, on every rank. All ranks must call it."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        gathered: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return gathered


def local_part(tensor: Tensor, like: Tensor) -> Tensor:
    """Of a whole tensor, this rank's part: as of ``like``, a sharded one. No communication."""
    try:
        from torch.distributed.tensor import DTensor, Replicate
    except ImportError:  # torch 2.4
        from torch.distributed._tensor import DTensor, Replicate  # type: ignore[no-redef]

    assert isinstance(like, DTensor)
    everywhere = [Replicate()] * like.device_mesh.ndim
    found = DTensor.from_local(tensor, like.device_mesh, everywhere, run_check=False)
    return found.redistribute(placements=like.placements).to_local()


def refuse_wrapped(model: torch.nn.Module) -> None:
    """sparsify_ comes first: what shards or averages parameters must see the scores of lbc too."""
    for name, module in model.named_modules():
        where = name or "the model"
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            raise Error(f"{where} is wrapped in DDP already: the order is {ORDER}")
        refuse_fsdp1(where, module)
        if any(is_sharded(p) for p in module.parameters(recurse=False)):
            raise Error(f"{where} has sharded parameters already: the order is {ORDER}")


def refuse_fsdp1(name: str, module: torch.nn.Module) -> None:
    # By name: importing it takes longer than the rest of weft.
    if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__):
        raise Error(
            f"{name} is wrapped in FullyShardedDataParallel, which flattens weights: use "
            "torch.distributed.fsdp.fully_shard (FSDP2)"
        )


# ---- ranks


class Ranks:
    """The data-parallel ranks of a run, and where the tokens of this one lie in their batch.

    The random numbers of a sampled gradient are a function of the token's number. Of equal batches
    in rank order that number is known without asking: rank · tokens. So ranks draw what one process
    would draw from the batch of all. Otherwise every rank counts its tokens from a place far from
    those of others: the draws are independent, and unbiased all the same.
    """

    APART = 1 << 30  # groups of tokens (or images) between the ranks: more than a batch has

    def __init__(self, group: Any = None, equal_batches: bool = True) -> None:
        self.group = group
        self.equal_batches = equal_batches

    @staticmethod
    def _initialized() -> bool:
        return torch.distributed.is_available() and torch.distributed.is_initialized()

    @property
    def rank(self) -> int:
        return torch.distributed.get_rank(self.group) if self._initialized() else 0

    @property
    def size(self) -> int:
        return torch.distributed.get_world_size(self.group) if self._initialized() else 1

    def draw_as_one(self, tokens: int, unit: int) -> bool:
        """unit: tokens that are sampled together, a group or an image."""
        return self.equal_batches and tokens % unit == 0

    def first_token(self, tokens: int, unit: int) -> int:
        if self.size == 1 or unit == 0:
            return 0
        if self.draw_as_one(tokens, unit):
            return self.rank * tokens
        return (self.rank + 1) * self.APART * unit

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks. All of them must call it."""
        found: list[Any] = [None] * self.size
        if self.size == 1:
            return [value]
        torch.distributed.all_gather_object(found, value, group=self.group)
        return found


def require_equal_states(ranks: Ranks, states: dict[str, bytes], step: int) -> None:
    """Error, on every rank, that names the first layer whose masks, permutation or β differ."""
    own = {name: hashlib.blake2b(state, digest_size=16).digest() for name, state in states.items()}
    found = ranks.gather(own)
    for name in own:
        digests = [one.get(name) for one in found]
        usual = collections.Counter(digests).most_common(1)[0][0]
        others = [str(rank) for rank, digest in enumerate(digests) if digest != usual]
        if others:
            raise Error(
                f"{name}: the mask, permutation or β of rank {', '.join(others)} differs from that "
                f"of rank {digests.index(usual)} after step {step}: the ranks must have equal "
                "weights, seeds and checkpoints"
            )


def follow_batch_sizes(ranks: Ranks, tokens: dict[str, int]) -> None:
    """Draws become independent if batches turn out not to be equal."""
    if not ranks.equal_batches:
        return
    found = ranks.gather(tokens)
    for name in tokens:
        sizes = [one.get(name) for one in found]
        if len(set(sizes)) > 1:
            ranks.equal_batches = False
            warnings.warn(
                f"weft: {name} saw {sizes} tokens on the ranks: batches are not equal, so every "
                "rank draws its own samples from here on; give weft.attach equal_batches=False"
            )
            return


def describe_draws(ranks: Optional[Ranks], tokens: dict[str, tuple[int, int]]) -> str:
    """For a report. tokens: of every layer that samples, how many and sampled how many together."""
    if not tokens:
        return "no gradient is sampled"
    if ranks is None or ranks.size == 1:
        return "gradients are sampled by one process"
    if not ranks.equal_batches:
        return "every rank samples gradients independently: unbiased, not what one process draws"
    apart = [name for name, (n, unit) in tokens.items() if not ranks.draw_as_one(n, unit)]
    if not apart:
        return "gradients are sampled as by one process, if batches are equal and in rank order"
    count, unit = tokens[apart[0]]
    return (
        f"every rank samples gradients of {', '.join(apart)} independently: {count} tokens are not "
        f"a multiple of {unit}; others as by one process"
    )
