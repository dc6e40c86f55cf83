"""sparsify_: the layers of a PyTorch model learn a recipe each, in place; densify_ undoes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch
from torch import Tensor

from . import _core, nn
from ._core import Error
from .distributed import is_sharded, refuse_wrapped, whole
from .engine import Engine, Planner, Settings
from .tables import table
from .method import Method, Recipe, split

Rule = Union[tuple[str, Recipe], tuple[str, Recipe, str]]


@dataclass(frozen=True)
class LayerReport:
    name: str  # "blocks.0.fc1"
    kind: str  # "linear 768 -> 3072"
    recipe: str  # what it trains by; "dense" if it is not sparse
    pattern: str  # "2:4"; empty if dense
    path: str  # "packed", "plain"; "torch" for modules that weft does not compute
    reason: str


class Report(list[LayerReport]):
    """What became of every module with a matrix. Prints as a table."""

    note = ""

    @property
    def sparse(self) -> list[LayerReport]:
        return [layer for layer in self if layer.recipe != "dense"]

    def __str__(self) -> str:
        header = ("layer", "kind", "recipe", "pattern", "path", "why")
        rows = [(r.name, r.kind, r.recipe, r.pattern, r.path, r.reason) for r in self]
        lines = table(header, rows)
        lines.append(f"{len(self.sparse)} of {len(self)} layers are sparse")
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)


def _places(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Every module with a matrix of its own, once, in the order of registration."""
    for name, module in model.named_modules():
        if any(p.dim() >= 2 for p in module.parameters(recurse=False)):
            yield name, module


def layers_of(model: torch.nn.Module) -> list[tuple[str, nn.SparseLayer]]:
    return [(n, m) for n, m in model.named_modules() if isinstance(m, nn.SparseLayer)]


class _TiedWeights:
    """Memory that several modules read."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._owners: dict[int, list[tuple[torch.nn.Module, str]]] = {}
        for name, module in model.named_modules():
            for key, parameter in module._parameters.items():
                if parameter is None or parameter.numel() == 0:
                    continue
                address = parameter.untyped_storage().data_ptr()
                full = f"{name}.{key}" if name else key
                self._owners.setdefault(address, []).append((module, full))

    def other_owner(self, module: torch.nn.Module) -> str:
        weight = module._parameters.get("weight")
        if weight is None or weight.numel() == 0:
            return ""
        owners = self._owners.get(weight.untyped_storage().data_ptr(), [])
        return next((name for owner, name in owners if owner is not module), "")


def _weight(module: torch.nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


_KINDS = {torch.nn.Linear: nn.Linear, torch.nn.Conv2d: nn.Conv2d}


def _sparse_class(module: torch.nn.Module) -> Any:
    """What sparsify_ makes of a module; None: weft has no such layer."""
    kind = type(module)
    if (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D"):
        return nn.Conv1D
    return _KINDS.get(kind)


def _matrix_shape(module: torch.nn.Module) -> torch.Size:
    """Outputs first, as in the core."""
    own = _sparse_class(module)
    return own._matrix(module, _weight(module)).shape if own else _weight(module).shape


def _kind(module: torch.nn.Module) -> str:
    if _sparse_class(module) not in (None, nn.Conv2d):
        outs, ins = _matrix_shape(module)
        return f"linear {ins} -> {outs}"
    if isinstance(module, torch.nn.Linear):  # a subclass
        return f"linear {module.in_features} -> {module.out_features}"
    if isinstance(module, torch.nn.Conv2d):
        height, width = module.kernel_size
        return f"conv {module.in_channels} -> {module.out_channels}, {height}x{width}"
    return type(module).__name__


def _cannot_compute(name: str, module: torch.nn.Module, parents: dict[str, torch.nn.Module]) -> str:
    """Why weft leaves a module alone, whatever is asked for it; empty: it does not."""
    if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
        return "an embedding: no product"
    if isinstance(module, torch.nn.MultiheadAttention):
        return "nn.MultiheadAttention multiplies with its weights itself"
    parent = parents.get(name.rpartition(".")[0])
    if isinstance(parent, torch.nn.MultiheadAttention):
        return "nn.MultiheadAttention reads this weight without calling the module"
    if type(module) is torch.nn.Conv2d:
        problem = nn.Conv2d.objection(module)
        return problem and f"it {problem}"
    if _sparse_class(module) is not None:
        return ""
    if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):
        return f"{type(module).__name__} is a subclass that may use its weight otherwise"
    return f"weft has no {type(module).__name__}"


@dataclass(frozen=True)
class _Choice:
    recipe: str
    pattern: str
    reason: str
    method: Optional[Method] = None

    @property
    def name(self) -> str:
        return self.recipe if self.method is None else repr(self.method)


class _Choices:
    """Which recipe a layer gets: the first rule that matches its whole name, or the config."""

    def __init__(
        self,
        recipe: Recipe,
        pattern: str,
        rules: Iterable[Rule],
        filter: Optional[Callable[[str, torch.nn.Module], bool]],
        total_steps: int,
        ends_dense: bool,
    ) -> None:
        text, method = split(recipe)
        self._config = _Choice(text, pattern, "the recipe of the call", method)
        self._rules: list[tuple[re.Pattern[str], _Choice]] = []
        for rule in rules:
            expression = rule[0]
            text, method = split(rule[1])
            own = rule[2] if len(rule) == 3 else pattern
            try:
                compiled = re.compile(expression)
            except re.error as problem:
                raise Error(f"the rule '{expression}' is not a regular expression: {problem}")
            self._rules.append((compiled, _Choice(text, own, f"rule '{expression}'", method)))
        self._filter = filter
        self._ends_dense = ends_dense
        for choice in [self._config, *(choice for _, choice in self._rules)]:
            _core.objection(4096, 4096, 1, 1, choice.recipe, choice.pattern)  # both must exist
            if _core.recipe(choice.recipe)["needs_total_steps"] and total_steps <= 0:
                raise Error(
                    f"recipe '{choice.name}' has a schedule in shares of the run: total_steps "
                    "must be given"
                )

    def of(self, name: str, module: torch.nn.Module, first: bool, last: bool) -> _Choice:
        dense = lambda reason: _Choice("dense", "", reason)  # noqa: E731
        for expression, choice in self._rules:
            if expression.fullmatch(name):
                return self._suited(module, choice)
        if self._filter is not None:
            if not self._filter(name, module):
                return dense("the filter leaves it out")
        elif self._ends_dense and (first or last):
            return dense("the first layer" if first else "the last layer")
        return self._suited(module, self._config)

    @staticmethod
    def _suited(module: torch.nn.Module, choice: _Choice) -> _Choice:
        info = _core.recipe(choice.recipe)
        if info["dense"] and not info["samples_gradient"]:
            return _Choice("dense", "", choice.reason)
        shape = _matrix_shape(module)
        taps = shape[2] * shape[3] if len(shape) == 4 else 1
        groups = getattr(module, "groups", 1)
        problem = _core.objection(shape[0], shape[1], taps, groups, choice.recipe, choice.pattern)
        return _Choice("dense", "", problem) if problem else choice


def sparsify_(
    model: torch.nn.Module,
    recipe: Recipe = "s-ste",
    pattern: str = "2:4",
    *,
    filter: Optional[Callable[[str, torch.nn.Module], bool]] = None,
    rules: Iterable[Rule] = (),
    total_steps: int = 0,
    first_and_last_dense: bool = True,
    mask: Optional[str] = None,
    seed: int = 0,
    plan: str = "auto",
    micro_batches: int = 1,
    telemetry: bool = False,
) -> Report:
    """Turns the ``nn.Linear`` and ``nn.Conv2d`` of a model into layers that train N:M sparse.

    In place: parameters, names, hooks and references stay. ``Conv1D`` of Hugging Face's GPT-2 is a
    linear layer too. The first and the last layer stay dense unless a rule or the filter names them.

    Args:
        recipe: one of `weft.recipes()`, with parts in place of its own: ``"s-ste+backward=bi-mask"``;
            or a `weft.Method`, whose mask is a function of yours.
        pattern: ``"2:4"``, or shared by rows, ``"2:4x2"``.
        filter: called with name and module; true for the layers that become sparse.
        rules: ``(regular expression, recipe[, pattern])``; the first that matches a whole name counts.
        total_steps: optimizer steps of the run, for recipes whose schedule is made of shares of it.
        mask: ``"nonzero"`` keeps the zeros that the weights have (with ``recipe="static"``), to tune
            a model that was pruned or converted.
        plan: ``"auto"`` measures dense against sparse in the first steps and keeps the faster;
            ``"sparse"`` and ``"dense"`` force it.
        micro_batches: forward passes per optimizer step, for the planner.

    Returns a report: layer, recipe, pattern, path and the reason. Then make the optimizer, and call
    `weft.attach(model, optimizer)`.
    """
    if layers_of(model):
        raise Error("the model is sparsified already: densify_ it first")
    refuse_wrapped(model)
    if mask not in (None, "nonzero"):
        raise Error(f"mask '{mask}' is not known: it can be 'nonzero' or left out")
    if mask == "nonzero":
        if isinstance(recipe, Method) or not recipe.startswith("static"):
            raise Error(
                f"mask='nonzero' goes with recipe 'static', which keeps a mask; not '{recipe}'"
            )
        if "dense_head" not in recipe:
            recipe += "+dense_head=0"  # static training from scratch begins dense, to find its mask
    choices = _Choices(recipe, pattern, rules, filter, total_steps, first_and_last_dense)
    parents = dict(model.named_modules())
    tied = _TiedWeights(model)
    places = list(_places(model))
    products = [m for _, m in places if _sparse_class(m) is not None]
    planner = Planner(plan)
    report = Report()
    planned: list[tuple[torch.nn.Module, Settings]] = []
    for number, (name, module) in enumerate(places):
        problem = _cannot_compute(name, module, parents)
        if problem:
            report.append(LayerReport(name, _kind(module), "dense", "", "torch", problem))
            continue
        other = tied.other_owner(module)
        if other:
            choice = _Choice("dense", "", f"tied: shares its weight with {other}")
        else:
            choice = choices.of(
                name, module, module is places[0][1], bool(products) and module is products[-1]
            )
        if choice.recipe == "dense":
            report.append(LayerReport(name, _kind(module), "dense", "", "torch", choice.reason))
            continue
        settings = Settings(
            choice.recipe, choice.pattern, total_steps, seed, number, name, micro_batches,
            telemetry, choice.method, mask == "nonzero",
        )  # fmt: skip
        planned.append((module, settings))
        path = "packed" if _is_fp32_on_cpu(_weight(module)) else "plain"
        report.append(
            LayerReport(name, _kind(module), choice.name, choice.pattern, path, choice.reason)
        )
    if not planned:
        why = f": {report[0].name or 'the model'}: {report[0].reason}" if report else ""
        raise Error(f"the model has no layer to sparsify{why}")
    for module, settings in planned:
        module.__class__ = _sparse_class(module)
        module._sparsify(settings, planner)  # type: ignore[operator]
        if settings.keep_zeros:  # now, so that weights with too few zeros are refused here
            module._weft.keep_zeros(module._matrix(module.weight))  # type: ignore[operator, union-attr]
    _leave_fast_paths(model)
    if any(r.path == "plain" for r in report.sparse):
        report.note = (
            "plain: torch's own operators on masked weights; right, and no faster than dense"
        )
    return report


def _is_fp32_on_cpu(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32


def _leave_fast_paths(
    model: torch.nn.Module, kind: type[torch.nn.Module] = nn.SparseLayer
) -> None:
    """nn.TransformerEncoderLayer in eval() reads the weights of its layers and does not call them.

    It says that it takes that path for relu and gelu only: what it knows of its activation, which
    nothing else reads, is taken away where it has a layer of this kind.
    """
    for module in model.modules():
        if not any(isinstance(inner, kind) for inner in module.modules()):
            continue
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        if isinstance(module, torch.nn.TransformerEncoder):
            module.enable_nested_tensor = False
            module.use_nested_tensor = False


def densify_(model: torch.nn.Module) -> torch.nn.Module:
    """Leaves plain torch layers with the sparse weights, in the same Parameters. Returns the model."""
    if any(is_sharded(p) for p in model.parameters()):
        raise Error(
            "the parameters of a sharded model cannot be replaced: load "
            "weft.dense_state_dict(model) into a dense model instead"
        )
    for _, layer in layers_of(model):
        layer._densify()
        layer.__class__ = layer.dense_class
    return model


def dense_state_dict(model: torch.nn.Module) -> dict[str, Any]:
    """The keys of the model before sparsify_, and the sparse weights.

    Of a model that fully_shard has sharded, whole tensors on every rank: all ranks must call.
    """
    state = {name: whole(value) for name, value in model.state_dict().items()}
    for name, layer in layers_of(model):
        prefix = f"{name}." if name else ""
        state.pop(prefix + "_extra_state", None)
        state.pop(prefix + "scores", None)
        state[prefix + "weight"] = layer.effective_weight()
    return state


def weights_changed(model: torch.nn.Module) -> None:
    """After editing weights by hand: masks and packs are made again at the next pass."""
    for _, layer in layers_of(model):
        layer.weights_changed()


def telemetry(model: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """By layer: density, retained magnitude, flip rate, how its products ran and for how long.

    Seconds are those of the core, summed since the model was sparsified: masks, packing, and the
    products ``fwd``, ``bwd_x`` and ``bwd_w``.

    Of a model that fully_shard has sharded, all ranks must call.
    """
    found = {}
    for name, layer in layers_of(model):
        values = Engine.host(layer._matrix(whole(layer.weight)))
        found[name] = layer._weft.core.telemetry(values.data_ptr())
    return found
