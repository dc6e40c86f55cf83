"""PyTorch: sparsified models train, save, copy and compile as users expect of their modules."""

import contextlib
import copy
import io
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import weft  # noqa: E402
import weft.engine  # noqa: E402

RECIPES = ["ste", "sr-ste", "static", "transposable", "t-sr-ste", "bi-mask", "lbc", "s-ste"]


def mlp(width=32, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10),
    )  # fmt: skip


def batch(tokens=24, ins=16, outs=10, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, ins, generator=generator)
    return x, torch.randint(0, outs, (tokens,), generator=generator)


def train(model, optimizer, steps, seed=1):
    losses = []
    for i in range(steps):
        x, y = batch(seed=seed + i)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sparsified(recipe="s-ste", pattern="2:4", *, total_steps=20, plan="sparse", **kwargs):
    model = mlp(**kwargs)
    weft.sparsify_(model, recipe, pattern, total_steps=total_steps, plan=plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    weft.attach(model, optimizer)
    return model, optimizer


# ---- sparsify_


def test_parameters_names_and_types_stay():
    model = mlp()
    before = dict(model.named_parameters())
    report = weft.sparsify_(model, "s-ste", "2:4")
    assert dict(model.named_parameters()).keys() == before.keys()
    assert all(p is before[name] for name, p in model.named_parameters())
    assert isinstance(model[2], nn.Linear) and isinstance(model[2], weft.nn.Linear)
    assert type(model[0]) is nn.Linear and type(model[6]) is nn.Linear
    assert [r.reason for r in report if r.recipe == "dense"] == ["the first layer", "the last layer"]
    assert "2 of 4 layers are sparse" in str(report)


def test_rules_and_filter_choose():
    report = weft.sparsify_(
        mlp(), "s-ste", "2:4", rules=[("2", "dense"), ("0", "sr-ste", "1:4")]
    )
    assert [(r.recipe, r.pattern) for r in report] == [
        ("sr-ste", "1:4"), ("dense", ""), ("s-ste", "2:4"), ("dense", ""),
    ]  # fmt: skip
    report = weft.sparsify_(mlp(), filter=lambda name, module: name == "6")
    assert [r.recipe for r in report] == ["dense", "dense", "dense", "s-ste"]


@pytest.mark.parametrize(
    "recipe, reason",
    [
        ("sr-ste+decay=auto", "give decay=gradient"),
        ("ste+dense_head=0.5+moment=frozen", "needs weft::AdamW"),
    ],
)
def test_what_only_weft_train_does_is_refused_before_anything_changes(recipe, reason):
    model = mlp()
    with pytest.raises(weft.Error, match=reason):
        weft.sparsify_(model, recipe, "2:4", total_steps=10)
    assert all(type(module) is not weft.nn.Linear for module in model)


def test_tied_weights_stay_dense():
    model = mlp()
    model[4].weight = model[2].weight
    with pytest.raises(weft.Error, match="no layer to sparsify"):
        weft.sparsify_(model)
    model = mlp()
    model.add_module("tied", nn.Linear(32, 32))
    model.tied.weight = model[4].weight
    report = {r.name: r for r in weft.sparsify_(model)}
    assert "tied" in report["4"].reason and report["2"].recipe == "s-ste"


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("pattern", ["2:4", "1:4"])
def test_every_recipe_trains_and_densifies(recipe, pattern):
    model, optimizer = sparsified(recipe, pattern, total_steps=12)
    losses = [train(model, optimizer, 1)[0] for _ in range(12)]  # of one batch
    assert sum(losses[-3:]) < sum(losses[:3]) and all(map(lambda v: v == v, losses))
    x, _ = batch()
    model.eval()
    with torch.no_grad():
        before = model(x)
    expected = weft.dense_state_dict(model)
    weft.densify_(model)
    assert type(model[2]) is nn.Linear
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-5)
    assert model.state_dict().keys() == expected.keys() == mlp().state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name])
    if recipe != "t-sr-ste":  # which ends with a dense tail
        assert weft.check(model[2].weight, pattern)


# ---- the formulas


def test_forward_and_gradients_are_those_of_the_masked_weight():
    model, _ = sparsified("sr-ste")
    layer = model[2]
    x = torch.randn(7, 32, requires_grad=True)
    g = torch.randn(7, 32)
    y = layer(x)
    mask = weft.mask(layer.weight, "2:4")
    kept = layer.weight.detach() * mask
    torch.testing.assert_close(y, x @ kept.T + layer.bias, rtol=1e-5, atol=1e-5)
    y.backward(g)
    torch.testing.assert_close(x.grad, g @ kept, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.weight.grad, g.T @ x.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.bias.grad, g.sum(0), rtol=1e-5, atol=1e-5)


def test_gradcheck_in_double():
    torch.manual_seed(0)
    layer = weft.nn.Linear(8, 6, dtype=torch.float64, recipe="sr-ste")
    x = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    assert layer.path == "plain"
    assert torch.autograd.gradcheck(layer, (x,))
    conv = weft.nn.Conv2d(4, 6, 3, padding=1, dtype=torch.float64, recipe="s-ste+gradient=exact")
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(conv, (x,))


@pytest.mark.parametrize("recipe", RECIPES + ["s-ste+fp8"])
def test_the_plain_path_computes_what_the_kernels_compute(recipe):
    def run(plain):
        model, optimizer = sparsified(recipe)
        for layer in (model[2], model[4]):
            layer._weft.plain = plain
        return train(model, optimizer, 6), weft.dense_state_dict(model)

    packed, plain = run(False), run(True)
    assert packed[0] == pytest.approx(plain[0], rel=2e-3 if "fp8" in recipe else 1e-4)
    if "fp8" not in recipe:
        for name in packed[1]:
            assert torch.equal(packed[1][name] == 0, plain[1][name] == 0), name


@pytest.mark.parametrize("recipe", ["sr-ste", "t-sr-ste", "s-ste", "lbc"])
def test_convolutions_in_both_memory_formats(recipe):
    def run(memory_format):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(8 * 7 * 7, 10),
        )  # fmt: skip
        weft.sparsify_(model, recipe, "2:4", total_steps=8, plan="sparse")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        weft.attach(model, optimizer)
        x = torch.randn(4, 3, 16, 16).to(memory_format=memory_format)
        y = torch.tensor([1, 2, 3, 4])
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    assert run(torch.contiguous_format) == pytest.approx(run(torch.channels_last), rel=1e-4)


# ---- attach


def decay_of_a_step(make, step):
    """What a step adds to the gradient of layer 2, in units of λ(1 − m)w."""
    torch.manual_seed(0)
    model = mlp()
    weft.sparsify_(model, "sr-ste+lambda=0.5", "2:4", plan="dense")
    layer = model[2]
    optimizer = make(model.parameters())
    weft.attach(model, optimizer)
    x, y = batch()
    F.cross_entropy(model(x), y).backward()  # masks
    optimizer.zero_grad()
    seen = {}
    pruned = 0.5 * layer.weight.detach() * (weft.mask(layer.weight, "2:4") == False)  # noqa: E712
    optimizer.register_step_post_hook(lambda *_: seen.update(grad=layer.weight.grad.clone()))
    exact = copy.deepcopy(model)
    F.cross_entropy(exact(x), y).backward()
    clean = exact[2].weight.grad
    step(optimizer, lambda: F.cross_entropy(model(x), y))
    added = (seen["grad"] - clean).flatten()
    return float((added @ pruned.flatten()) / (pruned.flatten() @ pruned.flatten())), layer


def plain_step(optimizer, loss):
    loss().backward()
    optimizer.step()


def closure_step(optimizer, loss):
    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


@pytest.mark.parametrize("kind", [{}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize("step", [plain_step, closure_step])
def test_decay_joins_the_gradient_once(kind, step):
    share, layer = decay_of_a_step(lambda p: torch.optim.AdamW(p, lr=1e-9, **kind), step)
    assert share == pytest.approx(1.0, abs=1e-3)
    assert layer.step == 1


@pytest.mark.parametrize("kind", [{}, {"fused": True}])
def test_a_step_that_the_scaler_skips_does_not_count(kind):
    model = mlp()
    weft.sparsify_(model, "sr-ste+lambda=0.5", "2:4", plan="dense")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **kind)
    weft.attach(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for i in range(3):
        x, y = batch(seed=i)
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        if i == 1:
            model[2].weight.grad[0, 0] = float("inf")
        before = model[2].weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, model[2].weight) == (i == 1)
    assert model[2].step == 2


def test_micro_batches_count_one_step():
    model, optimizer = sparsified("t-sr-ste")
    for i in range(4):
        x, y = batch(seed=i)
        F.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert model[2].step == 1


def test_a_module_that_is_used_twice():
    model, optimizer = sparsified("s-ste")
    x = torch.randn(5, 32, requires_grad=True)
    model[2](model[2](x)).sum().backward()
    optimizer.step()
    assert model[2].step == 1


def test_forgetting_attach_is_noticed():
    model = mlp()
    weft.sparsify_(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(weft.Error, match="weft.attach"):
        train(model, optimizer, 2)


def test_edited_weights_are_followed():
    model, optimizer = sparsified("ste")
    train(model, optimizer, 2)
    model[2].weight.data.mul_(torch.randn_like(model[2].weight))
    model.eval()
    x = torch.randn(3, 32)
    kept = model[2].weight.detach() * weft.mask(model[2].weight, "2:4")
    with torch.no_grad():
        torch.testing.assert_close(model[2](x), F.linear(x, kept, model[2].bias))


# ---- saving, copying


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_goes_on_to_the_bit_from_a_checkpoint(recipe):
    model, optimizer = sparsified(recipe + "+mask_every=3" if recipe == "transposable" else recipe)
    train(model, optimizer, 5)
    saved = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
    expected = train(model, optimizer, 5, seed=50)

    again, optimizer = sparsified(
        recipe + "+mask_every=3" if recipe == "transposable" else recipe, seed=9
    )
    saved.seek(0)
    loaded = torch.load(saved, weights_only=True)
    again.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    assert train(again, optimizer, 5, seed=50) == expected


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_apart_and_equal(copied):
    model, optimizer = sparsified("bi-mask")
    train(model, optimizer, 4)
    twin = copied(model)
    x, _ = batch()
    with torch.no_grad():
        assert torch.equal(twin(x), model(x))
    assert twin[2]._weft.handle != model[2]._weft.handle and twin[2].step == 4
    before = twin[2].weight.detach().clone()
    train(model, optimizer, 1)
    assert torch.equal(twin[2].weight, before) and twin[2].step == 4


def test_a_dense_checkpoint_loads_strictly():
    dense = mlp(seed=5)
    model, optimizer = sparsified("lbc")
    train(model, optimizer, 3)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        model.load_state_dict(dense.state_dict(), strict=True)
    assert torch.equal(model[2].weight, dense[2].weight)
    assert any("dense" in str(w.message) for w in heard)
    with torch.no_grad():
        model(batch()[0])


@pytest.mark.parametrize("recipe", ["static", "static+dense_head=0", "bi-mask", "lbc", "t-sr-ste"])
def test_a_dense_checkpoint_begins_the_recipe_again(recipe):
    dense = mlp(seed=5).state_dict()

    def run(steps_before):
        model = mlp()
        weft.sparsify_(model, recipe, "2:4", total_steps=20, plan="sparse")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)  # which remembers nothing
        weft.attach(model, optimizer)
        train(model, optimizer, steps_before)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.load_state_dict(dense)
        assert model[2].step == 0
        return train(model, optimizer, 6, seed=50), weft.dense_state_dict(model)

    (losses, state), (fresh_losses, fresh_state) = run(7), run(0)
    assert losses == fresh_losses
    assert all(torch.equal(state[key], fresh_state[key]) for key in fresh_state)


def test_state_is_one_uint8_tensor_and_no_buffer():
    model, _ = sparsified("bi-mask")
    assert not list(model.buffers())
    extra = {k: v for k, v in model.state_dict().items() if k.endswith("_extra_state")}
    assert len(extra) == 2 and all(v.dtype == torch.uint8 for v in extra.values())


def test_tuning_keeps_the_zeros():
    model = mlp()
    with torch.no_grad():
        for i in (2, 4):
            model[i].weight.mul_(weft.mask(model[i].weight, "2:4"))
    zeros = model[2].weight == 0
    other = copy.deepcopy(model)
    with torch.no_grad():  # the zeros of every group one place further
        for i in (2, 4):
            other[i].weight.copy_(other[i].weight.view(32, -1, 4).roll(1, -1).view(32, -1))
    weft.sparsify_(model, "static", "2:4", mask="nonzero", total_steps=5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    weft.attach(model, optimizer)
    train(model, optimizer, 5)
    weft.densify_(dense := copy.deepcopy(model))
    assert torch.equal(dense[2].weight == 0, zeros)

    # Other pruned weights bring zeros of their own; weights without zeros are refused.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checkpoint is dense: said once per process
        model.load_state_dict(other.state_dict())
        train(model, optimizer, 3)
        assert torch.equal(model[2].effective_weight() == 0, other[2].weight == 0)
        model.load_state_dict(mlp().state_dict())
    with pytest.raises(weft.Error, match=r"^2: 256 groups have more non-zeros than 2:4 keeps"):
        model(batch()[0])


# ---- operators


def test_operators_pass_opcheck():
    model, _ = sparsified("sr-ste")
    layer = model[2]
    x = torch.randn(6, 32, requires_grad=True)
    layer(x)
    key = layer._clock.clone()
    torch.library.opcheck(
        torch.ops.weft.linear.default,
        (x, layer.weight, layer.bias, None, key, layer._weft.handle),
    )
    torch.library.opcheck(
        torch.ops.weft.prepare.default,
        (layer.weight.detach(), None, layer._clock, layer._weft.handle, True),
    )


@pytest.mark.parametrize("kind", ["linear", "conv2d"])
def test_a_mode_sees_the_operators_and_changes_no_bit(kind):
    """Without one, modules call the functions behind them: see weft.ops."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    torch.manual_seed(0)
    settings = {"recipe": "t-sr-ste", "pattern": "2:4", "total_steps": 100}
    if kind == "linear":
        layer, x = weft.nn.Linear(16, 8, **settings), torch.randn(6, 16, requires_grad=True)
    else:
        layer, x = weft.nn.Conv2d(8, 8, 3, **settings), torch.randn(2, 8, 5, 5, requires_grad=True)
    state, found, names = copy.deepcopy(layer.state_dict()), [], []
    for mode in (contextlib.nullcontext(), Seen()):
        layer.load_state_dict(state)
        layer.zero_grad()
        x.grad = None
        with mode:
            y = layer(x)
            y.square().sum().backward()
        found.append([y.detach(), x.grad, layer.weight.grad, layer.bias.grad])
        operators = {name for name in names if name.startswith("weft.")}
        expected = {f"weft.{name}.default" for name in ("prepare", kind, f"{kind}_backward")}
        assert operators == (set() if len(found) == 1 else expected)
    assert all(torch.equal(a, b) for a, b in zip(*found))


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])  # the first is the default
def test_fifty_compiled_steps_equal_eager_ones_without_recompiling(backend):
    recipe = "t-sr-ste+mask_every=3+dense_tail=0"  # masks and samples until the end
    eager, optimizer = sparsified(recipe, total_steps=50)
    expected = train(eager, optimizer, 50)
    model, optimizer = sparsified(recipe, total_steps=50)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    masks = []
    with torch._dynamo.config.patch(error_on_recompile=True):
        found = []
        for i in range(50):
            found += train(compiled, optimizer, 1, seed=1 + i)
            masks.append(model[2].mask().clone())
    assert found == pytest.approx(expected, rel=1e-4)
    assert sum(not torch.equal(a, b) for a, b in zip(masks, masks[1:])) >= 5  # refreshes
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(compiled(batch()[0]), eager(batch()[0]), rtol=1e-3, atol=1e-4)


def test_a_forward_pass_begins_once(monkeypatch):
    begun = []
    begin = weft.engine.Engine.begin_pass

    def count(engine, weight, scores, training):
        begun.append(training)
        begin(engine, weight, scores, training)

    monkeypatch.setattr(weft.engine.Engine, "begin_pass", count)
    layer = sparsified("t-sr-ste")[0][2]
    x = torch.randn(6, 32)
    layer(x)
    assert begun == [True]
    layer(layer(x)).sum().backward()
    assert begun == [True] * 3
    with torch.no_grad():
        layer(x)
    layer.eval()(x)
    assert begun == [True] * 3 + [False] * 2


def test_a_product_alone_begins_its_pass_and_sees_edits():
    """`prepare` may have run for a product that never came."""
    layer = sparsified("ste")[0][2]
    x = torch.randn(3, 32)
    torch.ops.weft.prepare(layer.weight, None, layer._clock, layer._weft.handle, True)
    layer.weight.data.mul_(torch.randn_like(layer.weight))
    kept = layer.weight.detach() * weft.mask(layer.weight, "2:4")
    with torch.no_grad():
        torch.testing.assert_close(layer(x), F.linear(x, kept, layer.bias))
    layer.weight.data.mul_(torch.randn_like(layer.weight))
    kept = layer.weight.detach() * weft.mask(layer.weight, "2:4")
    torch.testing.assert_close(layer(x), F.linear(x, kept, layer.bias))


def test_training_measures_the_forward_product():
    """The planner tries dense and sparse in training passes: 16 steps, 32 if it is close."""
    model, optimizer = sparsified("t-sr-ste", plan="auto", total_steps=100)
    train(model, optimizer, 40)
    reasons = {product: reason for product, _, reason in model[2]._weft.core.plan()}
    assert len(reasons) == 3
    assert all(reason.startswith("measured in the run") for reason in reasons.values()), reasons


def test_export_for_inference():
    model, optimizer = sparsified("s-ste")
    train(model, optimizer, 3)
    model.eval()
    x, _ = batch()
    with torch.no_grad():
        exported = torch.export.export(model, (x,))
        torch.testing.assert_close(exported.module()(x), model(x))


@pytest.mark.parametrize("unit", [False, True], ids=["fp32 kernels", "bf16 kernels"])
@pytest.mark.parametrize("recipe", ["s-ste+gradient=exact", "lbc"])
def test_autocast_trains_on_wefts_kernels(recipe, unit):
    model, optimizer = sparsified(recipe)
    layers = [m for m in model if isinstance(m, weft.nn.Linear)]
    for layer in layers:
        layer._weft.narrow = unit
    x, y = batch()
    F.cross_entropy(model(x), y).backward()
    exact = [layer.weight.grad.clone() for layer in layers]
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
        loss = F.cross_entropy(out.float(), y)
    loss.backward()
    assert out.dtype == torch.bfloat16
    for layer, wanted in zip(layers, exact):
        assert layer.weight.grad.dtype == layer.bias.grad.dtype == torch.float32
        found = layer.weight.grad
        assert 0.97 < F.cosine_similarity(found.flatten(), wanted.flatten(), dim=0) < 1
        assert layer._weft.core.plan()[0][1] == "sparse"
    optimizer.step()


def test_bf16_products_are_those_of_rounded_operands():
    layer = weft.nn.Linear(64, 48, recipe="sr-ste", pattern="2:4")
    layer._weft.narrow = True
    x = torch.randn(40, 64, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    rounded = layer.effective_weight().bfloat16().float()
    exact = x.bfloat16().float() @ rounded.t() + layer.bias
    torch.testing.assert_close(y.float(), exact, rtol=2**-8, atol=1e-5)  # y is rounded once
    assert layer(x).dtype == torch.float32  # in the same step, and before the backward pass
    g = torch.randn_like(y)
    y.backward(g)
    torch.testing.assert_close(x.grad, g.float() @ rounded, rtol=2**-7, atol=1e-4)
    torch.testing.assert_close(
        layer.weight.grad, g.float().t() @ x.detach().bfloat16().float(), rtol=1e-5, atol=1e-4
    )
    torch.testing.assert_close(layer.bias.grad, g.float().sum(0), rtol=1e-5, atol=1e-5)


# ---- models as users have them


def test_transformer_encoder_layer_in_both_modes():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Linear(16, 32), layer, nn.Linear(32, 10))
    dense = copy.deepcopy(model)
    report = {r.name: r for r in weft.sparsify_(model, "s-ste", plan="sparse")}
    assert report["1.linear1"].recipe == "s-ste"
    assert "MultiheadAttention" in report["1.self_attn.out_proj"].reason
    x = torch.randn(2, 6, 16)
    outputs = {}
    for mode in (True, False):
        model.train(mode)
        with torch.no_grad():
            outputs[mode] = model(x)
    assert all(layer._weft.calls == 2 for layer in (model[1].linear1, model[1].linear2))
    plain = weft.densify_(model)
    for mode in (True, False):
        plain.train(mode)
        torch.testing.assert_close(plain(x), outputs[mode], rtol=1e-5, atol=1e-5)
        assert not torch.allclose(dense.train(mode)(x), outputs[mode], atol=1e-3)


def test_lstm_and_embedding_are_left_alone_with_a_reason():
    model = nn.ModuleDict(
        {"emb": nn.Embedding(8, 16), "rnn": nn.LSTM(16, 16), "a": nn.Linear(16, 16),
         "b": nn.Linear(16, 16)}
    )  # fmt: skip
    report = {r.name: r for r in weft.sparsify_(model)}
    assert "embedding" in report["emb"].reason and "LSTM" in report["rnn"].reason
    assert report["a"].recipe == "s-ste" and report["b"].reason == "the last layer"


def test_wrong_calls_get_one_clear_line():
    model, optimizer = sparsified("s-ste")
    fresh = mlp()
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    wrong = [
        (lambda: weft.sparsify_(mlp(), pattern="9:4"), "9:4"),
        (lambda: weft.sparsify_(mlp(), recipe="magic"), "magic"),
        (lambda: weft.sparsify_(mlp(), recipe="lbc"), "total_steps"),
        (lambda: weft.sparsify_(mlp(), rules=[("(", "dense")]), "("),
        (lambda: weft.sparsify_(nn.ReLU()), "no layer to sparsify"),
        (lambda: weft.sparsify_(model), "sparsified already"),
        (lambda: weft.attach(fresh, other), "sparsify_"),
        (lambda: weft.attach(model, optimizer), "already"),
        (lambda: model[2](torch.randn(3, 5)), "[3, 5]"),
    ]
    weft.sparsify_(lonely := mlp())
    wrong.append((lambda: weft.attach(lonely, other), "holds none"))
    for call, word in wrong:
        with pytest.raises(weft.Error) as caught:
            call()
        assert word in str(caught.value) and "\n" not in str(caught.value), str(caught.value)
