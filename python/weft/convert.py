"""calibrate_and_convert_: a trained PyTorch model becomes N:M with little loss, without training.

Of the inputs of a layer only the Gram matrix is kept (calibration.py),

    G = mean of x xᵀ over samples      [ins, ins], float64; of a convolution [ins * kh * kw, ...]

and `weft.convert_layer` finds the weights W' with the least (W' − W) G (W' − W)ᵀ.

    parallel     one pass over the batches; every layer sees what the dense model feeds it.
                 Memory: the Gram matrices of all layers
    sequential   a pass for each layer (or for layers that read the same tensor, such as q, k and v);
                 a layer sees x', which the converted layers before it put out, and methods that
                 solve aim at what the dense layer makes of the dense x:

                     ‖W'x' − Wx‖² = (W' − W*) G' (W' − W*)ᵀ + const,   W* = W + W D G'⁻¹

                 with D = mean of (x − x') x'ᵀ. Memory: two Gram matrices, and the dense weights
                 beside the converted ones

On MLPs of five converted layers and inputs not seen in calibration, sequential has 0.71 (2:4) and
0.66 (1:4) of the error of parallel, means of eight seeds; with W in place of W*, 0.98 and 1.00.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch import Tensor

from . import _core, arrays, nn
from ._core import Error
from .calibration import Drift, Enough, Inputs, count_rows, evaluating, run_batch, watching
from .progress import Progress
from .sparsify import _cannot_compute, _kind, _KINDS, _places, _TiedWeights, layers_of
from .tables import table

# ---- the report


@dataclass(frozen=True)
class ConvertedLayerReport:
    name: str  # "blocks.0.fc1"
    kind: str  # "linear 768 -> 3072"
    pattern: str  # "2:4"; empty if the layer was left out
    samples: int  # rows of its inputs
    error_before: Optional[float]  # of the mask alone: ‖W'X − WX‖² / ‖WX‖²
    error_after: Optional[float]
    reason: str  # why it was left out; the method, if it was not

    @property
    def converted(self) -> bool:
        return bool(self.pattern)


class ConversionReport(list[ConvertedLayerReport]):
    """What became of every module with a matrix. Prints as a table."""

    @property
    def converted(self) -> list[ConvertedLayerReport]:
        return [layer for layer in self if layer.converted]

    def __str__(self) -> str:
        def number(error: Optional[float]) -> str:
            return "-" if error is None else f"{error:.5f}"

        header = ("layer", "kind", "pattern", "samples", "error before", "error after", "why")
        rows = [
            (r.name, r.kind, r.pattern, str(r.samples), number(r.error_before),
             number(r.error_after), r.reason)
            for r in self
        ]  # fmt: skip
        lines = table(header, rows)
        lines.append(f"{len(self.converted)} of {len(self)} layers are converted")
        return "\n".join(lines)


# ---- what is converted


@dataclass(frozen=True)
class _Settings:
    pattern: str
    method: str
    support: str
    transposable: bool
    damping: float

    @property
    def solves(self) -> bool:
        return self.method in ("adaprune", "sparsegpt")

    @property
    def needs_inputs(self) -> bool:
        return self.method not in ("magnitude", "absorption") or self.support == "wanda"

    @property
    def text(self) -> str:
        return f"{self.method}, support {self.support}" if self.support else self.method

    def check(self) -> None:
        """One conversion of a small layer: throws what is wrong with the method or the pattern."""
        weight = torch.ones(32, 32, dtype=torch.float64)
        self.convert(weight, torch.eye(32, dtype=torch.float64), None, 32)

    def convert(
        self, weight: Tensor, gram: Optional[Tensor], mean: Optional[Tensor], samples: int
    ) -> arrays.ConvertedLayer:
        return arrays.convert_layer(
            weight, gram, self.pattern, self.method, mean=mean, samples=samples,
            support=self.support, transposable=self.transposable, damping=self.damping,
        )  # fmt: skip

    def samples_needed(self, weight: Tensor) -> int:
        """As many as a row keeps weights: with fewer, the solution is one of many."""
        if not self.solves:
            return 1
        keep, group = (int(part) for part in self.pattern.partition("x")[0].split(":"))
        ins = weight.shape[1]
        taps = weight[0, 0].numel() if weight.dim() == 4 else 1
        return taps * (ins // group * keep + min(ins % group, keep))


def _left_out(
    model: torch.nn.Module,
    settings: _Settings,
    filter: Optional[Callable[[str, torch.nn.Module], bool]],
    ends_dense: bool,
) -> Iterator[tuple[str, torch.nn.Module, str]]:
    """Every module with a matrix, and why it is left out; empty: it is converted."""
    parents = dict(model.named_modules())
    tied = _TiedWeights(model)
    places = list(_places(model))
    products = [module for _, module in places if type(module) in _KINDS]
    for name, module in places:
        problem = _cannot_compute(name, module, parents)
        if not problem and module._parameters.get("weight") is None:
            problem = "its weight is computed from other parameters"
        other = "" if problem else tied.other_owner(module)
        if other:
            problem = f"tied: shares its weight with {other}"
        if not problem and filter is not None:
            problem = "" if filter(name, module) else "the filter leaves it out"
        elif not problem and ends_dense and module is places[0][1]:
            problem = "the first layer"
        elif not problem and ends_dense and module is products[-1]:
            problem = "the last layer"
        yield name, module, problem or _unsuited(module, settings)


def _unsuited(module: torch.nn.Module, settings: _Settings) -> str:
    weight = module._parameters["weight"]
    assert weight is not None
    groups = getattr(module, "groups", 1)
    if groups != 1 and settings.needs_inputs:
        return f"a grouped convolution, whose groups have different inputs: no {settings.method}"
    taps = weight[0, 0].numel() if weight.dim() == 4 else 1
    recipe = "transposable" if settings.transposable else "static"
    return _core.objection(weight.shape[0], weight.shape[1], taps, groups, recipe, settings.pattern)


# ---- the conversion


@dataclass
class _Calls:
    """Of one layer, in a pass over all batches."""

    module: torch.nn.Module
    inputs: list[int] = field(default_factory=list)  # a number for every tensor that it read
    samples: int = 0


class _Conversion:
    def __init__(
        self, model: torch.nn.Module, batches: Iterable[Any], settings: _Settings, progress: Progress
    ) -> None:
        self.model = model
        self.batches = batches
        self.settings = settings
        self.progress = progress
        self.done: dict[str, ConvertedLayerReport] = {}
        self._keeps_dense = False
        self._others: list[tuple[Tensor, Tensor]] = []  # converted parameters, and as they were

    def _pass(self, run: Callable[[Any], None], start: float, share: float, what: str) -> int:
        """Runs all batches: ``share`` of the work, after ``start`` of it. Returns their number."""
        count = len(self.batches) if isinstance(self.batches, Sized) else 0
        number = 0
        for number, batch in enumerate(self.batches, 1):
            run(batch)
            part = number / count if count else 0.5
            self.progress.reach(start + share * min(1.0, part), f"{what}, batch {number}")
        if number == 0:
            again = "" if start == 0.0 else " when it is read again"
            raise Error(f"batches is empty{again}: the inputs of the layers are not known")
        return number

    def parallel(self, layers: dict[str, torch.nn.Module]) -> None:
        inputs: dict[str, Inputs] = {}
        names = {module: name for name, module in layers.items()}

        def watch(module: torch.nn.Module, x: Tensor) -> None:
            if _grouped(module):
                return
            name = names[module]
            if name not in inputs:
                inputs[name] = Inputs(_weight(module)[0].numel())
            inputs[name].add(module, x)

        with watching({module: watch for module in names}):
            self._pass(lambda batch: run_batch(self.model, batch), 0.0, 0.5, "calibration")
        inputs = {name: own for name, own in inputs.items() if own.samples}
        self._require_samples({name: own.samples for name, own in inputs.items()}, layers)
        for name, own in inputs.items():
            _require_finite(name, own)
        for number, (name, module) in enumerate(layers.items()):
            self.progress.reach(0.5 + 0.5 * number / len(layers), name)
            if name in inputs or _grouped(module):
                self._convert(name, module, inputs.pop(name, None))

    def sequential(self, layers: dict[str, torch.nn.Module]) -> None:
        self._keeps_dense = self.settings.solves
        calls, batches = self._discover(layers)
        self._require_samples({name: c.samples for name, c in calls.items()}, layers)
        groups = _read_together(calls)
        share = 1 / (len(groups) + 1)
        for number, names in enumerate(groups, 1):
            first = calls[names[0]]
            inputs, drift = None, None
            if not _grouped(first.module):
                once = len(first.inputs) == batches
                inputs, drift = self._gather(first.module, once, number * share, share, names[0])
                _require_finite(names[0], inputs)
            for name in names:
                self._convert(name, layers[name], inputs, drift)

    def _gather(
        self, module: torch.nn.Module, once: bool, start: float, share: float, name: str
    ) -> tuple[Inputs, Optional[Drift]]:
        """What a layer reads now and how that differs from the dense model.

        ``once``: it is called once per batch, so that the rest of the model need not run.
        """
        cols = _weight(module)[0].numel()
        inputs = Inputs(cols)
        drift = Drift(cols) if self._others and self.settings.solves else None
        read: list[Tensor] = []

        def watch(module: torch.nn.Module, x: Tensor) -> None:
            read.append(x.detach().clone())  # the model may change it in place
            if once:
                raise Enough

        def run(batch: Any) -> None:
            if drift is not None:
                with self._as_it_was():
                    run_batch(self.model, batch)
            dense = read.copy()
            read.clear()
            run_batch(self.model, batch)
            for x in read:
                inputs.add(module, x)
            if drift is not None:
                drift.add(module, dense, read)
            read.clear()

        with watching({module: watch}):
            self._pass(run, start, share, name)
        return inputs, drift if drift is not None and drift.comparable else None

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """The dense model."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for parameter, other in self._others:
            parameter.data, other.data = other.data, parameter.data

    def _discover(self, layers: dict[str, torch.nn.Module]) -> tuple[dict[str, _Calls], int]:
        """The layers in the order of their first calls, and what each call reads."""
        names = {module: name for name, module in layers.items()}
        calls: dict[str, _Calls] = {}
        last: list[Any] = [None, 0, 0]  # the tensor that was read last, its version, its number

        def watch(module: torch.nn.Module, x: Tensor) -> None:
            version = None if x.is_inference() else x._version  # x += h leaves the object the same
            if x is not last[0] or version is None or version != last[1]:
                last[:] = x, version, last[2] + 1
            own = calls.setdefault(names[module], _Calls(module))
            own.inputs.append(last[2])
            own.samples += count_rows(module, x)

        share = 1 / (len(layers) + 1)
        with watching({module: watch for module in names}):
            batches = self._pass(
                lambda batch: run_batch(self.model, batch), 0.0, share, "order of layers"
            )
        return {name: own for name, own in calls.items() if own.samples}, batches

    def _require_samples(self, samples: dict[str, int], layers: dict[str, torch.nn.Module]) -> None:
        """Before any weight changes."""
        if not samples and not any(_grouped(module) for module in layers.values()):
            raise Error(f"no batch reaches a layer to convert: {next(iter(layers))} and others")
        for name, count in samples.items():
            needed = 0 if _grouped(layers[name]) else self.settings.samples_needed(
                _weight(layers[name])
            )  # fmt: skip
            if count < needed:
                raise Error(
                    f"{name}: the batches give it {count} samples, and {self.settings.method} at "
                    f"{self.settings.pattern} needs {needed}, as many as a row keeps weights: pass "
                    "more batches, or leave it out by filter"
                )

    def _convert(
        self,
        name: str,
        module: torch.nn.Module,
        inputs: Optional[Inputs],
        drift: Optional[Drift] = None,
    ) -> None:
        settings, weight, bias = self.settings, _weight(module), module._parameters.get("bias")
        host = weight.detach().to("cpu", torch.float64).contiguous()
        free_bias = bias is not None and settings.method == "adaprune"
        gram = mean = shift = None
        samples = 0
        if inputs is not None:
            samples = inputs.samples
            gram = inputs.second / samples
            mean = inputs.first / samples if free_bias else None
            if drift is not None:
                host, shift = drift.target(host, inputs, free_bias, settings.damping)
        try:
            done = settings.convert(host, gram, mean, samples)
        except Error as problem:
            raise Error(f"{name}: {problem}") from problem
        if self._keeps_dense:
            self._others += [(p, p.detach().clone()) for p in (weight, bias) if p is not None]
        weight.copy_(done.weight)
        for change in (shift, done.bias_change):
            if change is not None and bias is not None:
                bias.add_(change.to(bias.device, bias.dtype))
        self.done[name] = ConvertedLayerReport(
            name, _kind(module), settings.pattern, samples, done.error_before, done.error_after,
            settings.text,
        )  # fmt: skip


def _weight(module: torch.nn.Module) -> Tensor:
    weight = module._parameters["weight"]
    assert weight is not None
    return weight


def _grouped(module: torch.nn.Module) -> bool:
    return getattr(module, "groups", 1) != 1


def _require_finite(name: str, inputs: Inputs) -> None:
    if not torch.isfinite(inputs.second).all():
        raise Error(f"{name}: its inputs have NaN or infinity")


def _read_together(calls: dict[str, _Calls]) -> list[list[str]]:
    """Layers whose inputs are the same tensors, in the order of first calls."""
    groups: dict[Any, list[str]] = {}
    for name, own in calls.items():
        geometry: Any = None
        if isinstance(own.module, torch.nn.Conv2d):
            g = nn.Conv2d._geometry(own.module)  # type: ignore[arg-type]
            geometry = g.kernel, g.stride, g.padding, g.dilation, g.groups
        groups.setdefault((tuple(own.inputs), geometry), []).append(name)
    return list(groups.values())


def _check_batches(batches: Any, sequential: bool) -> None:
    if batches is None or isinstance(batches, (Tensor, Mapping, str)):
        what = "None" if batches is None else f"one {type(batches).__name__}"
        raise Error(f"batches is {what}: pass a list of batches or a DataLoader, such as [x]")
    if not isinstance(batches, Iterable):
        raise Error(f"batches is a {type(batches).__name__}: pass a list of batches or a DataLoader")
    if sequential and iter(batches) is batches:
        raise Error(
            "sequential=True runs the batches once for every layer, and this iterator can be read "
            "only once: pass a list of batches or a DataLoader"
        )


def calibrate_and_convert_(
    model: torch.nn.Module,
    batches: Iterable[Any],
    pattern: str = "2:4",
    method: str = "adaprune",
    *,
    sequential: bool = False,
    support: Optional[str] = None,
    transposable: bool = False,
    filter: Optional[Callable[[str, torch.nn.Module], bool]] = None,
    first_and_last_dense: bool = True,
    damping: float = 0.01,
    progress: bool = True,
) -> ConversionReport:
    """Prunes the ``nn.Linear`` and ``nn.Conv2d`` of a trained model to N:M, in place.

    The batches run through the model in ``eval()`` without gradients, and every layer gets weights
    that change its output on them the least; nothing is trained. A few hundred samples do. The first
    and the last layer stay dense unless ``filter`` is given.

    Args:
        batches: tensors, tuples or lists (``model(*batch)``) or dicts (``model(**batch)``).
        pattern: ``"2:4"``, or shared by rows, ``"2:4x2"``.
        method: ``adaprune`` (least squares), ``sparsegpt``, ``wanda``, ``absorption``,
            ``magnitude``: docs/convert.md compares them.
        sequential: a layer is calibrated with what the converted layers before it put out, and makes
            up for their errors (adaprune and sparsegpt). Better, and slower: needs batches that can
            be read again, two passes over them for each layer, and a copy of the dense weights.
        support: which weights ``adaprune`` and ``absorption`` keep: ``magnitude``, ``wanda`` or,
            with adaprune, ``sparsegpt``, which is its default: the best in measurements.
        transposable: masks that are N:M along outputs too.
        filter: called with name and module; true for the layers to convert.
        damping: of sparsegpt, as a share of the mean diagonal of G.
        progress: on standard error: a bar, or a line every ten seconds if it is no terminal.

    Returns a report: errors of every layer before and after its values were recovered, on the inputs
    it was calibrated with (sequential: against W*, see `help(weft.convert)`), and why others were
    left out. With adaprune the bias takes its part of the error. Batch normalisation keeps its
    statistics: estimate them again after large changes (docs/convert.md).

    >>> model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
    >>> report = calibrate_and_convert_(model, [torch.randn(32, 16) for _ in range(4)])
    >>> bool(arrays.check(model[1].weight, "2:4")), [r.converted for r in report]
    (True, [False, True, False])

    Then fine-tune it (``sparsify_(model, "static", mask="nonzero")``), or `pack_` it.
    """
    if layers_of(model):
        raise Error("the model is sparsified: densify_ it first")
    _check_batches(batches, sequential)
    kept_by = _core.support_of(method, support or "")
    settings = _Settings(pattern, method, kept_by, transposable, damping)
    settings.check()
    places = list(_left_out(model, settings, filter, first_and_last_dense))
    layers = {name: module for name, module, problem in places if not problem}
    if not layers:
        why = next((f": {name or 'the model'}: {problem}" for name, _, problem in places), "")
        raise Error(f"the model has no layer to convert{why}")
    with evaluating(model), Progress("convert", shown=progress) as shown:
        conversion = _Conversion(model, batches, settings, shown)
        (conversion.sequential if sequential else conversion.parallel)(layers)
    report = ConversionReport()
    for name, module, problem in places:
        left = ConvertedLayerReport(
            name, _kind(module), "", 0, None, None, problem or "no batch reaches it"
        )
        report.append(conversion.done.get(name, left))
    return report
