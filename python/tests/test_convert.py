"""Conversion of trained models: small errors, N:M weights, and what is said of every layer."""

import io

import pytest

torch = pytest.importorskip("torch")
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import weft  # noqa: E402
from weft.calibration import Drift, Inputs  # noqa: E402
from weft.progress import Progress  # noqa: E402


def mlp(width=48, depth=5, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(16, width)]
    for _ in range(depth):
        layers += [nn.ReLU(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(width, 10))


def cnn(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(16, 8, (1, 3), padding="same", bias=False), nn.Flatten(), nn.Linear(72, 4),
    )  # fmt: skip


def calibration(batches=8, shape=(64, 16), seed=1):
    """Correlated inputs, as trained networks have them."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(shape[-1], shape[-1], generator=generator)
    return [torch.randn(*shape, generator=generator) @ mix + 0.5 for _ in range(batches)]


def outputs(model, batches):
    with torch.no_grad():
        return torch.cat([model(x) for x in batches])


def error(model, batches, expected):
    return float(((outputs(model, batches) - expected) ** 2).sum() / (expected**2).sum())


def convert(model, batches, *args, **kwargs):
    return weft.calibrate_and_convert_(model, batches, *args, progress=False, **kwargs)


# ---- results


def test_a_converted_model_obeys_and_is_better_than_magnitude():
    batches, errors, reports = calibration(), {}, {}
    for method in ("magnitude", "sparsegpt", "adaprune"):
        model = mlp()
        expected = outputs(model, batches)
        reports[method] = convert(model, batches, "2:4", method)
        errors[method] = error(model, batches, expected)
        for name in ("2", "4", "6", "8", "10"):
            assert weft.check(model.get_submodule(name).weight, "2:4")
            assert (model.get_submodule(name).weight != 0).sum() == 48 * 24
    assert errors["adaprune"] < 0.5 * errors["magnitude"]
    assert errors["sparsegpt"] < errors["magnitude"]
    for after, by_magnitude in zip(reports["adaprune"], reports["magnitude"]):
        if after.converted:
            assert after.error_after < after.error_before
            assert after.error_after < by_magnitude.error_after
            assert after.samples == 8 * 64
    assert [r.reason for r in reports["adaprune"] if not r.converted] == [
        "the first layer", "the last layer",
    ]  # fmt: skip
    assert "5 of 7 layers are converted" in str(reports["adaprune"])


def test_the_error_of_the_report_is_that_of_the_layer():
    batches = calibration()
    model = mlp(depth=1)
    x = torch.relu(outputs(model[:1], batches))
    before = model[2](x).detach()
    plain = before - model[2].bias.detach()
    bias = model[2].bias.detach().clone()
    (layer,) = convert(model, batches).converted
    after = model[2](x).detach()
    measured = float(((after - before) ** 2).sum() / (plain**2).sum())
    assert layer.error_after == pytest.approx(measured, rel=1e-3)
    assert not torch.equal(model[2].bias, bias)  # it takes its part
    torch.testing.assert_close((after - before).mean(0), torch.zeros(48), rtol=0, atol=1e-5)


def test_sequential_is_better_than_parallel():
    ratios = []
    for seed in range(4):
        batches = calibration(12, seed=seed)
        batches, held_out = batches[:8], batches[8:]
        found = {}
        for sequential in (False, True):
            model = mlp(seed=seed)
            expected = outputs(model, held_out)
            report = convert(model, batches, "1:4", sequential=sequential)
            assert len(report.converted) == 5 and all(
                weft.check(m.weight, "1:4") for m in model[2:11:2]
            )
            found[sequential] = error(model, held_out, expected)
        ratios.append(found[True] / found[False])
    assert max(ratios) < 0.9, ratios  # 0.58 to 0.72 were measured


def test_a_sequential_layer_sees_what_the_converted_ones_put_out():
    batches = calibration()
    model = mlp(depth=2)
    expected = mlp(depth=2)
    convert(model, batches, method="wanda", sequential=True)
    for layer in ("2", "4"):  # only the first of them, and then only the second
        convert(expected, batches, method="wanda", filter=lambda name, _: name == layer)
    assert torch.equal(model[4].weight, expected[4].weight)
    convert(parallel := mlp(depth=2), batches, method="wanda")
    assert not torch.equal(model[4].weight, parallel[4].weight)


@pytest.mark.parametrize("free_bias", [False, True])
def test_the_target_of_a_sequential_layer_is_the_output_of_the_dense_one(free_bias):
    torch.manual_seed(0)
    layer = nn.Linear(8, 6).double()
    dense = torch.randn(200, 8).double() + 1
    now = dense + 0.3 * torch.randn(200, 8).double() + 0.2
    inputs, drift = Inputs(8), Drift(8)
    inputs.add(layer, now)
    drift.add(layer, [dense[:50], dense[50:]], [now[:50], now[50:]])
    weight = layer.weight.detach().clone()
    moved, shift = drift.target(weight, inputs, free_bias, 0.0)
    columns = torch.cat([now, torch.ones(200, 1).double()], 1) if free_bias else now
    best = torch.linalg.lstsq(columns, dense @ weight.t()).solution.t()
    torch.testing.assert_close(moved, best[:, :8])
    if free_bias:
        torch.testing.assert_close(shift, best[:, 8])
    weight[:, ::2] = 0
    moved, _ = drift.target(weight, inputs, free_bias, 0.01)
    assert (moved[:, ::2] == 0).all() and (moved[:, 1::2] != 0).all()
    drift.add(layer, [dense], [now[:50]])
    assert not drift.comparable


@pytest.mark.parametrize("sequential", [False, True])
def test_convolutions(sequential):
    torch.manual_seed(1)
    batches = [F.avg_pool2d(torch.randn(16, 3, 16, 16), 3, 1) for _ in range(4)]  # 14 x 14
    model, pruned = cnn(), cnn()
    model[6], pruned[6] = nn.Identity(), nn.Identity()
    every = lambda name, module: name in "24"  # noqa: E731
    expected = outputs(model, batches)
    report = {r.name: r for r in convert(model, batches, filter=every, sequential=sequential)}
    convert(pruned, batches, method="magnitude", filter=every)
    assert weft.check(model[2].weight) and weft.check(model[4].weight)
    assert model[4].bias is None
    assert report["2"].samples == report["4"].samples == 4 * 16 * 6 * 6
    assert all(report[name].error_after < report[name].error_before for name in "24")
    assert error(model, batches, expected) < 0.6 * error(pruned, batches, expected)


def test_the_gram_matrix_of_a_convolution_predicts_its_output():
    torch.manual_seed(0)
    for conv in (
        nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), bias=False),
        nn.Conv2d(4, 6, 3, padding="same", bias=False),
    ):
        x = torch.randn(5, 4, 9, 8)
        inputs = Inputs(conv.weight[0].numel())
        inputs.add(conv, x)
        rows = conv.weight.detach().double().flatten(1)
        y = conv(x).detach().double()
        assert inputs.samples == y[:, 0].numel() == weft.calibration.count_rows(conv, x)
        torch.testing.assert_close(
            (rows @ inputs.second * rows).sum(1), (y**2).sum((0, 2, 3)), rtol=1e-5, atol=1e-5
        )
        torch.testing.assert_close(rows @ inputs.first, y.sum((0, 2, 3)), rtol=1e-4, atol=1e-4)


def test_chunks_change_nothing(monkeypatch):
    linear, conv = nn.Linear(12, 4), nn.Conv2d(3, 4, 3)
    for module, x in ((linear, torch.randn(7, 5, 12)), (conv, torch.randn(6, 3, 8, 8))):
        whole, pieces = (Inputs(module.weight[0].numel()) for _ in range(2))
        whole.add(module, x)
        monkeypatch.setattr(weft.calibration, "_CHUNK", 100)
        pieces.add(module, x)
        monkeypatch.undo()
        assert whole.samples == pieces.samples
        torch.testing.assert_close(whole.second, pieces.second)


# ---- how it runs


def test_layers_that_read_the_same_tensor_share_a_pass():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
            self.runs = 0

        def forward(self, x):
            self.runs += 1
            y = torch.softmax(self.q(x) @ self.k(x).mT, -1) @ self.v(x)
            x = x.clone()
            x += self.out(y)
            return x

    model, batches = Attention(), calibration(3, (8, 10, 16))
    report = convert(model, batches, sequential=True, first_and_last_dense=False)
    assert len(report.converted) == 4
    assert model.runs == 3 * (1 + 1 + 2)  # the order; q, k and v; out, dense and converted

    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x):
            x = x.clone()
            x += self.a(x)
            return self.b(x)

    model, apart = InPlace(), InPlace()
    convert(model, batches, method="wanda", sequential=True, first_and_last_dense=False)
    for layer in ("a", "b"):
        convert(apart, batches, method="wanda", filter=lambda name, _: name == layer)
    assert torch.equal(model.b.weight, apart.b.weight)


def test_a_layer_that_is_called_twice_sees_both_inputs():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(16, 16)

        def forward(self, x):
            return self.layer(input=torch.relu(self.layer(x)))

    for sequential in (False, True):
        model = Twice()
        report = convert(
            model, calibration(2), sequential=sequential, first_and_last_dense=False
        )
        assert report[0].samples == 2 * 2 * 64


def test_batches_of_every_kind_and_modes_that_come_back():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))
            self.dropout = nn.Dropout(0.5)

        def forward(self, x, scale=1.0):
            assert not torch.is_grad_enabled() and not self.dropout.training
            return self.c(self.dropout(self.b(self.a(x) * scale)))

    x = calibration()
    weights = []
    for batches in (
        x, [(b, 1.0) for b in x], [[b] for b in x], [{"x": b, "scale": 1.0} for b in x], iter(x),
        torch.utils.data.DataLoader(torch.cat(x), batch_size=64),
    ):  # fmt: skip
        model = Model()
        model.a.eval()
        assert convert(model, batches)[1].converted
        assert model.training and model.dropout.training and not model.a.training
        assert not model.b._forward_pre_hooks and model.b.weight.requires_grad
        weights.append(model.b.weight)
    assert all(torch.equal(weights[0], one) for one in weights)


def test_a_transformer_in_eval_is_seen_by_the_hooks():
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(block, 2).eval()
    report = {r.name: r for r in convert(model, calibration(4, (8, 6, 16)))}
    assert report["layers.0.linear2"].converted and report["layers.1.linear1"].converted
    assert "MultiheadAttention" in report["layers.0.self_attn"].reason


def test_layers_that_stay_say_why():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embedding = nn.Embedding(8, 16)
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
            self.never, self.narrow = nn.Linear(16, 16), nn.Linear(2, 16)
            self.grouped = nn.Conv2d(8, 8, 3, groups=2)
            self.head = nn.Linear(16, 8)
            self.head.weight = self.embedding.weight

        def forward(self, x):
            self.grouped(x[:16].view(2, 8, 4, 4))
            return self.head(self.b(self.a(x)) + self.narrow(x[:, :2]))

    model = Model()
    report = {r.name: r for r in convert(model, calibration(), filter=lambda n, m: n != "b")}
    assert report["a"].converted and report["a"].reason == "adaprune, support sparsegpt"
    expected = {
        "embedding": "embedding", "b": "filter", "never": "no batch reaches it",
        "narrow": "too narrow", "grouped": "grouped", "head": "tied",
    }  # fmt: skip
    for name, word in expected.items():
        assert not report[name].converted and word in report[name].reason
    for sequential in (False, True):
        model = Model()
        every = lambda name, module: name in ("a", "grouped")  # noqa: E731
        report = convert(
            model, calibration(), method="magnitude", filter=every, sequential=sequential
        )
        assert {r.name for r in report.converted} == {"a", "grouped"}
        assert weft.check(model.grouped.weight, "2:4")


def test_other_dtypes_supports_and_transposable_masks():
    batches = [b.bfloat16() for b in calibration()]
    model = mlp().bfloat16()
    report = convert(model, batches)
    assert weft.check(model[2].weight.float()) and report[1].error_after < report[1].error_before
    model = mlp()
    convert(model, calibration(), transposable=True)
    assert weft.check(model[2].weight, "2:4", axis="both")
    errors = {}
    for support in (None, "magnitude", "sparsegpt"):
        errors[support] = convert(mlp(), calibration(), support=support)[1].error_after
    assert errors[None] == errors["sparsegpt"] < errors["magnitude"]


def test_a_converted_model_packs_and_tunes():
    model, batches = mlp(width=64), calibration()
    convert(model, batches)
    expected = outputs(model, batches)
    weft.sparsify_(model, "static", mask="nonzero")
    weft.densify_(model)
    assert len(weft.pack_(model).packed) == 5
    torch.testing.assert_close(outputs(model, batches), expected, rtol=1e-4, atol=1e-4)


# ---- progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_a_bar_on_a_terminal_and_few_lines_elsewhere(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("weft.progress.time.monotonic", lambda: now[0])
    terminal, file, silent = Terminal(), io.StringIO(), Terminal()
    with Progress("convert", stream=terminal) as on_terminal, Progress(
        "convert", stream=file
    ) as in_file, Progress("convert", stream=silent, shown=False) as hidden:
        for second in range(31):
            now[0] = float(second)
            for one in (on_terminal, in_file, hidden):
                one.reach(second / 40, f"layer {second}")
    assert file.getvalue().splitlines() == [
        "weft: convert: 25%, layer 10", "weft: convert: 50%, layer 20",
        "weft: convert: 75%, layer 30",
    ]  # fmt: skip
    assert terminal.getvalue().count("\r") == 31 and "\n" not in terminal.getvalue()
    assert "10 s left  layer 30" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\033[K") and silent.getvalue() == ""


def test_short_work_says_nothing(capsys):
    weft.calibrate_and_convert_(mlp(depth=1), calibration())
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


# ---- wrong calls


def test_wrong_calls_get_one_clear_line_and_change_nothing():
    x = calibration()
    sparse = mlp()
    weft.sparsify_(sparse)
    nan = [*x, torch.full((4, 16), float("nan"))]
    model = mlp()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    wrong = [
        (lambda: convert(model, []), "batches is empty"),
        (lambda: convert(model, [], sequential=True), "batches is empty"),
        (lambda: convert(model, None), "batches is None"),
        (lambda: convert(model, x[0]), "one Tensor"),
        (lambda: convert(model, {"x": x[0]}), "one dict"),
        (lambda: convert(model, 5), "int"),
        (lambda: convert(model, ["text"]), "str"),
        (lambda: convert(model, iter(x), sequential=True), "only once"),
        (lambda: convert(model, (b for b in x), sequential=True), "only once"),
        (lambda: convert(model, x, method="guess"), "guess"),
        (lambda: convert(model, x, support="guess"), "guess"),
        (lambda: convert(model, x, method="wanda", support="sparsegpt"), "wanda"),
        (lambda: convert(model, x, "5:4"), "5:4"),
        (lambda: convert(model, [x[0][:3]]), "2: the batches give it 3 samples"),
        (lambda: convert(model, [x[0][:3]], sequential=True), "2: the batches give it 3 samples"),
        (lambda: convert(model, nan), "2: its inputs have NaN"),
        (lambda: convert(model, nan, sequential=True), "2: its inputs have NaN"),
        (lambda: convert(nn.ReLU(), x), "no layer to convert"),
        (lambda: convert(model, x, filter=lambda name, module: False), "filter"),
        (lambda: convert(sparse, x), "sparsified"),
    ]
    for call, word in wrong:
        with pytest.raises(weft.Error) as caught:
            call()
            pytest.fail(word)
        assert word in str(caught.value) and "\n" not in str(caught.value), str(caught.value)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert model.training and not any(m._forward_pre_hooks for m in model.modules())
