"""The files of TensorBoard, MLflow, and W&B, read back and compared with the run."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from simulations.simulation import complete
from simulations.tracking import tracked

Quick = Callable[..., Experiment]
Read = Callable[[Path], dict[str, list[tuple[int, float]]]]
TOOLS = ["tensorboard", "mlflow", "wandb"]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove a developer's settings for these tools."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def identity(folder: Path, tool: str) -> str:
    return json.loads((folder / "tracking" / f"{tool}.json").read_text())["run"]


def read_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in names}


def read_mlflow(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from mlflow import MlflowClient

    client, run = MlflowClient((folder / "mlruns").as_uri()), identity(folder, "mlflow")
    names = client.get_run(run).data.metrics
    return {
        name: [(metric.step, metric.value) for metric in client.get_metric_history(run, name)]
        for name in names
    }


def wandb_records(folder: Path) -> Iterator[Any]:
    """Yield the records of the only offline run in a folder (protobuf in LevelDB's log format)."""
    from wandb.proto import wandb_internal_pb2 as proto

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, at, part = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # no header fits in the rest of the block
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # complete, or the last part
            record, part = proto.Record.FromString(part), b""
            yield record


def read_wandb(folder: Path) -> dict[str, list[tuple[int, float]]]:
    values: dict[str, list[tuple[int, float]]] = {}
    for record in wandb_records(folder):
        if record.WhichOneof("record_type") == "history":
            items = {".".join(item.nested_key) or item.key: item for item in record.history.item}
            step = json.loads(items.pop("_step").value_json)
            for name, item in items.items():
                values.setdefault(name, []).append((step, json.loads(item.value_json)))
        if record.WhichOneof("record_type") == "summary":
            for item in record.summary.update:
                name = ".".join(item.nested_key) or item.key
                if name.startswith("result."):
                    values[name] = [(0, json.loads(item.value_json))]
    return values


READERS: dict[str, Read] = {
    "tensorboard": read_tensorboard,
    "mlflow": read_mlflow,
    "wandb": read_wandb,
}


def assert_holds(folder: Path, tool: str) -> None:
    """Check a tool's numbers against the files of the run: every round once."""
    measured, lines = READERS[tool](folder), RunFolder(folder).rounds()
    result = json.loads((folder / "result.json").read_text())
    expected = {
        "score": [(line["round"], line["score"]) for line in lines if line["score"] is not None],
        "loss": [(line["round"], line["loss"]) for line in lines],
        "metric.f1": [(line["round"], line["metrics"]["f1"]) for line in lines if line["metrics"]],
        "up_message": [(line["round"], line["bytes"]["up"]["message"]) for line in lines],
        "seconds": [(line["round"], line["seconds"]) for line in lines],
    }
    for name, values in expected.items():
        assert [step for step, _ in measured[name]] == [number for number, _ in values], name
        assert dict(measured[name]) == pytest.approx(dict(values), rel=1e-6), name
    assert measured["sent_up_message"][-1] == (len(lines), result["bytes"]["up"]["message"])
    assert measured["sent_down_payload"][-1] == (
        len(lines),
        result["bytes"]["down"]["payload"],
    )
    assert dict(measured["result.score"]) == {0: pytest.approx(result["score"])}
    assert "epsilon" not in measured


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_holds_the_measurements_of_the_run(quick: Quick, tmp_path: Path, tool: str) -> None:
    complete(quick("output.eval_every=2", f"output.track={tool}"), tmp_path / "run")
    assert_holds(tmp_path / "run", tool)
    before = sorted((tmp_path / "run").rglob("*"))
    complete(quick("output.eval_every=2", f"output.track={tool}"), tmp_path / "run")
    assert sorted((tmp_path / "run").rglob("*")) == before  # a finished run is not reported again


@pytest.mark.parametrize("tool", TOOLS)
def test_a_resumed_run_is_one_run_with_every_round_once(
    quick: Quick, tmp_path: Path, tool: str
) -> None:
    """The first session sees some rounds of a finished run's files, the second all of them."""
    experiment = quick("federation.rounds=4", f"output.track={tool}")
    complete(quick("federation.rounds=4"), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    whole = (folder.path / "rounds.jsonl").read_text()
    (folder.path / "rounds.jsonl").write_text("".join(whole.splitlines(keepends=True)[:2]))
    with pytest.raises(KeyboardInterrupt), tracked(folder, experiment):
        raise KeyboardInterrupt
    first = identity(folder.path, tool)
    (folder.path / "rounds.jsonl").write_text(whole)
    # As after a kill: the tool received more rounds than the state file says.
    state = folder.path / "tracking" / f"{tool}.json"
    state.write_text(json.dumps({"run": first, "round": 1, "ended": False}))
    with tracked(folder, experiment):
        pass
    assert identity(folder.path, tool) == first
    assert_holds(folder.path, tool)


def test_mlflow_has_settings_digests_and_the_result_file(quick: Quick, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    result = complete(quick("output.track=mlflow"), tmp_path / "named")
    client = MlflowClient((tmp_path / "named" / "mlruns").as_uri())
    run = client.get_run(identity(tmp_path / "named", "mlflow"))
    assert (run.info.run_name, run.info.status) == ("named", "FINISHED")
    assert run.data.params["method.d"] == "16"
    assert run.data.params["output.track"] == "mlflow"
    assert run.data.tags["result.digests.vector"] == result["digests"]["vector"]
    (artifact,) = client.list_artifacts(run.info.run_id)
    assert artifact.path == "result.json"
    assert client.get_experiment(run.info.experiment_id).name == "fedpeft"


def test_mlflow_writes_to_the_address_in_the_environment(
    quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "common").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    for name in ("one", "other"):
        complete(quick("output.track=mlflow"), tmp_path / name)
        assert not (tmp_path / name / "mlruns").exists()
    client = MlflowClient((tmp_path / "common").as_uri())
    mine = client.get_experiment_by_name("mine")
    assert mine is not None
    runs = client.search_runs([mine.experiment_id])
    assert {run.info.run_name for run in runs} == {"one", "other"}


def test_wandb_has_settings_and_no_output_of_the_process(quick: Quick, tmp_path: Path) -> None:
    complete(quick("output.track=wandb"), tmp_path / "run")
    records = list(wandb_records(tmp_path / "run"))
    kinds = {record.WhichOneof("record_type") for record in records}
    assert not kinds & {"output", "output_raw"}
    (run,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (run.project, run.display_name) == ("fedpeft", "run")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["method.d"] == 16


def test_tensorboard_has_the_settings_as_hyperparameters(quick: Quick, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    complete(quick("output.track=tensorboard"), tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    text = events.Tensors("experiment/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "[method]" in text
    assert events.SummaryMetadata("_hparams_/session_start_info").plugin_data.plugin_name == (
        "hparams"
    )


def test_a_private_run_reports_epsilon_and_no_loss(quick: Quick, tmp_path: Path) -> None:
    privacy = ["privacy.unit=example", "privacy.noise_multiplier=1", "privacy.reproducible=true"]
    complete(quick(*privacy, "output.track=tensorboard"), tmp_path / "run")
    values = read_tensorboard(tmp_path / "run")
    assert "loss" not in values
    spent = [line["epsilon"] for line in RunFolder(tmp_path / "run").rounds()]
    assert [value for _, value in values["epsilon"]] == pytest.approx(spent, rel=1e-6)
