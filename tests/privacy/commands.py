"""Run `hansa` commands inside the test process."""

from typer.testing import CliRunner

from hansa.cli.main import app

runner = CliRunner()


def ok(*arguments: str) -> str:
    """The output of a command that succeeds; an exception of the command is raised."""
    result = runner.invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout
