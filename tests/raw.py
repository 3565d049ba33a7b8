"""Small raw studies and archives for the tests, made by hand."""

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

STUDY = "mnist/fc_1024/sgd/64"
HEADER = "step,train/cross_entropy_error,val/classification_error\n"
CURVE = HEADER + "0,2.5,0.9\n10,0.5,0.25\n20,0.25,0.1\n"


def study_json(batch_size: int = 64, **more: object) -> bytes:
    """A ``study.json`` with one searched metaparameter."""
    config = {"type": "DOUBLE", "scale": "LOG_SCALE", "min_value": 0.001, "max_value": 1.0}
    contents = {
        "batch_size": batch_size,
        "dataset": "mnist",
        "model": "fc_1024",
        "optimizer": "sgd",
        "early_stopping": False,
        "train_steps": 20,
        "parameter_configs": {"learning_rate": config},
    }
    return json.dumps(contents | more).encode()


def metadata_json(trial: int, **more: object) -> bytes:
    """A ``metadata.json`` as the archive has it."""
    contents = {
        "parameters": {"learning_rate": 0.5},
        "status": "COMPLETE",
        "steps": 20,
        "trial_id": trial,
        "_internal_study_name": "x",
        "_internal_trial_id": 7,
    }
    return json.dumps(contents | more).encode()


def study_files(
    curves: Mapping[int, str | bytes], *, study: str = STUDY, **trial_keys: object
) -> dict[str, bytes]:
    """The files of one study, by name: ``study.json`` and two for each trial."""
    files = {f"{study}/study.json": study_json(int(study.rpartition("/")[2]))}
    for trial, curve in curves.items():
        files[f"{study}/{trial}/metadata.json"] = metadata_json(trial, **trial_keys)
        files[f"{study}/{trial}/measurements.csv"] = curve.encode() if isinstance(curve, str) else curve
    return files


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def write_tar(path: Path, files: Mapping[str, bytes], *, root: str = "batch_science/") -> Path:
    """Write a tar (compressed as its suffix says) of files in the order given."""
    kind = {".bz2": "w:bz2", ".gz": "w:gz", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, kind, format=tarfile.GNU_FORMAT) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(root + name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
