"""Methods whose mask and operand are Python functions train like built-in ones."""

import copy
import io

import pytest

torch = pytest.importorskip("torch")
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import weft  # noqa: E402


def top2(w):
    """The two largest of four consecutive inputs, in torch's own operations."""
    groups = w.abs().movedim(1, -1)
    groups = groups.reshape(*groups.shape[:-1], -1, 4)
    kept = torch.zeros_like(groups, dtype=torch.bool)
    kept.scatter_(-1, groups.topk(2).indices, True)
    return kept.flatten(-2).movedim(-1, 1).contiguous()


def first2(w):
    kept = torch.arange(w.shape[1]) % 4 < 2
    return kept.view(1, -1, *[1] * (w.dim() - 2)).expand(w.shape)


def mlp(seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)]
    return nn.Sequential(*layers)


def conv(seed=0):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 10)]
    return nn.Sequential(*layers)


def batch(seed, image=False):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(24, 64 if image else 16, generator=generator)
    return x.view(24, 1, 8, 8) if image else x, torch.randint(0, 10, (24,), generator=generator)


def start(recipe, make=mlp, **settings):
    model = make()
    weft.sparsify_(model, recipe, "2:4", plan="sparse", **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    weft.attach(model, optimizer)
    return model, optimizer


def train(model, optimizer, steps, seed=0):
    losses = []
    for i in range(steps):
        x, y = batch(seed + i, isinstance(model[0], nn.Conv2d))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("make", [mlp, conv])
@pytest.mark.parametrize(
    "base",
    ["ste", "sr-ste+lambda=0.05", "sr-ste+gradient=mvue", "sr-ste+dense_tail=0.3", "ste+fp8"],
)
def test_top2_trains_as_the_built_in_recipe(make, base):
    expected = train(*start(base, make, total_steps=10), 10)
    model, optimizer = start(weft.Method(top2, base=base), make, total_steps=10)
    assert train(model, optimizer, 10) == pytest.approx(expected, abs=1e-6)
    assert model[2]._weft.calls == 10 and model[2].path == "packed"
    other = train(*start(weft.Method(first2, base=base), make, total_steps=10), 10)
    assert other != pytest.approx(expected, abs=1e-3)


def test_the_plain_path_trains_the_same():
    expected = train(*start(weft.Method(top2, operand=lambda w, m: w * 2)), 6)
    model, optimizer = start(weft.Method(top2, operand=lambda w, m: w * 2))
    model[2]._weft.plain = True
    assert train(model, optimizer, 6) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("make", [mlp, conv])
def test_an_operand_of_ones_own_trains_as_s_ste(make):
    expected = train(*start("s-ste+gradient=exact", make), 10)
    beta = []

    def soft(w, mask):
        values, found = weft.soft_threshold(w, "2:4", beta=beta[0] if beta else None)
        beta.append(found)
        return values

    model, optimizer = start(weft.Method(top2, operand=soft), make)
    assert train(model, optimizer, 10) == pytest.approx(expected, abs=1e-6)
    assert len(beta) == 10  # once per step, not once per product
    model.eval()
    x, _ = batch(0, make is conv)
    with torch.no_grad():
        before = model(x)
    torch.testing.assert_close(weft.densify_(model)(x), before, rtol=1e-5, atol=1e-5)


def test_the_mask_function_is_called_when_it_is_due():
    steps = []

    def counted(w):
        steps.append(model[2].step)
        return first2(w)

    model, optimizer = start(weft.Method(counted, every=3))
    with torch.no_grad():
        model(batch(0)[0])  # an evaluation before anything else
    assert torch.equal(model[2].mask(), first2(model[2].weight))
    train(model, optimizer, 7)
    model.eval()
    with torch.no_grad():
        model(batch(0)[0])
    assert steps == [0, 3, 6]
    model[2].weight.data.mul_(2)  # edited: the mask is made again
    with torch.no_grad():
        model(batch(0)[0])
    assert steps == [0, 3, 6, 7]
    assert torch.equal(model[2].mask(), first2(model[2].weight))


def test_a_mask_that_is_found_once():
    calls = []

    def once(w):
        calls.append(1)
        return first2(w)

    model, optimizer = start(weft.Method(once, every=0, base="static+dense_head=0"))
    weight = model[2].weight
    dropped = ~first2(weight)
    pruned = weight.detach()[dropped]
    train(model, optimizer, 5)
    assert len(calls) == 1
    assert torch.equal(weight.detach()[dropped], pruned)  # a masked gradient


@pytest.mark.parametrize("steps", [4, 5, 6])
def test_a_run_goes_on_from_a_checkpoint(steps):
    method = weft.Method(top2, every=3, base="sr-ste")
    model, optimizer = start(method)
    train(model, optimizer, steps)
    saved = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
    mask = model[2].mask()
    expected = train(model, optimizer, 5, seed=50)
    again, optimizer = start(method, make=lambda: mlp(9))
    saved.seek(0)
    loaded = torch.load(saved, weights_only=True)
    again.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    assert torch.equal(again[2].mask(), mask)
    assert train(again, optimizer, 5, seed=50) == expected


def test_copies_have_the_method():
    model, optimizer = start(weft.Method(top2, every=3))
    train(model, optimizer, 5)
    twin = copy.deepcopy(model)
    assert torch.equal(twin[2].mask(), model[2].mask())
    second = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    weft.attach(twin, second)
    assert train(twin, second, 5, seed=50) == train(model, optimizer, 5, seed=50)


def test_rules_layers_and_reports_take_methods():
    model = mlp()
    report = weft.sparsify_(model, "s-ste", rules=[("2", weft.Method(top2), "2:4")])
    assert report[1].recipe == "top2 (base ste)" and model[2].recipe == "top2 (base ste)"
    layer = weft.nn.Linear(8, 8, recipe=weft.Method(first2))
    x = torch.randn(3, 8)
    kept = layer.weight * first2(layer.weight)
    torch.testing.assert_close(layer(x), F.linear(x, kept, layer.bias))


def test_compiled_steps_equal_eager_ones():
    method = weft.Method(top2, every=2, operand=lambda w, m: w * 1.5)
    expected = train(*start(method), 6)
    model, optimizer = start(method)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    losses = []
    for i in range(6):
        x, y = batch(i)
        optimizer.zero_grad()
        loss = F.cross_entropy(compiled(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-5)


def test_wrong_methods_get_one_clear_line():
    def passes(method):
        model, optimizer = start(method)
        train(model, optimizer, 2)

    keep_all = weft.Method(lambda w: torch.ones_like(w, dtype=torch.bool), name="all")
    wrong = [
        (lambda: passes(keep_all), "the mask function of 'all': '2': the mask violates 2:4"),
        (lambda: passes(weft.Method(lambda w: w)), "torch.float32 [32, 32]; wanted is torch.bool"),
        (lambda: passes(weft.Method(lambda w: None, name="none")), "'none' returned NoneType"),
        (lambda: passes(weft.Method(top2, operand=lambda w, m: w[:2])), "operand function"),
        (lambda: passes(weft.Method(first2, base="transposable")), "violates 2:4"),
        (lambda: weft.Method(top2, base="bi-mask"), "takes no mask from outside"),
        (lambda: weft.Method(top2, base="s-ste"), "takes no mask from outside"),
        (lambda: weft.Method(top2, base="sr-ste", every=0), "takes no mask from outside"),
        (lambda: weft.Method(top2, base="magic"), "magic"),
        (lambda: weft.Method(top2, every=-1), "every=-1"),
        (lambda: weft.Method(top2, base="ste+mask_every=4"), "with every="),
        (lambda: weft.Method("top2"), "functions"),
    ]
    for call, words in wrong:
        with pytest.raises(weft.Error) as caught:
            call()
        assert words in str(caught.value) and "\n" not in str(caught.value), str(caught.value)
