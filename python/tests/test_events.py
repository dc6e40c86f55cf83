"""The event files of `weft export`, read by the tensorboard package; skipped where one is missing."""

import csv
import json
import os
import subprocess
from pathlib import Path

import pytest

loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")

PROGRAM = Path(os.environ.get("WEFT", Path(__file__).parents[2] / "build/release/bin/weft"))
STEPS = 12

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the program weft is not built")


def step_line(step):
    return {
        "step": step,
        "loss": None if step == 5 else 3.0 / step,
        "learning_rate": 1e-3,
        "flip_rate": 0.01,
        "density": 0.5,
        "step_ms": 20.0,
        "split_ms": {"fwd": 4.0, "bwd_x": 5.0},
        "layers": {'a,"b"/ü': {"flip_rate": 0.02, "retained": 0.75, "plan": "dense"}},
    }


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "first"
    folder.mkdir()
    record = {
        "format": "weft.run",
        "version": 1,
        "options": {"model": "mlp", "steps": STEPS},
        "environment": {},
        "plan": {},
        "status": "running",
    }
    (folder / "run.json").write_text(json.dumps(record))
    lines = [step_line(step) for step in range(1, STEPS + 1)]
    lines.append({"step": STEPS, "eval_loss": 0.25, "eval_accuracy": 0.5, "eval_samples": 10})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def export(run, *arguments):
    command = [PROGRAM, "export", run, "--to", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_tensorboard_reads_every_figure(run, tmp_path):
    export(run, "tensorboard", "--out", tmp_path / "events")
    (file,) = (tmp_path / "events/first").glob("events.*")
    events = list(loader.EventFileLoader(str(file)).Load())
    assert events[0].file_version == "brain.Event:2"
    scalars = {}
    for event in events[1:]:
        for value in event.summary.value:
            number = value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
            scalars.setdefault(value.tag, {})[event.step] = (number, event.wall_time)
    loss = scalars["train/loss"]
    assert set(loss) == set(range(1, STEPS + 1)) - {5}
    assert loss[4][0] == pytest.approx(0.75)
    assert loss[12][1] - loss[2][1] == pytest.approx(0.2, abs=1e-4)
    assert scalars["eval/accuracy"] == {STEPS: (0.5, pytest.approx(loss[12][1]))}
    assert scalars["time/bwd_x_ms"][3][0] == 5.0
    assert scalars['retained/a,"b"/ü'][3][0] == 0.75
    assert 'plan/a,"b"/ü' not in scalars


def test_tensorboards_own_index_has_the_run(run, tmp_path):
    multiplexer = pytest.importorskip(
        "tensorboard.backend.event_processing.plugin_event_multiplexer"
    ).EventMultiplexer()
    export(run, "tensorboard", "--out", tmp_path / "events")
    multiplexer.AddRunsFromDirectory(str(tmp_path / "events"))
    multiplexer.Reload()
    assert set(multiplexer.Runs()) == {"first"}
    assert len(multiplexer.Tensors("first", "train/loss")) == STEPS - 1


def test_csv_reads_back(run):
    rows = list(csv.DictReader(export(run, "csv").splitlines()))
    assert len(rows) == STEPS + 1
    assert float(rows[3]["loss"]) == 0.75 and rows[4]["loss"] == ""
    assert float(rows[-1]["eval_accuracy"]) == 0.5
    layers = list(csv.DictReader(export(run, "csv", "--layers").splitlines()))
    assert {row["layer"] for row in layers} == {'a,"b"/ü'}
    assert {row["figure"] for row in layers} == {"flip_rate", "retained"}
