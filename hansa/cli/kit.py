"""The commands of `hansa kit`: keys, certificates, and the list of members."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hansa.cli.console import Format, FormatOption, finish, output
from hansa.cli.options import RunPlugins
from hansa.core.errors import UserError, printable
from hansa.report.text import table

kit = typer.Typer(no_args_is_help=True, help="Startup kits: keys, certificates, addresses and the list of members.")

Authority = Annotated[
    Path, typer.Argument(metavar="AUTHORITY", help="the folder that 'hansa kit authority' or 'hansa kit create' wrote")
]
FederationFile = Annotated[Path, typer.Argument(metavar="FED.yaml", help="the federation file")]
Name = Annotated[str, typer.Argument(metavar="NODE", help="the name of a member")]
Days = Annotated[int, typer.Option(min=1, help="how many days the certificates are valid")]
Addresses = Annotated[
    list[str] | None,
    typer.Option(
        "--address",
        metavar="[REGION=]HOST[:PORT]",
        help="the address of the coordinator, or of a region; default port 443",
    ),
]
NatsServer = Annotated[
    str | None,
    typer.Option("--nats", metavar="HOST:PORT[,…]", help="existing NATS servers, for which a configuration is written"),
]
Yes = Annotated[bool, typer.Option("--yes", help="the fingerprints were compared: do not ask")]
Responses = Annotated[Path, typer.Option("--out", help="the folder for the responses")]


def require_extra() -> None:
    """Raise `UserError` if the packages of the ``deploy`` extra are not installed."""
    try:
        import cryptography  # noqa: F401
        import xxhash  # noqa: F401
    except ImportError as error:
        raise UserError(f"{error.name} is not installed: pip install 'hansa[deploy]'") from None


def described(file: Path, run_plugins: bool) -> Any:
    """The settings of a federation file that may be run between organisations; executes its plug-ins only if asked."""
    from hansa.config.checks import check_labels, refuse_unknown_names
    from hansa.config.file import read
    from hansa.config.plugins import load_plugins

    settings = read(file)
    if run_plugins:
        load_plugins(settings.plugins)
    refuse_unknown_names(settings, "add --run-plugins")
    check_labels(settings)
    return settings


@kit.command()
def create(
    federation: FederationFile,
    out: Annotated[Path, typer.Option(help="the folder for the kits")] = Path("kits"),
    address: Addresses = None,
    nats: NatsServer = None,
    days: Days = 365,
    run_plugins: RunPlugins = False,
    format: FormatOption = Format.text,
) -> None:
    """Create an authority and all kits in one place, for a rehearsal: its user holds all private keys."""
    require_extra()
    from hansa.deploy import authority

    made = authority.create(described(federation, run_plugins), out, parse_addresses(address), days, nats)

    def show() -> None:
        """Print the folders of the kits, where the private keys are, and how to start the NATS server."""
        for folder in made:
            output.print(f"{folder}", highlight=False)
        output.print(
            f"This folder has the private keys of all members, and {out / 'authority'} that of the authority: use it "
            "for a rehearsal. Between organisations, let every member run 'hansa kit request'.",
            highlight=False,
        )
        if nats is not None:
            output.print(f"Start the NATS server in {out / 'nats'}: nats-server -c nats.conf", highlight=False)

    finish(format, {"kits": [str(folder) for folder in made]}, show)


@kit.command(name="authority")
def make_authority(
    federation: FederationFile,
    out: Annotated[Path, typer.Option(help="the folder of the authority")] = Path("authority"),
    address: Addresses = None,
    nats: NatsServer = None,
    days: Days = 365,
    run_plugins: RunPlugins = False,
    format: FormatOption = Format.text,
) -> None:
    """Create the authority of a federation, without members; it signs the requests of members, and may be offline."""
    require_extra()
    from hansa.deploy.authority import found

    made = found(described(federation, run_plugins), out, parse_addresses(address), days, nats)
    text = (
        f"{out} is the authority of '{made.plan.federation}'; its fingerprint is {made.fingerprint}. Keep the folder "
    )
    result = {"authority": str(out), "fingerprint": made.fingerprint}
    finish(format, result, lambda: output.print(text + "secret, and off the coordinator's machine.", highlight=False))


@kit.command()
def request(
    out: Annotated[Path, typer.Option(help="the folder of this member's kit")],
    name: Annotated[str | None, typer.Option(help="the member's name in the federation file")] = None,
    federation: Annotated[str | None, typer.Option(help="the name of the federation")] = None,
    new_key: Annotated[bool, typer.Option("--new-key", help="of a kit in use: create a new key")] = False,
    format: FormatOption = Format.text,
) -> None:
    """Create this member's private key, which stays here, and a request that the authority signs."""
    require_extra()
    from hansa.deploy.key_request import REQUEST, make_request

    made = make_request(out, name, federation, new_key)
    result = {"request": str(out / REQUEST), "node": made.node, "fingerprint": made.fingerprint}
    text = (
        f"Send {out / REQUEST} to the authority. It is not secret; the private key in {out} is. The fingerprint, which "
        f"the authority asks you for, is {made.fingerprint}"
    )
    finish(format, result, lambda: output.print(text, highlight=False))


@kit.command()
def sign(
    authority: Authority,
    requests: Annotated[list[Path], typer.Argument(metavar="REQUEST...", help="files of 'hansa kit request'")],
    out: Responses = Path("signed"),
    days: Days = 365,
    replace: Annotated[bool, typer.Option("--replace", help="a member may have a new key; the old one ends")] = False,
    yes: Yes = False,
    format: FormatOption = Format.text,
) -> None:
    """Sign requests of members, after a comparison of fingerprints, and write a response for each."""
    require_extra()
    answer_requests(authority, requests, out, days, replace, yes, format)


@kit.command()
def add(
    authority: Authority,
    federation: FederationFile,
    requests: Annotated[list[Path], typer.Argument(metavar="REQUEST...", help="the requests of new members")],
    address: Addresses = None,
    out: Responses = Path("signed"),
    days: Days = 365,
    run_plugins: RunPlugins = False,
    yes: Yes = False,
    format: FormatOption = Format.text,
) -> None:
    """Let new nodes of a changed federation file in, and sign their requests; other members keep their kits."""
    require_extra()
    from hansa.deploy.authority import Authority as Opened

    Opened(authority).add(described(federation, run_plugins), parse_addresses(address))
    answer_requests(authority, requests, out, days, False, yes, format)


def answer_requests(
    folder: Path, files: list[Path], out: Path, days: int, replace: bool, yes: bool, format: Format
) -> None:
    """Read, show and sign requests, and write the responses."""
    from rich.markup import escape

    from hansa.deploy.authority import Authority as Opened
    from hansa.deploy.certificates import write_file
    from hansa.deploy.key_request import parse_request
    from hansa.deploy.network.subjects import token

    authority = Opened(folder)
    found = [parse_request(file.read_bytes(), file) for file in files]
    if format is Format.text:
        rows = [[escape(printable(one.node)), one.fingerprint] for one in found]  # names of others are not markup
        output.print(table(["node", "fingerprint of its key"], rows, "Requests", figures=False))
    if not yes:
        if not sys.stdin.isatty():
            raise UserError("compare the fingerprints with the members, then repeat the command with --yes")
        typer.confirm("Have the members told you these fingerprints, by telephone for example?", abort=True)
    responses = authority.sign(found, days, replace)
    out.mkdir(parents=True, exist_ok=True)
    written = [out / f"{token(one.node)}.json" for one in responses]
    for file, one in zip(written, responses, strict=True):
        write_file(file, one.text.encode())
    serial = authority.current().serial
    text = (
        f"Give each member its file: {', '.join(map(str, written))} (none is secret), and the fingerprint of this "
        f"authority, {authority.fingerprint}. The list of members has serial number {serial}: copy "
        f"{authority.folder / 'members.json'} into the coordinator's kit, which gives it to the others"
        f"{broker_advice(authority.beside)}"
    )
    result: dict[str, Any] = {"responses": list(map(str, written)), "serial": serial}
    finish(format, result | {"fingerprint": authority.fingerprint}, lambda: output.print(text, highlight=False))


@kit.command()
def install(
    folder: Annotated[Path, typer.Argument(metavar="KIT", help="the folder that 'hansa kit request' wrote")],
    response: Annotated[Path, typer.Argument(metavar="RESPONSE", help="the file of 'hansa kit sign'")],
    authority: Annotated[
        str | None, typer.Option(metavar="FINGERPRINT", help="the authority's fingerprint, as it told you")
    ] = None,
    format: FormatOption = Format.text,
) -> None:
    """Complete a kit with the authority's response. A running node uses it without a restart."""
    require_extra()
    from hansa.deploy.key_request import install as put

    done = put(folder, response.read_bytes(), response, authority)
    text = f"{folder} is the kit of '{done.node}', valid until {done.until:%Y-%m-%d}, list of members {done.serial}"
    if done.first and authority is None:
        text += f"; compare the authority's fingerprint with the authority: {done.authority}"
    if done.first and (folder / "policy.yaml").exists():
        text += f". Next: read {folder / 'policy.yaml'}, then 'hansa approve FED.yaml --kit {folder}'"
    result = {"kit": str(folder), "node": done.node, "authority": done.authority, "serial": done.serial}
    finish(format, result, lambda: output.print(text, highlight=False))


@kit.command()
def revoke(authority: Authority, node: Name, format: FormatOption = Format.text) -> None:
    """Revoke all certificates of a member."""
    require_extra()
    from hansa.deploy.authority import Authority as Opened
    from hansa.deploy.authority import revoke as end

    end(authority, node)
    opened = Opened(authority)
    text = (
        f"'{node}' is revoked; copy {opened.folder / 'members.json'} into the coordinator's kit, which disconnects "
        f"'{node}' and gives the list to the others; if '{node}' is the coordinator, copy it into every kit (nodes "
        f"that use kits beside the authority have it now){broker_advice(opened.beside)}"
    )
    finish(format, {"revoked": node}, lambda: output.print(text, highlight=False))


@kit.command()
def renew(authority: Authority, node: Name, days: Days = 365, format: FormatOption = Format.text) -> None:
    """Create a new certificate for a kit of 'hansa kit create', after a revocation with a new key."""
    require_extra()
    from hansa.deploy.authority import Authority as Opened
    from hansa.deploy.authority import renew as renew_kit
    from hansa.deploy.nats_config import NATS

    opened = Opened(authority)
    if node == NATS:
        opened.certify_broker(days)
        text = f"the NATS server has a new certificate: copy the files of {opened.beside / node} to it, and reload it"
        finish(format, {"renewed": node}, lambda: output.print(text, highlight=False))
        return
    generation = renew_kit(authority, node, days)
    text = (
        f"'{node}' has a certificate of generation {generation}; copy the files of {opened.beside / node} to the node "
        f"(no restart is needed), and members.json into the coordinator's kit{broker_advice(opened.beside)}"
    )
    finish(format, {"renewed": node, "generation": generation}, lambda: output.print(text, highlight=False))


@kit.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="AUTHORITY", help="the folder of an authority, or of a kit")],
    format: FormatOption = Format.text,
) -> None:
    """Show the list of members: its serial number and date, fingerprints, and expiry dates of certificates."""
    require_extra()
    from hansa.deploy.authority import Authority as Opened
    from hansa.deploy.authority import show as rows_of
    from hansa.deploy.kit import Kit
    from hansa.deploy.membership import fingerprint

    until = ""
    if (folder / "kit.json").exists():
        newest = Kit(folder).list.current()
        rows = [
            {
                "node": name,
                "kind": member.kind,
                "parent": member.parent or "",
                "state": "valid" if member.generations else "revoked",
                "fingerprint": fingerprint(member.key),
            }
            for name, member in newest.members.items()
        ]
        own, until = Kit(folder).authority, f"{Kit(folder).valid_until:%Y-%m-%d}"
    else:
        opened = Opened(folder)
        newest, rows, own = opened.current(), rows_of(folder), opened.fingerprint
    columns = list(rows[0]) if rows else ["node"]
    titles = {"until": "valid until", "fingerprint": "fingerprint of its key"}
    title = f"Members of '{newest.federation}': list {newest.serial} of {newest.date}"

    def print_table() -> None:
        """Print the list of members, the authority's fingerprint, and the expiry date of a kit's certificate."""
        cells = [[row[column] for column in columns] for row in rows]
        output.print(table([titles.get(column, column) for column in columns], cells, title, figures=False))
        if own:
            output.print(f"Fingerprint of the authority: {own}", highlight=False)
        if until:
            output.print(f"The certificate in {folder} is valid until {until}", highlight=False)

    result = {"serial": newest.serial, "date": newest.date, "members": rows}
    finish(format, result | ({"authority": own} if own else {}), print_table)


@kit.command()
def resolve(
    folder: Annotated[Path, typer.Argument(metavar="RUN|HOME", help="the --out of 'hansa serve', or a silo's home")],
    node: Annotated[str | None, typer.Argument(metavar="NODE", help="of 'hansa serve': the suspended node")] = None,
    format: FormatOption = Format.text,
) -> None:
    """State that an alarm about two agents with one identity is resolved; first at the node, then at its parent."""
    require_extra()
    from hansa.deploy.identity_watch import resolve_home
    from hansa.deploy.network.instance import FILE
    from hansa.deploy.network.journal import Journal
    from hansa.deploy.network.presence import resolve as end_suspension
    from hansa.deploy.status import JOURNAL, SERVER_FOLDER, STANDING

    if node is None:
        home = folder if (folder / FILE).exists() else folder / "home"
        if not (home / FILE).exists():
            raise UserError(
                f"{folder} is not an agent's home (give KIT or KIT/home); for a run of 'hansa serve', add the name of "
                "the suspended node: hansa kit resolve RUN NODE"
            )
        had = resolve_home(home)
    else:
        file = folder / SERVER_FOLDER / JOURNAL
        if not file.is_file():
            raise UserError(f"{folder} is not a run of 'hansa serve'; give its --out")
        journal = Journal(file)
        if (standing := journal.fact(STANDING)) is not None:  # a standing coordinator suspends a node for all runs
            journal.close()
            journal = Journal(file.parent / standing)
        had = end_suspension(journal, node) is not None
        journal.close()
    text = "the alarm is over; the node is served again" if had else "there was no alarm"
    finish(format, {"resolved": had}, lambda: output.print(text, highlight=False))


def parse_addresses(address: list[str] | None) -> dict[str, str]:
    """The addresses of options ``[REGION=]HOST[:PORT]``, by node."""
    from hansa.deploy.kit import COORDINATOR

    addresses = {}
    for one in address or []:
        name, equals, place = one.rpartition("=")
        addresses[name if equals else COORDINATOR] = place
    return addresses


def broker_advice(beside: Path) -> str:
    """What the operator of an existing NATS server has to do after a change of members; empty if there is none."""
    file = beside / "nats" / "authorization.conf"
    return f"; copy {file} to the NATS server, and reload it" if file.exists() else ""
