"""What `hansa serve` and `hansa submit` refuse to run between organisations, although it runs in one place."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from hansa.cli.main import app
from hansa.config.checks import check_settings
from hansa.config.federation import Federation
from hansa.config.file import dump
from hansa.config.nodes import Node
from hansa.core.errors import ConfigError
from hansa.deploy.coordinator import serve
from hansa.deploy.deployable import check_deployable
from hansa.deploy.kit import COORDINATOR, Kit
from tests.conftest import Build
from tests.deploy.conftest import make_kits

VIRTUAL = r"has 'buffer: 1', .* virtual clock.* leave 'buffer' out, or use 'method: fedbuff' with regions"


def tree(federation: Build, method: Any) -> Federation:
    """A region with two silos, and a silo, below a root with a method."""
    flat: Federation = federation(
        task="causal-lm", method=method, rounds=2, evaluate={"every": 9, "share": 1.0}, train={"batch": 8}
    )
    west = Node(silos={name: flat.silos[name] for name in ("north", "south")})
    return flat.model_copy(update={"silos": {"west": west, "east": flat.silos["east"]}})


def test_a_root_that_goes_by_the_virtual_clock_is_refused(federation: Build, tmp_path: Path) -> None:
    settings = tree(federation, {"name": "worldlm", "buffer": 1})
    check_settings(settings)  # in one place it runs
    kit = Kit(make_kits(settings, tmp_path / "kits") / COORDINATOR)
    with pytest.raises(ConfigError, match=VIRTUAL):
        check_deployable(settings, kit)
    with pytest.raises(ConfigError, match=VIRTUAL):
        serve(settings, kit, tmp_path / "run", None, [])
    assert not (tmp_path / "run").exists()
    check_deployable(settings.as_survey(), kit)  # a survey has no rounds


@pytest.mark.parametrize(
    "method", [{"name": "worldlm"}, {"name": "worldlm", "buffer": 0}, {"name": "fedbuff", "buffer": 1}]
)
def test_a_root_that_waits_or_takes_updates_as_they_arrive_is_not(
    federation: Build, tmp_path: Path, method: Any
) -> None:
    """Negative control."""
    settings = tree(federation, method)
    check_deployable(settings, Kit(make_kits(settings, tmp_path / "kits") / COORDINATOR))


def test_such_a_file_does_not_get_into_the_queue(federation: Build, tmp_path: Path) -> None:
    settings = tree(federation, {"name": "worldlm", "buffer": 1})
    kits, file = make_kits(settings, tmp_path / "kits"), tmp_path / "fed.yaml"
    command = ["submit", str(file), "--kit", str(kits / COORDINATOR), "--queue", str(tmp_path / "runs")]
    file.write_text(dump(settings))
    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, ConfigError)
    assert refused.exception.exit_code == 2
    assert not (tmp_path / "runs" / ".queue").exists()
    changed = yaml.safe_load(file.read_text())
    changed["method"] = "worldlm"
    file.write_text(yaml.safe_dump(changed))
    assert CliRunner().invoke(app, command).exit_code == 0
