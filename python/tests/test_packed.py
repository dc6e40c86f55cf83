"""Packed models: the same numbers from less memory, in files that the command line reads."""

import copy
import io
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
import torch.nn as nn  # noqa: E402
import weft  # noqa: E402
from weft.packed import PackedLinear  # noqa: E402


def prune(module, pattern="2:4"):
    with torch.no_grad():
        module.weight.mul_(weft.mask(module.weight, pattern))


def model_of(width=64, pattern="2:4", seed=0):
    """The first and the last layer are dense, the two between N:M."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width, bias=False), nn.ReLU(), nn.Linear(width, 10),
    ).eval()  # fmt: skip
    prune(model[2], pattern)
    prune(model[4], pattern)
    return model


def output(model, tokens=5, ins=16):
    with torch.no_grad():
        return model(torch.randn(tokens, ins, generator=torch.Generator().manual_seed(tokens)))


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# ---- pack_


@pytest.mark.parametrize("layout", ["auto", "stream", "panel", "both"])
def test_the_output_is_that_of_the_dense_model(layout):
    model = model_of()
    expected = {tokens: output(model, tokens) for tokens in (1, 16, 17, 40, 3)}
    report = weft.pack_(model, layout=layout)
    assert [r.packed for r in report] == [False, True, True, False]
    for tokens, values in expected.items():
        close(output(model, tokens), values)


@pytest.mark.parametrize("pattern", ["2:4", "1:4", "4:8"])
def test_a_short_last_group_computes_the_same(pattern):
    """22 inputs are no multiple of the group: docs/masks.md has the policy."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 22), nn.Linear(22, 33), nn.Linear(33, 8)).eval()
    prune(model[1], pattern)
    expected = {tokens: output(model, tokens) for tokens in (1, 5, 40)}
    report = weft.pack_(model)
    assert [r.packed for r in report] == [False, True, False]
    for tokens, values in expected.items():
        close(output(model, tokens), values)


def test_memory_shrinks_and_no_dense_weight_is_left():
    model = model_of(256)
    dense = sum(p.numel() for p in model.parameters()) * 4
    report = weft.pack_(model)
    kept = sum(p.numel() for p in model.parameters()) * 4
    assert report.nbytes_before == dense
    assert report.nbytes == kept + model[2].nbytes + model[4].nbytes
    assert model[2].nbytes < 0.54 * 256 * 256 * 4
    assert "weight" not in dict(model[2].named_parameters()) and not hasattr(model[2], "weight")
    assert [r.nbytes for r in report if r.packed] == [model[2].nbytes, model[4].nbytes]
    assert "2 of 4 layers are packed" in str(report) and str(report.nbytes) in str(report)
    half = weft.pack_(model_of(256), values="bf16")
    assert sum(r.nbytes for r in half.packed) < 0.29 * 2 * 256 * 256 * 4


def test_a_stream_becomes_panels_when_many_tokens_come_and_is_never_both():
    model = model_of(256)
    weft.pack_(model)
    output(model, 16)
    assert model[2].matrix.layout == "stream"
    output(model, 17)
    # 0.75 are values and their places; where rows begin in panels takes more, by the size of L1.
    assert model[2].matrix.layout == "panel" and model[2].nbytes < 0.80 * 256 * 256 * 4
    fixed = model_of(256)
    report = weft.pack_(fixed, layout="stream")
    output(fixed, 100)
    assert fixed[2].nbytes == report.packed[0].nbytes < 0.54 * 256 * 256 * 4
    both = model_of(256)
    report = weft.pack_(both, layout="both")
    output(both, 100)
    assert both[2].nbytes == report.packed[0].nbytes > 256 * 256 * 4


@pytest.mark.parametrize(
    "tokens, path, layout",
    [(1, "sparse stream", "stream"), (8, "sparse", "panel"), (4, "dense", "stream"),
     (64, "dense", "panel")],
)  # fmt: skip
def test_the_planner_chooses_the_layout_for_the_tokens_given(monkeypatch, tokens, path, layout):
    import weft.packing as packing

    def plan(asked, ins, outs, pattern, products_per_pack):
        assert (asked, ins, outs, pattern, products_per_pack) == (tokens, 64, 64, "2:4", 0)
        return [weft.arrays.ProductPlan("fwd", path, 0.9, "because")]

    monkeypatch.setattr(packing.arrays, "plan", plan)
    packing._planned.cache_clear()
    model = model_of()
    report = weft.pack_(model, tokens=tokens)
    packing._planned.cache_clear()
    assert [r.layout for r in report.packed] == [layout, layout]
    assert all("because" in r.reason for r in report.packed)
    assert all(("no faster than dense" in r.reason) == (path == "dense") for r in report.packed)
    output(model, 40)
    assert model[2].matrix.layout == layout


@pytest.mark.parametrize("pattern", ["2:4", "1:4", "1:8", "4:8", "2:16"])
def test_the_pattern_is_found(pattern):
    report = weft.pack_(model_of(pattern=pattern))
    assert [r.pattern for r in report.packed] == [pattern, pattern]
    report = weft.pack_(model_of(pattern="1:4"), "2:4")
    assert [r.pattern for r in report.packed] == ["2:4", "2:4"]


def test_bf16_rounds_the_weights_only():
    model, rounded = model_of(), model_of()
    with torch.no_grad():
        for layer in (rounded[2], rounded[4]):
            layer.weight.copy_(layer.weight.bfloat16())
    weft.pack_(model, values="bf16")
    close(output(model), output(rounded))


def test_layers_that_stay_say_why():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(8, 32)
            self.conv = nn.Conv2d(8, 8, 3)
            self.full = nn.Linear(32, 32)
            self.good = nn.Linear(32, 32)
            self.left = nn.Linear(32, 32)
            self.head = nn.Linear(32, 8)
            self.wide = nn.Linear(32, 32, dtype=torch.float64)
            self.tiny = nn.Linear(4, 2)
            self.broken = nn.Linear(32, 32)
            self.head.weight = self.embedding.weight

    model = Model()
    for module in (model.conv, model.good, model.left, model.head, model.wide, model.tiny):
        prune(module)
    with torch.no_grad():
        model.broken.weight.fill_(float("nan"))
    report = weft.pack_(model, "2:4", filter=lambda name, module: name != "left")
    why = {r.name: r.reason for r in report if not r.packed}
    assert [r.name for r in report.packed] == ["good"]
    assert "embedding" in why["embedding"] and "convolution" in why["conv"]
    assert "more non-zeros than 2:4" in why["full"] and "filter" in why["left"]
    assert "tied" in why["head"] and "float64" in why["wide"] and "bytes" in why["tiny"]
    assert "not finite" in why["broken"]
    assert type(model.full) is nn.Linear and type(model.conv) is nn.Conv2d
    no_pattern = Model()
    prune(no_pattern.good)
    assert "100%" in {r.name: r.reason for r in weft.pack_(no_pattern)}["full"]


@pytest.mark.parametrize("pattern", ["2:4", "2:4x2"])
def test_a_sparsified_model_is_packed_with_its_recipe_s_pattern(pattern):
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(16, 64), nn.Linear(64, 64), nn.Conv2d(1, 4, 3), nn.Linear(62, 8)
    )
    weft.sparsify_(model, "s-ste", pattern, filter=lambda name, module: name in "12")
    x = torch.randn(3, 64)
    with torch.no_grad():
        expected = model[1](x)
        report = {r.name: r for r in weft.pack_(model)}
        close(model[1](x), expected)
    assert report["1"].pattern == pattern and "convolution" in report["2"].reason
    assert type(model[2]) is nn.Conv2d


def test_shapes_dtypes_and_autocast():
    model = model_of()
    weft.pack_(model)
    layer = model[2]
    with torch.no_grad():
        assert layer(torch.randn(64)).shape == (64,)
        assert layer(torch.randn(2, 3, 64)).shape == (2, 3, 64)
        assert layer(torch.randn(0, 64)).shape == (0, 64)
        assert layer(torch.randn(4, 64).bfloat16()).dtype == torch.bfloat16
        strided = torch.randn(64, 6).t()
        close(layer(strided), layer(strided.contiguous()))
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(torch.randn(4, 64)).dtype == torch.bfloat16


def test_bfloat16_models_store_bf16():
    model = model_of().bfloat16()
    report = weft.pack_(model)
    assert [r.values for r in report.packed] == ["bf16", "bf16"]
    assert all(r.nbytes < 0.6 * r.nbytes_before for r in report.packed)
    with torch.no_grad():
        assert model(torch.randn(4, 16).bfloat16()).dtype == torch.bfloat16


def test_a_transformer_in_eval_calls_its_packed_layers():
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(block, 2).eval()
    for layer in model.layers:
        prune(layer.linear1)
        prune(layer.linear2)
    x = torch.randn(2, 5, 32)
    with torch.no_grad():
        expected = model(x)
        assert len(weft.pack_(model).packed) == 4
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)


def test_the_operator_composes():
    model = model_of()
    weft.pack_(model, layout="stream")
    layer = model[2]
    x = torch.randn(3, 64)
    torch.library.opcheck(
        torch.ops.weft.packed_linear.default, (x, layer.bias.detach(), layer._handle, 64)
    )
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    close(output(compiled), output(model))


# ---- copies, state


@pytest.mark.parametrize("layout", ["auto", "panel", "both"])
def test_copies_pickles_and_state_dicts(layout):
    model = model_of()
    weft.pack_(model, layout=layout)
    expected = output(model)
    twin = copy.deepcopy(model)
    assert torch.equal(output(twin), expected)
    twin[2].load_state_dict({"weight": torch.zeros(64, 64), "bias": model[2].bias})
    assert not torch.equal(output(twin), expected) and torch.equal(output(model), expected)
    assert torch.equal(output(pickle.loads(pickle.dumps(model))), expected)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert state["2.packed"].dtype == torch.uint8 and "2.weight" not in state
    other = model_of(seed=5)
    weft.pack_(other, layout=layout)
    assert not torch.equal(output(other), expected)
    other.load_state_dict(state)
    close(output(other), expected)


def test_a_dense_state_dict_loads_if_it_obeys():
    dense = model_of(seed=5)
    expected = output(dense)
    model = model_of()
    weft.pack_(model)
    model.load_state_dict(dense.state_dict())
    close(output(model), expected)
    full = model_of(seed=6)
    nn.init.normal_(full[2].weight)
    with pytest.raises(RuntimeError, match="2.weight: .* more non-zeros than 2:4"):
        model.load_state_dict(full.state_dict())
    missing = {k: v for k, v in dense.state_dict().items() if k != "2.weight"}
    with pytest.raises(RuntimeError, match="2.packed"):
        model.load_state_dict(missing)
    weft.pack_(other := model_of(128))
    with pytest.raises(RuntimeError, match=r"\[128, 128\]"):
        model[2].load_state_dict(other[2].state_dict())


# ---- files


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "weft", *map(str, arguments)], capture_output=True, text=True
    )


@pytest.mark.parametrize("values", ["fp32", "bf16"])
def test_files_are_those_of_the_command_line(tmp_path, values):
    safetensors = pytest.importorskip("safetensors.torch")
    model = model_of()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    weft.pack_(model, values=values)
    path, back = tmp_path / "packed.safetensors", tmp_path / "dense.safetensors"
    report = weft.save_packed(model, path)
    assert [t["name"] for t in report["tensors"]] == ["2.weight", "4.weight"]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]  # nothing is left beside it
    checked = weft.check_file(path)
    assert checked["valid"] and len(checked["tensors"]) == 2
    run = command("check", path)
    assert run.returncode == 0 and "2.weight" in run.stdout, run.stderr
    run = command("unpack", path, back)
    assert run.returncode == 0, run.stderr
    read = safetensors.load_file(back)
    assert read.keys() == weights.keys()
    for name, value in read.items():
        rounded = values == "bf16" and name in ("2.weight", "4.weight")
        assert torch.equal(value, weights[name].bfloat16() if rounded else weights[name])
    weft.save_packed(model, path)  # over the old one

    fresh = model_of(seed=8)
    loaded = weft.load_packed_(fresh, path)
    assert [(r.name, r.values) for r in loaded.packed] == [("2", values), ("4", values)]
    assert isinstance(fresh[2], PackedLinear) and type(fresh[0]) is nn.Linear
    assert torch.equal(output(fresh), output(model))

    packed = model_of(seed=9, pattern="1:4")  # packed already, with another pattern
    weft.pack_(packed, layout="panel")
    loaded = weft.load_packed_(packed, path)
    assert [(r.pattern, r.layout) for r in loaded.packed] == [("2:4", "panel")] * 2
    close(output(packed), output(model))


def test_files_of_weft_pack_load_and_convolutions_stay_dense(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    torch.manual_seed(0)
    make = lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(1), nn.Linear(32, 32))  # noqa: E731
    model = make()
    prune(model[0])
    prune(model[2])
    dense, path = tmp_path / "dense.safetensors", tmp_path / "packed.safetensors"
    safetensors.save_file(model.state_dict(), dense)
    assert command("pack", dense, path, "--pattern", "2:4", "--values", "bf16").returncode == 0
    other = make()
    report = {r.name: r for r in weft.load_packed_(other, path)}
    assert report["2"].values == "bf16" and "convolution" in report["0"].reason
    torch.testing.assert_close(other[0].weight, model[0].weight.bfloat16().float())
    assert torch.equal(other[2].dense_weight(), model[2].weight.bfloat16().float())


def test_tied_weights_are_saved_twice(tmp_path):
    pytest.importorskip("safetensors.torch")
    model = model_of()
    model.add_module("tied", nn.Linear(16, 64))
    model.tied.weight = model[0].weight
    model.forward = lambda x: nn.Sequential(*list(model)[:7])(x)
    weft.pack_(model)
    weft.save_packed(model, tmp_path / "m.safetensors")
    weft.load_packed_(model, tmp_path / "m.safetensors")
    assert model.tied.weight is model[0].weight


# ---- wrong calls


def test_wrong_calls_get_one_clear_line(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    packed = model_of()
    weft.pack_(packed)
    dense, path = tmp_path / "dense.safetensors", tmp_path / "packed.safetensors"
    safetensors.save_file(model_of().state_dict(), dense)
    weft.save_packed(packed, path)
    (tmp_path / "broken.safetensors").write_bytes(path.read_bytes()[:300])
    sparse = model_of()
    weft.sparsify_(sparse)
    wrong = [
        (lambda: weft.pack_(model_of(), values="int8"), "int8"),
        (lambda: weft.pack_(model_of(), layout="tile"), "tile"),
        (lambda: weft.pack_(model_of(), "5:4"), "5:4"),
        (lambda: weft.pack_(model_of(), tokens=0), "tokens"),
        (lambda: weft.pack_(nn.Linear(8, 8)), "no layer to pack"),
        (lambda: weft.pack_(nn.ReLU()), "no layer to pack"),
        (lambda: packed(torch.randn(3, 16)), "no_grad"),
        (lambda: packed[2](torch.randn(3, 5)), "[3, 5]"),
        (lambda: packed[2](torch.empty(3, 64, device="meta")), "meta"),
        (lambda: weft.save_packed(model_of(), path), "pack_"),
        (lambda: weft.save_packed(packed, tmp_path / "none" / "x.safetensors"), "none"),
        (lambda: weft.load_packed_(model_of(), dense), "dense.safetensors"),
        (lambda: weft.load_packed_(model_of(), tmp_path / "missing"), "missing"),
        (lambda: weft.load_packed_(model_of(), tmp_path / "broken.safetensors"), "broken"),
        (lambda: weft.load_packed_(model_of()[:5], path), "6.bias"),
        (lambda: weft.load_packed_(nn.Sequential(*model_of(), nn.Linear(10, 2)), path), "7.weight"),
        (lambda: weft.load_packed_(model_of(128), path), "size mismatch"),
        (lambda: weft.load_packed_(sparse, path), "sparsified"),
    ]
    for call, word in wrong:
        with pytest.raises(weft.Error) as caught:
            call()
            pytest.fail(word)
        assert word in str(caught.value) and "\n" not in str(caught.value), str(caught.value)
    assert type(sparse[2]) is weft.nn.Linear
