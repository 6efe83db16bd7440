"""`hansa doctor`: find what keeps a coordinator or a silo from working."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from hansa.cli.console import Format, FormatOption, finish, output
from hansa.cli.kit import require_extra
from hansa.cli.options import PolicyOption, ProxyOption, TrustOption
from hansa.core.errors import RunFailed
from hansa.report.text import table


def doctor(
    kit: Annotated[Path | None, typer.Argument(metavar="[KIT]", help="the startup kit of this node")] = None,
    home: Annotated[Path | None, typer.Option(help="of a silo: its own files; default KIT/home")] = None,
    run: Annotated[Path | None, typer.Option(help="of a coordinator: the --out of 'hansa serve'")] = None,
    policy: PolicyOption = None,
    proxy: ProxyOption = None,
    trust: TrustOption = None,
    format: FormatOption = Format.text,
) -> None:
    """Check clock, ports, proxy, certificates, disk, GPU and versions, with remedies. Exit code 1 if one is wrong."""
    require_extra()
    from hansa.deploy.doctor import BAD, examine
    from hansa.deploy.network.address import Proxy
    from hansa.deploy.network.tls import inspected_tls

    if proxy:
        Proxy.parse(proxy)  # a mistake in an option is none of the machine
    if trust is not None:
        inspected_tls(trust)
    findings = examine(kit, home, run, proxy, trust, policy)
    bad = [one for one in findings if one.state == BAD]

    def show() -> None:
        """Print a table of the checks: state, what was seen, and the remedy."""
        rows = [[one.check, one.state, escape(one.seen), escape(one.remedy)] for one in findings]
        output.print(table(["check", "", "seen", "remedy"], rows, "hansa doctor", figures=False, fold=True))

    finish(format, {"ok": not bad, "findings": [vars(one) for one in findings]}, show)
    if bad:
        raise RunFailed(
            f"{len(bad)} check{'s' * (len(bad) > 1)} failed: {', '.join(dict.fromkeys(b.check for b in bad))}"
        )
