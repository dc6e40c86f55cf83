"""WeftCallback in the trainers of transformers and Lightning does what a loop by hand does."""

import warnings

import pytest

torch = pytest.importorskip("torch")
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import weft  # noqa: E402

X = torch.randn(48, 8, generator=torch.Generator().manual_seed(3))
Y = X.roll(1, 1).square()
RECIPES = ["sr-ste+lambda=0.1", "lbc", "t-sr-ste"]  # decay; scores and steps; a schedule


def body():
    torch.manual_seed(0)
    layers = [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8)]
    return nn.Sequential(*layers)


def by_hand(recipe, steps=6):
    """Six steps of SGD with batches of eight, clipped: what the trainers are told to do."""
    model = body()
    weft.sparsify_(model, recipe, total_steps=steps, plan="sparse")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weft.attach(model, optimizer)
    for i in range(steps):
        optimizer.zero_grad()
        F.mse_loss(model(X[8 * i : 8 * i + 8]), Y[8 * i : 8 * i + 8]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
    return weft.dense_state_dict(model)


def same(found, expected):
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


# ---- transformers


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = body()

    def forward(self, x, labels=None):
        y = self.body(x)
        return {"loss": F.mse_loss(y, labels), "y": y}


def hugging_face(folder, callback, model=None, **arguments):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    defaults = dict(
        output_dir=str(folder), per_device_train_batch_size=8, learning_rate=0.1, optim="sgd",
        num_train_epochs=1, max_grad_norm=0.05, lr_scheduler_type="constant", save_strategy="no",
        report_to=[], use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(data)

    data = [{"x": x, "labels": y} for x, y in zip(X, Y)]
    args = transformers.TrainingArguments(**{**defaults, **arguments})
    return InOrder(model or WithLoss(), args, train_dataset=data, callbacks=[callback])


def test_hugging_face_trains_as_by_hand(tmp_path):
    pytest.importorskip("transformers")
    from weft.integrations.transformers import WeftCallback

    for recipe in RECIPES:
        steps = {"max_steps": 6} if recipe == "lbc" else {}  # its scores go into the optimizer
        callback = WeftCallback(recipe, densify=True, plan="sparse")
        trainer = hugging_face(tmp_path, callback, **steps)
        trainer.train()
        assert len(callback.report.sparse) == 1 and type(trainer.model.body[2]) is nn.Linear
        same(trainer.model.body.state_dict(), by_hand(recipe))


def test_hugging_face_resumes_from_a_checkpoint(tmp_path):
    pytest.importorskip("transformers")
    from weft.integrations.transformers import WeftCallback

    saving = {"save_strategy": "steps", "save_steps": 3}
    recipe = "sr-ste+mask_every=4"  # so that the mask at step 3 is not that of the weights
    trainer = hugging_face(tmp_path, WeftCallback(recipe, plan="sparse"), **saving)
    trainer.train()
    expected = weft.dense_state_dict(trainer.model)
    again = hugging_face(tmp_path, WeftCallback(recipe, plan="sparse"), **saving)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert again.model.body[2].step == 6
    same(weft.dense_state_dict(again.model), expected)
    again.train()  # once more: another optimizer is attached


# ---- Lightning


def lightning_module(L):
    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.body = body()

        def training_step(self, batch, index):
            x, y = batch
            return F.mse_loss(self.body(x), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def fit(folder, callback, checkpoint=None, **arguments):
    L = pytest.importorskip("lightning.pytorch")
    module = lightning_module(L)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=8)
    defaults = dict(max_epochs=1, gradient_clip_val=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = L.Trainer(
            accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, default_root_dir=str(folder), callbacks=[callback],
            **{**defaults, **arguments},
        )  # fmt: skip
        trainer.fit(module, data, ckpt_path=checkpoint)
    return trainer, module


def test_lightning_trains_as_by_hand(tmp_path):
    pytest.importorskip("lightning")
    from weft.integrations.lightning import WeftCallback

    for recipe in RECIPES:
        callback = WeftCallback(recipe, densify=True, plan="sparse")
        _, module = fit(tmp_path, callback)
        assert len(callback.report.sparse) == 1 and type(module.body[2]) is nn.Linear
        same(module.body.state_dict(), by_hand(recipe))


def test_lightning_resumes_from_a_checkpoint(tmp_path):
    pytest.importorskip("lightning")
    from weft.integrations.lightning import WeftCallback

    def callback():
        return WeftCallback("sr-ste+mask_every=4", plan="sparse")

    _, whole = fit(tmp_path, callback(), max_epochs=2)
    trainer, _ = fit(tmp_path, callback())
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    _, module = fit(tmp_path, callback(), tmp_path / "half.ckpt", max_epochs=2)
    assert module.body[2].step == 12
    same(weft.dense_state_dict(module.body), weft.dense_state_dict(whole.body))
