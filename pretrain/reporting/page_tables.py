"""Tables of the page: facts, config, stages and starts of a run. A missing or damaged file leaves its rows out."""

from datetime import datetime
from pathlib import Path
from types import NoneType
from typing import Any

from data_prep.errors import UserError
from data_prep.reading import MAX_NUMBER
from pretrain.config import Config, flat, on_one_line, read_yaml
from pretrain.reporting.event_timeline import Start


def read_config(path: Path) -> dict[str, Any]:
    """The config of a run by key, such as "train.steps": 800; empty if it cannot be read."""
    try:
        found = read_yaml(path)
    except UserError:
        return {}
    return flat(found) if _is_plain(found) else {}


def _is_plain(value: Any) -> bool:
    """Whether the value has only JSON types."""
    if type(value) is dict:
        return all(type(name) is str and _is_plain(inner) for name, inner in value.items())
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) in (int, float):
        return abs(value) <= MAX_NUMBER  # false for NaN and infinity
    return value is None or type(value) in (bool, str)


def defaults() -> dict[str, Any]:
    """The default of each config key. Required keys have none and are left out."""
    needed = {"run": {"dir": "x"}, "data": {"train": "x"}, "train": {"steps": 1}}
    values = flat(Config.model_validate(needed).model_dump(mode="json"))
    return {key: value for key, value in values.items() if key not in flat(needed)}


def config_rows(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Each key of a config with its value as YAML and its default; None if it has no default or the value equals it."""
    known = defaults()
    return [
        {
            "key": key,
            "value": _text(value),
            "default": _text(known[key]) if key in known and known[key] != value else None,
            "changed": key not in known or known[key] != value,
        }
        for key, value in values.items()
    ]


def stage_rows(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The stages of a run with a curriculum; empty for a run of one stage."""
    stages = values.get("curriculum")
    if not isinstance(stages, list) or not stages or not all(map(_is_stage, stages)):
        return []
    train = {name: values.get(f"train.{name}") for name in ("global_batch_size", "micro_batch_size")}
    found = [{"after_step": 0, "seq_len": values.get("data.seq_len"), **train}]
    for stage in stages:
        found.append({**found[-1], **{name: value for name, value in stage.items() if value is not None}})
    return found


def _is_stage(stage: Any) -> bool:
    return type(stage) is dict and "after_step" in stage and all(type(n) in (int, NoneType) for n in stage.values())


def starts_of(environment: dict[str, Any]) -> list[Start]:
    """All known starts, the first one first."""
    every = [environment, *environment.get("earlier_starts", [])][::-1] if environment else []
    return [
        Start(int(start.get("after_step", 0)), _unix(start.get("time"))) for start in every if isinstance(start, dict)
    ]


def _unix(text: Any) -> float | None:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (TypeError, ValueError):
        return None


def fact_rows(config: dict[str, Any], environment: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values of the known facts of a run."""
    hosts = [host for host in environment.get("hosts", []) if isinstance(host, dict)]
    packages = environment.get("packages") or {}
    rows = [
        ("Model", _model(config, environment)),
        ("Objective", _objective(config)),
        ("Data", "\n".join(map(_data_set, environment.get("data", []))) or _text(config.get("data.train", ""))),
        ("Held-out data", _text(config.get("data.valid") or "")),
        ("Batch", _batch(config)),
        ("Optimizer", _named(config, {"optim.name": "", "optim.lr": "learning rate ", "schedule.kind": "schedule "})),
        ("Precision", _named(config, {"train.precision": "", "zero.stage": "ZeRO "})),
        ("Processes", ", ".join(str(environment[name]) for name in ("processes", "backend") if name in environment)),
        ("Hosts", "\n".join(map(_host, hosts))),
        ("Job", ", ".join(f"{name} {value}" for name, value in (environment.get("slurm") or {}).items())),
        ("Code", _code(environment)),
        ("Packages", ", ".join(f"{name} {value}" for name, value in packages.items() if value)),
        ("Python", _text(environment.get("python", ""))),
        ("Command", _text(environment.get("command", ""))),
    ]
    return [(name, value) for name, value in rows if value]


def _model(config: dict[str, Any], environment: dict[str, Any]) -> str:
    size = {key.rpartition(".")[2]: value for key, value in config.items() if key.startswith("model.size") and value}
    shape = ", ".join(str(v) if k == "size" else f"{v} {k}" for k, v in size.items())
    count = environment.get("parameters")
    parameters = f"{count:,} parameters" if isinstance(count, int) else ""
    return ", ".join(filter(None, [_text(config.get("model.arch", "")), shape, parameters]))


def _objective(config: dict[str, Any]) -> str:
    objective = _text(config.get("objective", ""))
    if objective != "mlm":
        return objective
    return f"mlm, masking {_text(config.get('masking.strategy', ''))}, rate {_text(config.get('masking.rate', ''))}"


def _data_set(found: dict[str, Any]) -> str:
    counts = f"{found.get('documents', 0):,} documents, {found.get('tokens', 0):,} tokens"
    return f"{found.get('location', '')}: {counts}, fingerprint {str(found.get('fingerprint', ''))[:16]}"


def _batch(config: dict[str, Any]) -> str:
    if "train.global_batch_size" not in config:
        return ""
    micro = config.get("train.micro_batch_size")
    rows = f"{config['train.global_batch_size']} rows of {config.get('data.seq_len')} slots"
    return rows + (f", {micro} rows at a time" if micro else "")


def _host(host: dict[str, Any]) -> str:
    ranks = host.get("ranks") or []
    gpus = [gpu.get("name", "") for gpu in host.get("gpus", [])]
    what = f"{len(gpus)} × {gpus[0]}" if gpus else f"{host.get('processor', '')}, {host.get('cores', '?')} cores"
    return f"{host.get('host', '')}: {len(ranks)} process{'' if len(ranks) == 1 else 'es'}, {what}"


def _code(environment: dict[str, Any]) -> str:
    commit = environment.get("git_commit")
    return f"commit {commit[:12]}{' with changes' if environment.get('git_changes') else ''}" if commit else ""


def _named(config: dict[str, Any], names: dict[str, str]) -> str:
    return ", ".join(f"{before}{_text(config[key])}" for key, before in names.items() if key in config)


def _text(value: Any) -> str:
    """A config value on one line."""
    return value if isinstance(value, str) else on_one_line(value)
