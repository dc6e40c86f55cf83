"""WeftCallback for the Trainer of Hugging Face's transformers.

    trainer = Trainer(model, args, train_dataset=data, callbacks=[WeftCallback("s-ste", "2:4")])
    trainer.train()  # the model is sparse from here; densify=True makes it dense again at the end
"""

from __future__ import annotations

from typing import Any, Optional

import transformers

from .. import _core
from ..method import Recipe, split
from ..optimizer import Attachment, attach
from ..sparsify import Report, densify_, layers_of, sparsify_


class WeftCallback(transformers.TrainerCallback):
    """Sparsifies the Trainer's model, and attaches its optimizer when training begins.

    The model is sparsified when the Trainer is made, so that checkpoints can be resumed; a recipe
    with a schedule in shares of the run waits until training begins and its number of steps is
    known, unless ``total_steps`` or the Trainer's ``max_steps`` says it. A model that is sparse
    already is only attached. ``options`` go to `weft.sparsify_`.
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
        self.recipe, self.pattern, self.options = recipe, pattern, options
        self.total_steps, self.densify = total_steps, densify
        self.report: Optional[Report] = None  # of sparsify_
        self._attachment: Optional[Attachment] = None

    def on_init_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        steps = self.total_steps or max(0, args.max_steps)
        if steps or not _core.recipe(split(self.recipe)[0])["needs_total_steps"]:
            self._sparsify(args, model, steps)

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        **_: Any,
    ) -> None:
        self._sparsify(args, model, self.total_steps or state.max_steps)
        if self._attachment is not None:  # train() is called again, with another optimizer
            self._attachment.detach()
        # accelerate wraps the optimizer; hooks are called by the one inside.
        self._attachment = attach(model, getattr(optimizer, "optimizer", optimizer))

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        if self._attachment is not None:
            self._attachment.detach()
            self._attachment = None
        if self.densify:
            densify_(model)

    def _sparsify(self, args: Any, model: Any, steps: int) -> None:
        if layers_of(model):
            return
        options = {"micro_batches": args.gradient_accumulation_steps, **self.options}
        self.report = sparsify_(model, self.recipe, self.pattern, total_steps=steps, **options)
