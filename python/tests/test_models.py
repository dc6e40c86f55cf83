"""Models as users have them: sparsified, trained, saved, loaded, densified."""

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import weft  # noqa: E402


def output(result):
    """Of a model of transformers, its first tensor."""
    return result if isinstance(result, torch.Tensor) else result[0]


def train(model, optimizer, x, steps=5):
    torch.manual_seed(1)
    target = torch.randn_like(output(model(x)))
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(output(model(x)), target)
        loss.backward()
        optimizer.step()
    assert loss.isfinite()


def check(make, x, *, sparse, recipe="s-ste", pattern="2:4", **options):
    """The model's life; sparse: the names of the layers that it is to have."""
    torch.manual_seed(0)
    model = make()
    report = weft.sparsify_(model, recipe, pattern, total_steps=10, plan="sparse", **options)
    assert [layer.name for layer in report.sparse] == sparse, str(report)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    weft.attach(model, optimizer)
    train(model, optimizer, x)
    layers = [model.get_submodule(name) for name in sparse]
    assert all(layer._weft.calls >= 6 and layer.path == "packed" for layer in layers)
    assert all(layer.step == 5 for layer in layers)

    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    saved.seek(0)
    torch.manual_seed(7)
    loaded = make()
    weft.sparsify_(loaded, recipe, pattern, total_steps=10, plan="sparse", **options)
    loaded.load_state_dict(torch.load(saved, weights_only=True))
    dense = make()
    names = dense.state_dict().keys()
    dense.load_state_dict({k: v for k, v in model.state_dict().items() if k in names})
    for mode in (True, False):
        one, other = copy.deepcopy(model).train(mode), copy.deepcopy(loaded).train(mode)
        plain = weft.densify_(copy.deepcopy(model)).train(mode)
        y = output(one(x))
        torch.testing.assert_close(output(other(x)), y, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(output(plain(x)), y, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(output(copy.deepcopy(dense).train(mode)(x)), y, atol=1e-3)
        assert all(one.get_submodule(name)._weft.calls > 0 for name in sparse)
        for name in sparse:
            # The product is made of the layer's own weight: not of a copy that a parent keeps.
            assert type(plain.get_submodule(name)) is type(dense.get_submodule(name))
    assert plain.state_dict().keys() == names == weft.dense_state_dict(model).keys()
    return model


# ---- convolutions


class Block(nn.Module):
    def __init__(self, ins, outs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(ins, outs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outs)
        self.conv2 = nn.Conv2d(outs, outs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outs)
        self.downsample = None
        if stride != 1 or ins != outs:
            self.downsample = nn.Sequential(
                nn.Conv2d(ins, outs, 1, stride, bias=False), nn.BatchNorm2d(outs)
            )

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + shortcut)


def resnet18(width=8):
    """The layers of ResNet-18, an eighth as wide."""
    stages, ins = [], width
    for i in range(4):
        outs = width * 2**i
        stages += [Block(ins, outs, 1 if i == 0 else 2), Block(outs, outs, 1)]
        ins = outs
    return nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, 10),
    )  # fmt: skip


@pytest.mark.parametrize("recipe", ["s-ste", "sr-ste"])
def test_resnet18(recipe):
    sparse = []
    for number in range(4, 12):
        sparse += [f"{number}.conv1", f"{number}.conv2"]
        sparse += [f"{number}.downsample.0"] * (number in (6, 8, 10))
    assert len(sparse) == 19
    check(resnet18, torch.randn(4, 3, 32, 32), sparse=sparse, recipe=recipe)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_convolution_down_to_one_pixel(memory_format):
    gradients = []
    for plain in (False, True):
        torch.manual_seed(0)
        layer = weft.nn.Conv2d(8, 8, 3, recipe="s-ste")
        layer._weft.plain = plain
        x = torch.randn(6, 8, 3, 3).to(memory_format=memory_format).requires_grad_()
        y = layer(x)
        assert y.shape == (6, 8, 1, 1)
        y.square().sum().backward()
        gradients.append((x.grad, layer.weight.grad))
    torch.testing.assert_close(gradients[0], gradients[1])


# ---- transformers


def every_layer(parts, count, prefix):
    return [f"{prefix}.{i}.{part}" for i in range(count) for part in parts]


def test_bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    parts = [f"attention.self.{name}" for name in ("query", "key", "value")]
    parts += ["attention.output.dense", "intermediate.dense", "output.dense"]
    sparse = every_layer(parts, 2, "encoder.layer")
    check(lambda: transformers.BertModel(config), torch.arange(24).view(2, 12), sparse=sparse)


@pytest.mark.parametrize("recipe", ["s-ste", "sr-ste+lambda=0.01", "bi-mask", "lbc"])
def test_gpt2_with_its_transposed_weights(recipe):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    parts = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]
    model = check(
        lambda: transformers.GPT2LMHeadModel(config),
        torch.arange(24).view(2, 12),
        sparse=every_layer(parts, 2, "transformer.h"),
        recipe=recipe,
    )
    assert type(pickle.loads(pickle.dumps(model)).transformer.h[0].mlp.c_fc) is weft.nn.Conv1D
    layer = model.transformer.h[0].mlp.c_fc
    assert layer.weight.shape == layer.mask().shape == (16, 64)
    if recipe != "lbc":  # which is still removing candidates
        assert weft.check(layer.effective_weight(), "2:4", axis="out")


def test_conv1d_trains_as_the_linear_layer_that_it_is():
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    def run(make, recipe):
        torch.manual_seed(0)
        first, last = nn.Linear(8, 16), nn.Linear(16, 4)
        weight, bias = torch.randn(16, 16), torch.randn(16)
        model = nn.Sequential(first, make(16, 16), nn.ReLU(), last)
        with torch.no_grad():
            model[1].weight.copy_(weight if make is nn.Linear else weight.t())
            model[1].bias.copy_(bias)
        weft.sparsify_(model, recipe, "1:4", plan="sparse", total_steps=9)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        weft.attach(model, optimizer)
        torch.manual_seed(1)  # the layers have drawn different numbers
        losses = []
        for _ in range(8):
            x = torch.randn(12, 8)
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert not losses[-1] == losses[0]
        return [*losses, weft.telemetry(model)["1"]["retained"]]

    def top(w):
        return weft.mask(w, "1:4")

    for recipe in ("sr-ste+lambda=0.5", "s-ste", "t-sr-ste", weft.Method(top, base="sr-ste")):
        assert run(Conv1D, recipe) == pytest.approx(run(nn.Linear, recipe), rel=1e-5)


# ---- modules that read weights of others, or share them


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = self.embed(x)
        x = x + self.attend(x, x, x)[0]
        return self.head(x + self.down(F.relu(self.up(x))))


def test_multihead_attention():
    model = check(Attention, torch.randn(2, 6, 8), sparse=["up", "down"])
    assert type(model.attend.out_proj) is nn.modules.linear.NonDynamicallyQuantizableLinear


class Tied(nn.Module):
    """A language model whose head is its embedding, and two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.twin = nn.Linear(16, 32)
        self.twin.weight = self.up.weight
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        return self.head(self.mix(x + self.down(F.relu(self.up(x) + self.twin(x)))))


def test_tied_weights():
    model = check(Tied, torch.arange(12).view(2, 6), sparse=["down", "mix"])
    assert model.head.weight is model.embed.weight and model.twin.weight is model.up.weight


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.body, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = torch.tanh(self.body(self.first(x)))
        return self.last(torch.tanh(self.body(x)))


@pytest.mark.parametrize("recipe", ["s-ste", "t-sr-ste", "bi-mask"])
def test_a_module_used_twice(recipe):
    model = check(Recurrent, torch.randn(10, 8), sparse=["body"], recipe=recipe)
    assert model.body._weft.calls == 12
