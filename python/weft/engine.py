"""Engine: the core layer of one module, and what it knows of the weights it last saw.

The module owns the tensors; the core is called with addresses. The weights belong to the optimizer,
so the engine must know when they are other ones:

    count_step()       the optimizer has moved them (weft.attach)
    weights_changed()  they were loaded or edited
    a fingerprint      a sample of the weights, compared once per pass, catches the rest

What follows from new weights (masks, packs) is made at the next pass, from the weights as that pass
sees them: under FSDP only then all of them are there.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass, replace
from typing import Any, Optional

import torch
from torch import Tensor

from . import _core
from ._core import Error
from .distributed import Ranks
from .method import Method


class Planner:
    """Decides dense or sparse for the layers of one model, by what the first steps measure.

    ``mode`` is "auto", "dense" or "sparse". Copies and pickles start with an empty plan.
    """

    def __init__(self, mode: str = "auto") -> None:
        self.mode = mode
        self.core = _core.Planner(mode)

    def __getstate__(self) -> dict[str, Any]:
        return {"mode": self.mode}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["mode"])  # type: ignore[misc]


@dataclass
class Settings:
    recipe: str = "s-ste"
    pattern: str = "2:4"
    total_steps: int = 0
    seed: int = 0
    number: int = 0  # of the layer in the model: tells its random numbers from those of others
    label: str = ""
    micro_batches: int = 1
    telemetry: bool = False
    method: Optional[Method] = None  # finds the masks, in place of the recipe
    keep_zeros: bool = False  # the mask is what of the weights is not zero


@dataclass(frozen=True)
class Geometry:
    """Of a linear layer kernel is None."""

    outs: int
    ins: int  # per group of channels
    kernel: Optional[tuple[int, int]] = None
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1] if self.kernel else 1

    def make_core(self) -> Any:
        if self.kernel is None:
            return _core.LinearLayer(self.outs, self.ins)
        return _core.ConvLayer(
            self.ins * self.groups, self.outs, self.kernel, self.stride, self.padding,
            self.dilation, self.groups,
        )  # fmt: skip


_handles = itertools.count(1)
_engines: "weakref.WeakValueDictionary[int, Engine]" = weakref.WeakValueDictionary()


def engine_of(handle: int) -> "Engine":
    """Operators name their layer by a number, which is all that a graph can hold."""
    engine = _engines.get(handle)
    if engine is None:
        raise Error("the module of this layer is gone: keep the model while its graph is in use")
    return engine


class Engine:
    KEY = 5  # int64 numbers of a key: seed, step, call, first token, stamp

    def __init__(self, geometry: Geometry, settings: Settings, planner: Planner) -> None:
        self.geometry = geometry
        self.settings = settings
        self.planner = planner
        self.attached = False  # an optimizer reports its steps
        self.ranks: Optional[Ranks] = None  # of the attachment: None before it
        self.tokens = 0  # of the last gradient of the weights; in units that are sampled together
        self.unit = 1
        self.calls = 0  # of kernels and of their plain counterparts, to see that a layer really ran
        self._start()

    def _start(self) -> None:
        self.handle = next(_handles)
        _engines[self.handle] = self
        self.core = self.geometry.make_core()
        # Whether autocast to bfloat16 multiplies in bf16: where the CPU has a unit for it. Without
        # one fp32 kernels are faster, and convolutions have no others.
        self.narrow = self.geometry.kernel is None and _core.tile_unit() != "none"
        self.begin()

    def begin(self) -> None:
        """The recipe begins at step 0: its masks come with the weights of the next pass."""
        s = self.settings
        self.core.configure(
            s.recipe, s.pattern, s.total_steps, s.seed, s.number, s.label, s.micro_batches,
            0, 1, s.telemetry, self.planner.core,
        )  # fmt: skip
        self.forget()

    def forget(self) -> None:
        """Nothing is known of the weights."""
        self._fingerprint: Optional[int] = None
        self._pending = 0  # steps that were counted, and that the state does not follow yet
        self._uncounted: Optional[bytes] = None  # the state before them, if weights are sharded
        self._changed = False  # the weights are said to be other ones
        self._learned = False  # a gradient was computed from the weights as they are
        # Step of the last mask of a user's method; None: its first is still to come. A saved state
        # does not say it: a mask that it has is older than its step.
        self._asked = max(0, self.core.step - 1) if self.core.sparse else None
        self._operand: Optional[tuple[int, Tensor]] = None  # of a user's method, and its stamp
        self._opened: Optional[list[int]] = None  # the key of a pass without its product yet
        # The mask of weights with zeros is still to be read from them.
        self._zeros_due = self.settings.keep_zeros and self.core.mask() is None

    # ---- copies

    def __getstate__(self) -> dict[str, Any]:
        return {
            "geometry": self.geometry,
            "settings": self.settings,
            "planner": self.planner,
            "state": self.saved_state(),
            "asked": self._asked,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.geometry, self.planner = state["geometry"], state["planner"]
        self.settings = replace(state["settings"])
        self.attached = False
        self.ranks = None
        self.tokens, self.unit = 0, 1
        self.calls = 0
        self._start()
        self.load_state(state["state"])
        self._asked = state["asked"]

    # ---- saving

    def settle(self, weight: Tensor, scores: Optional[Tensor]) -> None:
        """Before the state is saved: it follows the last step.

        Not of sharded weights: gathering them takes all ranks, and a state_dict() is made by one.
        """
        if self._pending and self._uncounted is None:
            self.follow(weight, scores)

    def saved_state(self) -> bytes:
        """Two numbers (bytes of the state, steps still to be counted), the state, and zeros.

        The zeros make it as long before the first pass as later: torch.distributed.checkpoint loads
        into tensors of the sizes that were saved.
        """
        state: bytes = self.core.state() if self._uncounted is None else self._uncounted
        pending = 0 if self._uncounted is None else self._pending
        numbers = len(state).to_bytes(8, "little") + pending.to_bytes(8, "little")
        return numbers + state.ljust(self._longest_state(), b"\0")

    def _longest_state(self) -> int:
        """Both masks, both permutations and lbc's candidates, with their shapes, and counters."""
        geometry = self.geometry
        words = 2 * geometry.outs * -(-geometry.ins * geometry.taps // 64)
        if self.core.score_shape is not None:
            cells, groups, candidates = self.core.score_shape
            words += cells * groups * -(-candidates // 64)
        return 8 * (words + 2 * geometry.outs + 36)

    def load_state(self, saved: bytes) -> None:
        size, pending = (int.from_bytes(saved[i : i + 8], "little") for i in (0, 8))
        if len(saved) < 16 or size > len(saved) - 16 or pending > 2**20:
            raise Error(f"{self.settings.label or 'a layer'}: the saved state is damaged")
        state = saved[16 : 16 + size]
        self.core.load_state(state)
        self.forget()
        self._uncounted = state if pending else None
        self._pending = pending
        for _ in range(pending):
            self.core.count_step()

    # ---- weights

    @staticmethod
    def host(tensor: Tensor) -> Tensor:
        """As the core takes it: fp32, on the CPU, contiguous."""
        return tensor.detach().to("cpu", torch.float32).contiguous()

    def count_step(self, sharded: bool = False) -> None:
        if sharded and not self._pending:
            self._uncounted = self.core.state()
        self.core.count_step()
        self._pending += 1
        self._learned = False

    def weights_changed(self) -> None:
        self._changed = True

    def follow(self, weight: Tensor, scores: Optional[Tensor]) -> None:
        """Brings masks and packs in line with the weights as they are."""
        values = self.host(weight)
        own = None if scores is None else self.host(scores)
        addresses = values.data_ptr(), 0 if own is None else own.data_ptr()
        fingerprint = self.core.fingerprint(addresses[0])
        moved = self._fingerprint is not None and fingerprint != self._fingerprint
        if self._pending:
            self.core.bring_up_to_date(*addresses)
            self._pending, self._uncounted = 0, None
            self._changed = False
        elif self._changed or moved:
            if moved and not self._changed and self._learned and not self.attached:
                raise Error(
                    f"{self.settings.label or 'a layer'}: an optimizer moved the weights, and weft "
                    "was not told: call weft.attach(model, optimizer) before the first step"
                )
            self.core.weights_changed(*addresses)
            self._changed = False
            if self.settings.method is not None and self.settings.method.every > 0:
                self._asked = None
        self._fingerprint = fingerprint

    def keep_zeros(self, weight: Tensor) -> None:
        """Gives the core the mask that the zeros of the weights are."""
        nonzero = (self.host(weight) != 0).numpy()
        found = _core.count_groups(nonzero, self.settings.pattern, False)
        if found["violations"]:
            raise Error(
                f"{self.settings.label or 'a layer'}: {found['violations']} groups have more "
                f"non-zeros than {self.settings.pattern} keeps; the first at (out, in, tap) = "
                f"{found['first_violation']}"
            )
        self.core.give_mask(nonzero)
        self._zeros_due = False

    def begin_pass(self, weight: Tensor, scores: Optional[Tensor], training: bool) -> None:
        self.follow(weight, scores)
        if self._zeros_due:
            self.keep_zeros(weight)
        values = self.host(weight)
        own = None if scores is None else self.host(scores)
        self.core.begin_pass(values.data_ptr(), 0 if own is None else own.data_ptr(), training)
        if self.settings.method is not None:
            self._ask_method(self.settings.method, weight, training)

    def _ask_method(self, method: Method, weight: Tensor, training: bool) -> None:
        """The mask of a user's method, if it is due, in place of the one that the core found."""
        if not self.core.sparse:  # a dense head or tail
            self._asked = None
        elif self._asked is None or (training and method.is_due(self._asked, self.core.step)):
            mask = method.find_mask(weight, self.settings.label)
            try:
                self.core.give_mask(mask.numpy())
            except Error as problem:
                raise Error(f"the mask function of '{method.name}': {problem}") from None
            self._asked = self.core.step

    def values(self, weight: Tensor) -> Tensor:
        """What the products mask and multiply with: the weight, or a user's operand made of it."""
        method = self.settings.method
        if method is None or method.operand is None or not self.core.sparse:
            return weight
        stamp = self.core.stamp  # another one after every step and with every mask
        last = self._operand
        if last is None or last[0] != stamp or last[1].dtype != weight.dtype:
            mask = torch.from_numpy(self.core.mask()).view(weight.shape).to(weight.device)
            last = stamp, method.find_operand(weight, mask, self.settings.label)
            self._operand = last
        return last[1]

    def open_pass(self) -> list[int]:
        """The key of the pass that was begun. Its product finds it begun, once."""
        self._opened = [*self.core.next_pass(), self.core.stamp]
        return self._opened

    def enter_pass(self, key: list[int]) -> bool:
        """Whether the pass of a key is begun. If not, the weights may be other ones by now."""
        opened, self._opened = self._opened, None
        return opened == key

    def require_stamp(self, key: list[int]) -> None:
        if key[4] != self.core.stamp:
            raise Error(
                f"a backward pass through {self.settings.label or 'a layer'} after its weights or "
                "masks have changed: run the forward pass again after every optimizer step"
            )
        self._learned = True

    def first_token(self, g: Tensor) -> int:
        """Of the gradient of a pass, in the batch of all ranks: it chooses the random numbers."""
        self.tokens = g.numel() // max(1, self.geometry.outs)
        if self.geometry.kernel is None:
            self.unit = int(self.core.sample_group())
        else:  # groups begin with every image
            self.unit = g.shape[2] * g.shape[3]
        return 0 if self.ranks is None else self.ranks.first_token(self.tokens, self.unit)

    def is_packed(self, x: Tensor, weight: Tensor) -> bool:
        """Whether weft's kernels compute; if not, torch's operators do, on masked operands."""
        return (
            weight.device.type == "cpu"
            and weight.dtype == torch.float32
            and (x.dtype == torch.float32 or self.is_narrow(x))
            and weight.is_contiguous()
            and not self.plain
        )

    def is_narrow(self, x: Tensor) -> bool:
        """Whether x makes weft's kernels multiply in bf16."""
        return self.narrow and x.dtype == torch.bfloat16

    plain = False  # for tests: leave weft's kernels out

    def effective(self, weight: Tensor) -> Tensor:
        """W̃ as the state has it, in the dtype and on the device of the weight."""
        if not self.core.sparse:
            return weight.detach().clone()
        wide = weight.dtype == torch.float64
        dtype = torch.float64 if wide else torch.float32
        values = self.values(weight).detach().to("cpu", dtype).contiguous()
        out = torch.empty_like(values)
        self.core.effective(values.data_ptr(), out.data_ptr(), wide)
        return out.to(weight.device, weight.dtype)

    def mask(self, like: Tensor, *, backward: bool = False) -> Optional[Tensor]:
        """As ones and zeros of a tensor's shape, dtype and device; None: everything is kept."""
        found = self.core.mask(backward)
        if found is None:
            return None
        return torch.from_numpy(found).view(like.shape).to(like.device, like.dtype)
