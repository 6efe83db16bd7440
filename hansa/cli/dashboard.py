"""The commands of the pages: `hansa dashboard`, its accounts, and `hansa silo-page`."""

import logging
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from hansa.cli.console import Format, FormatOption, errors, finish, output
from hansa.cli.logs import LogFileOption, LogFormat, LogFormatOption, LogLevel, LogLevelOption, configure
from hansa.cli.options import OidcOption
from hansa.core.errors import UserError
from hansa.report.text import table

log = logging.getLogger("hansa.dashboard")
DEFAULT_ACCOUNTS = Path("dashboard-accounts.json")
USERS = "Add, list and remove the accounts of the dashboard."
user = typer.Typer(no_args_is_help=True, help=USERS)
ListenOption = Annotated[str, typer.Option("--listen", metavar="[HOST:]PORT", help="where the page is served")]
CertificateOption = Annotated[Path | None, typer.Option("--certificate", help="the TLS certificate of this address")]
KeyOption = Annotated[Path | None, typer.Option("--key", help="the private key of the certificate")]
AccountsOption = Annotated[Path, typer.Option("--accounts", help="the file with the accounts")]


class RoleName(StrEnum):
    """What an account may do; each role may do what the ones before it may."""

    reader = "reader"
    submitter = "submitter"
    approver = "approver"


def require_dashboard() -> None:
    """Raise `UserError` if the packages of the ``dashboard`` extra are not installed."""
    try:
        import argon2  # noqa: F401
        import authlib  # noqa: F401
        import fastapi  # noqa: F401
        import itsdangerous  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(f"{error.name} is not installed: pip install 'hansa[dashboard,deploy]'") from None


class _Dashboard(TyperGroup):
    """`hansa dashboard RUNS`, and `hansa dashboard user …`: a first word that is no command is the folder of runs."""

    def parse_args(self, ctx: object, args: list[str]) -> list[str]:
        """Put the name of the hidden command before a folder of runs."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["serve", *args]
        return super().parse_args(ctx, args)  # type: ignore[arg-type]


HELP = "Serve the dashboard of the runs in a folder (hansa dashboard RUNS), and manage its accounts."
dashboard = typer.Typer(cls=_Dashboard, no_args_is_help=True, help=HELP)
dashboard.add_typer(user, name="user", help=USERS)


@dashboard.command("serve")
def serve_dashboard(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="the folder with the runs")],
    listen: ListenOption = "127.0.0.1:8080",
    accounts: AccountsOption = DEFAULT_ACCOUNTS,
    kit: Annotated[
        Path | None,
        typer.Option("--kit", help="the coordinator's kit: submitted files are checked against its members"),
    ] = None,
    oidc: OidcOption = None,
    certificate: CertificateOption = None,
    key: KeyOption = None,
    log_level: LogLevelOption = LogLevel.info,
    log_format: LogFormatOption = LogFormat.text,
    log_file: LogFileOption = None,
) -> None:
    """Serve the dashboard of the runs in a folder. `hansa dashboard RUNS` is short for it."""
    require_dashboard()
    configure(log_level, log_format, log_file)
    from hansa.dashboard.app import open_dashboard
    from hansa.dashboard.serving import Address, serve
    from hansa.deploy.coordinator import check_coordinator
    from hansa.deploy.kit import Kit

    address = Address.parse(listen, certificate, key)
    own = Kit(kit) if kit is not None else None
    if own is not None:
        check_coordinator(own)
    app = open_dashboard(runs, accounts, oidc, address.secure, own)
    serve(app, address, lambda url: errors.print(f"Dashboard: {url}", highlight=False))


@user.command("add")
def add_user(
    name: Annotated[str, typer.Argument(help="the name of the account")],
    role: Annotated[RoleName, typer.Option(help="what the account may do")] = RoleName.reader,
    runs: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="names of runs that the account may see; default: all")
    ] = None,
    accounts: AccountsOption = DEFAULT_ACCOUNTS,
    password_stdin: Annotated[bool, typer.Option("--password-stdin", help="read the password from a pipe")] = False,
) -> None:
    """Add an account, or replace it; the password is asked for."""
    require_dashboard()
    from hansa.dashboard.accounts import Accounts, Role

    if password_stdin:
        password = sys.stdin.readline().rstrip("\n")
    elif sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        raise UserError("there is no terminal to ask for the password: give it in a pipe, with --password-stdin")
    Accounts(accounts).add(name, password, Role[role.value], tuple(runs or ["*"]))
    output.print(f"Account '{name}' ({role.value}) is in {accounts}", highlight=False, markup=False)


@user.command("list")
def list_users(accounts: AccountsOption = DEFAULT_ACCOUNTS, format: FormatOption = Format.text) -> None:
    """List the accounts."""
    require_dashboard()
    from hansa.dashboard.accounts import Accounts

    rows = [[one.name, one.role.name, ", ".join(one.runs)] for one in Accounts(accounts).all().values()]
    result = {"accounts": [{"name": name, "role": role, "runs": runs} for name, role, runs in rows]}
    finish(format, result, lambda: output.print(table(["name", "role", "runs"], rows, str(accounts), figures=False)))


@user.command("remove")
def remove_user(
    name: Annotated[str, typer.Argument(help="the name of the account")], accounts: AccountsOption = DEFAULT_ACCOUNTS
) -> None:
    """Remove an account; its sessions end with the next request."""
    require_dashboard()
    from hansa.dashboard.accounts import Accounts

    Accounts(accounts).remove(name)
    output.print(f"Account '{name}' was removed from {accounts}", highlight=False, markup=False)


def silo_page(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="the silo's startup kit")],
    listen: ListenOption = "127.0.0.1:8081",
    home: Annotated[Path | None, typer.Option(help="the silo's own files; default KIT/home")] = None,
    policy: Annotated[Path | None, typer.Option(help="the silo's policy; default KIT/policy.yaml")] = None,
    model: Annotated[
        Path | None, typer.Option(help="this silo's copy of the model folder that runs start from")
    ] = None,
    plugins: Annotated[list[Path] | None, typer.Option("--plugins", help="a plug-in that the silo runs")] = None,
    accounts: Annotated[
        Path | None, typer.Option("--accounts", help="accounts instead of the token in KIT/home/page-token")
    ] = None,
    certificate: CertificateOption = None,
    key: KeyOption = None,
    log_level: LogLevelOption = LogLevel.info,
    log_format: LogFormatOption = LogFormat.text,
    log_file: LogFileOption = None,
) -> None:
    """Serve the page of a silo's administrator: what is asked, what left, approvals, budget, policy, pause."""
    require_dashboard()
    configure(log_level, log_format, log_file)
    from hansa.dashboard.accounts import Accounts, TokenAccount
    from hansa.dashboard.serving import LOOPBACK_HOSTS, Address, is_loopback, serve
    from hansa.dashboard.silo_app import create
    from hansa.dashboard.silo_view import SiloView, check_silo
    from hansa.deploy.approval import user_name
    from hansa.deploy.kit import Kit

    check_silo(Kit(kit))  # before anything is written into the kit
    address = Address.parse(listen, certificate, key)
    folder = home or kit / "home"
    view = SiloView(Kit(kit, folder), folder, policy, plugins or [], model)
    token = TokenAccount(folder / "page-token", user_name()) if accounts is None else None
    # A foreign site must not reach the page by a name that it resolves to this machine.
    hosts = LOOPBACK_HOSTS if is_loopback(address.host) else ()
    app = create(view, token or Accounts(accounts or Path()), token is not None, address.secure, hosts)

    def ready(url: str) -> None:
        """Print the address of the page and, where a token is used, the file that contains it."""
        errors.print(f"Page of silo '{view.kit.name}': {url}", highlight=False, markup=False)
        if token is not None:
            errors.print(f"Log in with the token in {token.file}", highlight=False, markup=False)

    serve(app, address, ready)
