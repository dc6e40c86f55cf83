"""Linear and Conv2d layers that train by a recipe: subclasses of torch's own.

``weight`` and ``bias`` are the Parameters of torch's layer, under its names. The state of the recipe
(masks, β, permutation, counters) is extra state, one uint8 tensor; lbc's ``scores`` are a Parameter.
`weft.sparsify_` turns the layers of a model into these; they can be made by hand too::

    layer = weft.nn.Linear(768, 3072, recipe="t-sr-ste", pattern="2:4", total_steps=1000)
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import _core
from ._core import Error
from .distributed import is_sharded, local_part, whole
from .engine import Engine, Geometry, Planner, Settings
from .method import Recipe, split
from . import ops


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _settings(recipe: Recipe, pattern: str, total_steps: int, seed: int) -> Settings:
    name, method = split(recipe)
    return Settings(name, pattern, total_steps, seed, method=method)


class SparseLayer(torch.nn.Module):
    """What both have in common."""

    dense_class: type  # what it was before sparsify_
    weight: Tensor
    scores: Optional[Tensor]  # of recipes that learn some
    _weft: Engine
    _clock: Tensor  # which pass was begun last: the key of the operators
    _no_key: Tensor  # of passes without gradients, which `prepare` does not begin

    def _geometry(self) -> Geometry:
        raise NotImplementedError

    def _matrix(self, tensor: Tensor) -> Tensor:
        """A view of a weight, gradient or mask as the core has it, outputs first; and back."""
        return tensor

    def _sparsify(self, settings: Settings, planner: Planner) -> None:
        """The recipe begins here."""
        # Not submodules, buffers or parameters: torch is not to move, broadcast or list them.
        engine = Engine(self._geometry(), settings, planner)
        object.__setattr__(self, "_weft", engine)
        object.__setattr__(self, "_clock", torch.zeros(Engine.KEY, dtype=torch.int64))
        object.__setattr__(self, "_no_key", torch.full((Engine.KEY,), -1, dtype=torch.int64))
        if engine.core.score_shape is not None:
            self.register_parameter("scores", torch.nn.Parameter(self._first_scores()))
        else:
            object.__setattr__(self, "scores", None)

    def _first_scores(self) -> Tensor:
        first = torch.empty(self._weft.core.score_shape, dtype=torch.float32)
        self._weft.core.first_scores(first.data_ptr())
        return first.to(self.weight.device, self.weight.dtype)

    @torch.no_grad()
    def _begin_again(self) -> None:
        """The recipe begins anew, with other weights. The scores stay the optimizer's Parameter."""
        self._weft.begin()
        if self.scores is None:
            return
        if is_sharded(self.scores):
            self.scores.to_local().copy_(local_part(self._first_scores(), self.scores))  # type: ignore[attr-defined]
        else:
            self.scores.copy_(self._first_scores())

    def _densify(self) -> None:
        with torch.no_grad():
            self.weight.copy_(self.effective_weight())
        if self.scores is not None:
            del self.scores
        else:
            del self.__dict__["scores"]
        del self.__dict__["_weft"], self.__dict__["_clock"], self.__dict__["_no_key"]

    def _key(self, weight: Tensor) -> Tensor:
        """Begins a pass: finds the masks that are due, and says which sample it draws."""
        # A graph is traced with gathered weights, and torch 2.4 cannot trace the question.
        if not torch.compiler.is_compiling() and is_sharded(self.weight):
            raise Error(
                f"{self._weft.settings.label or 'a layer'}: its weight is sharded in a forward "
                "pass: call the module given to fully_shard, which gathers it (tensor parallel is "
                "not supported)"
            )
        if not torch.is_grad_enabled():
            return self._no_key
        ops.begin(weight, self.scores, self._clock, self._weft.handle, self.training)
        return self._clock.clone()

    def _product(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _narrow_product(self, x: Tensor) -> Tensor:
        """Under autocast: in bf16 where this CPU has a unit for it, otherwise in fp32.

        Never on torch's own bf16 products, which are many times slower than fp32 without a unit.
        """
        dtype = torch.get_autocast_dtype("cpu")
        narrow = dtype == torch.bfloat16 and self._weft.narrow
        with torch.autocast("cpu", enabled=False):
            return self._product(x.to(dtype if narrow else torch.float32)).to(dtype)

    # ---- what users ask for

    @property
    def recipe(self) -> str:
        method = self._weft.settings.method
        return self._weft.settings.recipe if method is None else repr(method)

    pattern = property(lambda self: self._weft.settings.pattern)
    step = property(lambda self: self._weft.core.step)

    @property
    def path(self) -> str:
        """"packed": weft's kernels compute; "plain": torch's operators, on masked operands."""
        like = torch.empty(0, dtype=self.weight.dtype)
        return "packed" if self._weft.is_packed(like, self.weight) else "plain"

    def _evaluate(self) -> Tensor:
        """Brings the state up to date; returns the whole weight. If sharded, all ranks call."""
        weight = self._matrix(whole(self.weight))
        self._weft.begin_pass(weight, None if self.scores is None else whole(self.scores), False)
        return weight

    def effective_weight(self) -> Tensor:
        """W̃ as an evaluation multiplies with it: zero outside the mask.

        Of a sharded layer it is gathered: all ranks must call, and each gets all of it.
        """
        return self._matrix(self._weft.effective(self._evaluate())).contiguous()

    def mask(self) -> Optional[Tensor]:
        """The forward mask, of the shape of the weight; None: the layer is dense at this step.

        Of a sharded layer: all ranks must call, and each gets all of it.
        """
        weight = self._evaluate()
        found = self._weft.core.mask()
        if found is None:
            return None
        return self._matrix(torch.from_numpy(found).view(weight.shape)).contiguous()

    def give_mask(self, mask: Tensor) -> None:
        """Sets the mask that a recipe with a fixed mask (static) keeps, or others begin with."""
        own = self._matrix(mask.detach()).to("cpu", torch.bool).contiguous()
        self._weft.core.give_mask(own.numpy())

    def weights_changed(self) -> None:
        """The weights were loaded or edited: masks and packs are made again at the next pass."""
        self._weft.weights_changed()

    # ---- saving and loading

    def get_extra_state(self) -> Tensor:
        self._weft.settle(self._matrix(self.weight), self.scores)
        return torch.frombuffer(bytearray(self._weft.saved_state()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        self._weft.load_state(bytes(state.cpu().numpy().tobytes()))

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        missing: list[str] = []
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing, unexpected_keys, error_msgs
        )
        # A dense checkpoint has weights only: the recipe starts again with them.
        own = {prefix + "_extra_state", prefix + "scores"}
        missing_keys.extend(key for key in missing if key not in own)
        if prefix + "_extra_state" not in state_dict:
            self._begin_again()
            _say_once(self._weft, "the checkpoint is dense: the state of the recipe starts again")

    def __getstate__(self) -> dict[str, Any]:  # of copies and pickles
        self._weft.settle(self._matrix(self.weight), self.scores)
        return self.__dict__.copy()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={self.recipe}, pattern={self.pattern}"


_said: set[str] = set()


def _say_once(engine: Engine, message: str) -> None:
    import warnings

    if message not in _said:
        _said.add(message)
        warnings.warn(f"weft: {message} ({engine.settings.label or 'a layer'} and others)")


def _under_autocast(x: Tensor, weight: Tensor) -> bool:
    return weight.device.type == "cpu" and torch.is_autocast_enabled("cpu") and x.is_floating_point()


class _LinearProduct(SparseLayer):
    def forward(self, x: Tensor) -> Tensor:
        ins = self._weft.geometry.ins
        if x.dim() == 0 or x.shape[-1] != ins:
            raise Error(
                f"{self._weft.settings.label or 'Linear'}: an input of {list(x.shape)} for a layer "
                f"of {ins} features"
            )
        if _under_autocast(x, self.weight):
            return self._narrow_product(x)
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        key = self._key(self.weight)
        return ops.product(
            ops.linear, x, self.weight, self.bias, self.scores, key, self._weft.handle
        )


class Linear(_LinearProduct, torch.nn.Linear):
    dense_class = torch.nn.Linear

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        recipe: Recipe = "s-ste",
        pattern: str = "2:4",
        total_steps: int = 0,
        seed: int = 0,
    ) -> None:
        torch.nn.Linear.__init__(self, in_features, out_features, bias, device, dtype)
        self._sparsify(_settings(recipe, pattern, total_steps, seed), Planner())

    def _geometry(self) -> Geometry:
        return Geometry(self.out_features, self.in_features)


class TransposedLinear(_LinearProduct):
    """A linear layer with its weight as [ins, outs]: Conv1D of Hugging Face's GPT-2.

    The Parameter stays as it is; the products get a transposed copy of it in every pass.
    """

    nx: int
    nf: int

    def _geometry(self) -> Geometry:
        return Geometry(self.nf, self.nx)

    def _matrix(self, tensor: Tensor) -> Tensor:
        return tensor.t()

    def _product(self, x: Tensor) -> Tensor:
        weight = self.weight.t().contiguous()
        key = self._key(weight)
        return ops.product(
            ops.linear, x, weight, self.bias, self.scores, key, self._weft.handle
        )

    def extra_repr(self) -> str:
        return f"nf={self.nf}, nx={self.nx}, recipe={self.recipe}, pattern={self.pattern}"


def __getattr__(name: str) -> Any:
    """weft.nn.Conv1D is made when it is asked for: transformers is no dependency."""
    if name != "Conv1D":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from transformers.pytorch_utils import Conv1D as Dense

    members = {"dense_class": Dense, "__module__": __name__, "__repr__": torch.nn.Module.__repr__}
    return globals().setdefault("Conv1D", type("Conv1D", (TransposedLinear, Dense), members))


class Conv2d(SparseLayer, torch.nn.Conv2d):
    dense_class = torch.nn.Conv2d

    def __init__(
        self,
        *args: Any,
        recipe: Recipe = "s-ste",
        pattern: str = "2:4",
        total_steps: int = 0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        torch.nn.Conv2d.__init__(self, *args, **kwargs)
        problem = Conv2d.objection(self)
        if problem:
            raise Error(f"a convolution that {problem} cannot be a layer of weft")
        self._sparsify(_settings(recipe, pattern, total_steps, seed), Planner())

    @staticmethod
    def objection(conv: torch.nn.Conv2d) -> str:
        """Why weft cannot compute it, or nothing."""
        if conv.padding_mode != "zeros":
            return f"pads with {conv.padding_mode}"
        if conv.padding == "same" and any(
            d * (k - 1) % 2 for d, k in zip(conv.dilation, conv.kernel_size)
        ):
            return "pads one side more than the other"
        return ""

    def _geometry(self) -> Geometry:
        if self.padding == "same":
            padding = tuple(d * (k - 1) // 2 for d, k in zip(self.dilation, self.kernel_size))
        else:
            padding = (0, 0) if self.padding == "valid" else _pair(self.padding)
        return Geometry(
            self.out_channels, self.in_channels // self.groups, _pair(self.kernel_size),
            _pair(self.stride), _pair(padding), _pair(self.dilation), self.groups,
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3:  # one image
            return self.forward(x.unsqueeze(0)).squeeze(0)
        if x.dim() != 4 or x.shape[1] != self.in_channels:
            raise Error(
                f"{self._weft.settings.label or 'Conv2d'}: an input of {list(x.shape)} for a layer "
                f"of [images, {self.in_channels}, height, width]"
            )
        if _under_autocast(x, self.weight):
            return self._narrow_product(x)
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        g = self._weft.geometry
        key = self._key(self.weight)
        return ops.product(
            ops.conv2d,
            x, self.weight, self.bias, self.scores, key, self._weft.handle,
            list(g.stride), list(g.padding), list(g.dilation), g.groups,
        )  # fmt: skip
