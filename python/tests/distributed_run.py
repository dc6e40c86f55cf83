"""What test_distributed.py starts with torchrun: all recipes on two ranks, with DDP and with FSDP2.

Every rank writes what it saw to OUT.RANK; the test compares them with each other and with runs of
one process, which it makes with `train` of this file.
"""

import copy
import hashlib
import sys
import tempfile
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.nn as nn
import torch.nn.functional as F

import weft

# The decay is strong enough to be missed if it were wrong.
RECIPES = ["t-sr-ste+lambda=0.1", "bi-mask+lambda=0.1", "lbc", "s-ste", "conv s-ste"]
STEPS = 20
# FSDP2 is public from torch 2.6 on; what 2.4 has of it needs CUDA.
KINDS = ["ddp", "fsdp"] if hasattr(torch.distributed.fsdp, "fully_shard") else ["ddp"]
ROWS = 48  # of all ranks


def mlp(width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10),
    )  # fmt: skip


def convolutions() -> nn.Sequential:
    """Its images have 25 positions: their groups are cut short."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 2, padding=1), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 25, 10),
    )  # fmt: skip


def batch(step: int, rank: int, ranks: int, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's rows of the batch of a step; the labels can be learned."""
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(rows, 16, generator=generator)
    return x.chunk(ranks)[rank], (x[:, 0] > 0).long().chunk(ranks)[rank]


def shard(model: nn.Module, *, layers: bool = True) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.children() if layers else ():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)  # type: ignore[return-value]


def wrap(model: nn.Module, kind: str) -> nn.Module:
    """As a user's script does it."""
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    return shard(model) if kind == "fsdp" else model


def whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def hash_of(model: nn.Module) -> str:
    """Of masks, permutations, β, and the weights unless ranks have different shards of them."""
    found = hashlib.sha256()
    for module in model.modules():
        if isinstance(module, weft.nn.SparseLayer):
            found.update(module._weft.core.state())
    for parameter in model.parameters():
        if not hasattr(parameter, "full_tensor"):
            found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()


def start(recipe: str, kind: str, **options: Any) -> tuple[nn.Module, nn.Module, Any, Any]:
    inner = convolutions() if recipe.startswith("conv ") else mlp()
    recipe = recipe.removeprefix("conv ")
    weft.sparsify_(inner, recipe, "2:4", total_steps=STEPS, plan="sparse")
    model = wrap(inner, kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return inner, model, optimizer, weft.attach(model, optimizer, **options)


def take_step(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def train(recipe: str, kind: str, rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    inner, model, optimizer, attachment = start(recipe, kind, check_masks_every=4)
    gradients: dict[str, torch.Tensor] = {}

    def keep_gradients(*_: Any) -> None:  # with the decay, as the optimizer sees them
        if not gradients:
            gradients.update({n: whole(p.grad).clone() for n, p in inner.named_parameters()})

    optimizer.register_step_pre_hook(keep_gradients)
    losses, hashes = [], []
    for step in range(STEPS):
        losses.append(take_step(model, optimizer, *batch(step, rank, ranks)))
        hashes.append(hash_of(model))
    return {
        "losses": losses,
        "gradients": gradients,
        "hashes": hashes,
        "dense": weft.dense_state_dict(inner),
        "text": str(attachment),
    }


# ---- what else two ranks must do. Each returns what the test looks at.


def error_of(call: Any) -> str:
    try:
        call()
    except weft.Error as problem:
        return str(problem)
    return "no error"


def resumed(rank: int, ranks: int) -> tuple[list[float], list[float], list[float]]:
    """Losses after five steps: without a stop, from a state_dict, by distributed.checkpoint."""
    recipe = "lbc"  # which has scores, and candidates that are gone
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def go_on(model: nn.Module, optimizer: Any) -> list[float]:
        return [take_step(model, optimizer, *batch(step, rank, ranks)) for step in range(5, 9)]

    _, model, optimizer, _ = start(recipe, "fsdp")
    for step in range(5):
        take_step(model, optimizer, *batch(step, rank, ranks))
    if rank == 0:
        model.state_dict()  # by one rank: nothing is gathered
    saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    shared = [tempfile.mkdtemp()] if rank == 0 else [""]
    dist.broadcast_object_list(shared)
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.save(parts, checkpoint_id=shared[0])
    expected = go_on(model, optimizer)

    _, model, optimizer, _ = start(recipe, "fsdp")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loaded = go_on(model, optimizer)

    _, model, optimizer, _ = start(recipe, "fsdp")
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.load(parts, checkpoint_id=shared[0])
    set_state_dict(
        model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"]
    )
    return expected, loaded, go_on(model, optimizer)


def another_mask(rank: int, ranks: int) -> str:
    """Rank 1 gets other weights: the ranks have other masks, and all of them hear of it."""
    inner, model, optimizer, _ = start("ste", "ddp", check_masks_every=1)
    take_step(model, optimizer, *batch(0, rank, ranks))
    if rank == 1:
        weight = inner.get_parameter("4.weight").data
        weight.copy_(weight.flip(1))
    return error_of(lambda: take_step(model, optimizer, *batch(1, rank, ranks)))


def unequal_batches(rank: int, ranks: int) -> tuple[int, str]:
    """How many warnings, and what the attachment then says."""
    _, model, optimizer, attachment = start("s-ste", "ddp", check_masks_every=1)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for step in range(2):
            x, y = batch(step, rank, ranks)
            take_step(model, optimizer, x[rank:], y[rank:])
    return sum("not equal" in str(one.message) for one in heard), str(attachment)


def broken_groups(rank: int, ranks: int) -> str:
    """23 tokens on every rank are no whole number of groups."""
    _, model, optimizer, attachment = start("s-ste", "ddp")
    take_step(model, optimizer, *batch(0, rank, ranks, rows=46))
    return str(attachment)


def wrong_orders(rank: int, ranks: int) -> dict[str, str]:
    x, y = batch(0, rank, ranks)

    def sparsify_last(kind: str) -> str:
        model = wrap(mlp(), kind)
        return error_of(lambda: weft.sparsify_(model))

    def early(attach_too: bool) -> str:
        model = mlp()
        weft.sparsify_(model, "sr-ste")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if attach_too:
            weft.attach(model, optimizer)
        shard(model)
        if attach_too:
            return error_of(lambda: take_step(model, optimizer, x, y))
        return error_of(lambda: weft.attach(model, optimizer))

    sharded, _, _, _ = start("s-ste", "fsdp")
    alone = mlp()
    weft.sparsify_(alone)
    shard(alone, layers=False)
    return {
        "sparsify_ after DDP": sparsify_last("ddp"),
        "sparsify_ after fully_shard": sparsify_last("fsdp"),
        "optimizer before fully_shard": early(False),
        "attach before fully_shard": early(True),
        "densify_": error_of(lambda: weft.densify_(sharded)),
        "a layer of its own": error_of(lambda: alone.get_submodule("2")(torch.randn(3, 32))),
    }


def attach_before_ddp(rank: int, ranks: int) -> tuple[float, float]:
    """Works: DDP keeps the Parameters. The last losses of both orders."""
    _, usual, usual_optimizer, _ = start("s-ste", "ddp")
    _, model, optimizer, _ = start("s-ste", "alone")
    model = wrap(model, "ddp")
    for step in range(3):
        expected = take_step(usual, usual_optimizer, *batch(step, rank, ranks))
        found = take_step(model, optimizer, *batch(step, rank, ranks))
    return expected, found


def decoupled_decay(rank: int, ranks: int) -> float:
    """How far FSDP2 is from DDP with the other kind of decay, which moves the weights."""
    weights = []
    for kind in ("ddp", "fsdp"):
        inner, model, optimizer, _ = start("sr-ste+decay=decoupled+lambda=5", kind)
        for step in range(3):
            take_step(model, optimizer, *batch(step, rank, ranks))
        weights.append(whole(inner.get_parameter("2.weight").detach()))
    return float((weights[0] - weights[1]).norm() / weights[0].norm())


def gathered(rank: int, ranks: int) -> bool:
    """Masks and effective weights of a sharded layer are those of the whole one."""
    found = []
    for kind in ("ddp", "fsdp"):
        inner, model, optimizer, _ = start("s-ste", kind)
        take_step(model, optimizer, *batch(0, rank, ranks))
        layer = inner.get_submodule("2")
        weft.telemetry(inner)
        found.append((layer.mask(), layer.effective_weight(), layer.path))  # type: ignore
    (mask, weight, path), (mask_too, weight_too, path_too) = found
    return torch.equal(mask, mask_too) and torch.equal(weight, weight_too) and path == path_too


def main(out: str) -> None:
    torch.set_num_threads(1)
    weft.set_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}
    for kind in KINDS:
        for recipe in RECIPES:
            found[f"{kind} {recipe}"] = train(recipe, kind, rank, ranks)
    others = (
        resumed, another_mask, unequal_batches, broken_groups, wrong_orders, attach_before_ddp,
        decoupled_decay, gathered,
    )  # fmt: skip
    for one in others if "fsdp" in KINDS else ():
        found[one.__name__] = one(rank, ranks)
    torch.save(found, f"{out}.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
