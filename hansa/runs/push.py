"""Publish a model of a run: as a hub repository's files in a folder, to a Hugging Face hub, or to a model registry."""

import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from hansa.core.errors import RunFailed, UserError
from hansa.runs.inference import write_model

HUB, MLFLOW = "hub:", "mlflow:"
ATTRIBUTES = "*.safetensors filter=lfs diff=lfs merge=lfs -text\n"  # what a hub expects of large files


def push(run: Path, destination: str, silo: str | None = None, merged: bool = False, public: bool = False) -> str:
    """Publish a final model of a run with its card, tokenizer and report; return where it is.

    ``destination``: a folder that does not exist, ``hub:ORG/NAME`` or ``mlflow:NAME``. ``silo``: that silo's own model;
    ``merged``: see `write_model`; ``public``: a new hub repository is readable by everybody. Raises `UserError` if the
    destination cannot be used, and `RunFailed` if the other side refuses.
    """
    if not destination.startswith((HUB, MLFLOW)):
        folder = Path(destination)
        if folder.exists():
            raise UserError(f"{folder} exists; give the name of a folder that does not, or hub:ORG/NAME")
        write_repository(run, folder, silo, merged)
        return str(folder)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        if destination.startswith(HUB):
            token = _hub_token()
            write_repository(run, folder, silo, merged)
            return _to_hub(folder, destination.removeprefix(HUB), token, public)
        _require_mlflow()
        write_repository(run, folder, silo, merged)
        return _to_registry(folder, destination.removeprefix(MLFLOW))


def write_repository(run: Path, folder: Path, silo: str | None, merged: bool) -> None:
    """Write the files of a hub repository: the model, its card (README.md), .gitattributes, the report."""
    write_model(run, silo, folder, merged)
    source = run / "model" if silo is None else run / "silos" / silo / "model"
    if (source / "README.md").is_file():
        shutil.copy(source / "README.md", folder / "README.md")
    (folder / ".gitattributes").write_text(ATTRIBUTES, encoding="utf-8")
    if silo is None and (run / "report.html").is_file():
        shutil.copy(run / "report.html", folder / "report.html")


def _hub_token() -> str:
    from huggingface_hub import get_token

    token = get_token()
    if not token:
        raise UserError(
            "there is no token of a Hugging Face hub on this machine: run 'hf auth login' or set HF_TOKEN, or give "
            "a folder"
        )
    return token


def _to_hub(folder: Path, name: str, token: str, public: bool) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    hub = HfApi(token=token)
    try:
        hub.create_repo(name, private=not public, exist_ok=True)
        done = hub.upload_folder(repo_id=name, folder_path=folder, commit_message="Model trained with Hansa")
    except HFValidationError as error:
        raise UserError(f"'{name}' is not the name of a hub repository, which is ORG/NAME: {error}") from None
    except (HfHubHTTPError, OSError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunFailed(f"the hub did not take {name}: {first}") from None
    return str(done)


def _require_mlflow() -> None:
    try:
        import mlflow  # noqa: F401
    except ImportError:
        raise UserError("a model registry needs MLflow: pip install 'hansa[mlflow]'") from None


def _to_registry(folder: Path, name: str) -> str:
    """A new version of a registered model of MLflow, at its tracking server (MLFLOW_TRACKING_URI)."""
    import mlflow
    from mlflow.exceptions import MlflowException

    client = mlflow.MlflowClient()
    try:
        experiment = client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment is not None else client.create_experiment(name)
        run = client.create_run(number, run_name="hansa push")
        client.log_artifacts(run.info.run_id, str(folder), "model")
        client.set_terminated(run.info.run_id)
        with suppress(MlflowException):  # it exists: this is a new version of it
            client.create_registered_model(name)
        version = client.create_model_version(name, f"{run.info.artifact_uri}/model", run.info.run_id)
    except (MlflowException, OSError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunFailed(f"the model registry did not take {name}: {first}") from None
    return f"models:/{name}/{version.version}"
