"""WeftCallback for the Trainer of Lightning (``lightning`` or ``pytorch_lightning``).

    trainer = Trainer(max_epochs=3, callbacks=[WeftCallback("s-ste", "2:4")])
    trainer.fit(module, data)  # the module is sparse from here; densify=True ends it dense
"""

from __future__ import annotations

from typing import Any, Optional

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from .. import _core
from .._core import Error
from ..method import Recipe, split
from ..optimizer import Attachment, attach
from ..sparsify import Report, densify_, layers_of, sparsify_


class WeftCallback(Callback):
    """Sparsifies the module before its optimizer is made, and attaches that when training begins.

    Checkpoints are loaded after that, so runs resume. A module that is sparse already is only
    attached. The number of steps, which some recipes need, is asked of the trainer unless
    ``total_steps`` is given. ``options`` go to `weft.sparsify_`.
    """

    def __init__(
        self,
        recipe: Recipe = "s-ste",
        pattern: str = "2:4",
        *,
        total_steps: int = 0,
        densify: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.recipe, self.pattern, self.options = recipe, pattern, options
        self.total_steps, self.densify = total_steps, densify
        self.report: Optional[Report] = None  # of sparsify_
        self._attachment: Optional[Attachment] = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit" or layers_of(pl_module):
            return
        steps = self.total_steps
        if not steps and _core.recipe(split(self.recipe)[0])["needs_total_steps"]:
            steps = self._steps_of(trainer)
        options = {"micro_batches": trainer.accumulate_grad_batches, **self.options}
        self.report = sparsify_(pl_module, self.recipe, self.pattern, total_steps=steps, **options)

    @staticmethod
    def _steps_of(trainer: Any) -> int:
        steps = trainer.max_steps if trainer.max_steps > 0 else trainer.estimated_stepping_batches
        if steps == float("inf"):
            raise Error("the trainer has no last step: WeftCallback needs total_steps")
        return int(steps)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        sparse = {id(layer.weight) for _, layer in layers_of(pl_module)}
        owners = [
            optimizer
            for optimizer in trainer.optimizers
            if any(id(p) in sparse for group in optimizer.param_groups for p in group["params"])
        ]
        if len(owners) != 1:
            raise Error(f"{len(owners)} optimizers hold sparse weights; WeftCallback is for one")
        self._attachment = attach(pl_module, owners[0])

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """After the last checkpoint is written, and after an error too."""
        if self._attachment is not None:
            self._attachment.detach()
            self._attachment = None
        if self.densify and stage == "fit":
            densify_(pl_module)
