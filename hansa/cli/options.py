"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

WorkersOption = Annotated[int | None, typer.Option(min=0, help="worker processes; default one per core, 0: in-process")]
FederationFile = Annotated[Path, typer.Argument(metavar="FED.yaml", help="the federation file")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="override a setting")]
RunPlugins = Annotated[
    bool, typer.Option("--run-plugins", help="execute the plug-ins that the file names, to check what depends on them")
]
LINKS = ("pool", "ray")
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="a run directory")]
ProxyOption = Annotated[
    str | None,
    typer.Option(
        "--proxy",
        metavar="http://HOST:PORT",
        envvar="HANSA_PROXY",
        help="the HTTP proxy for connections to the parent; with a password, use the variable HANSA_PROXY; "
        "default: HTTPS_PROXY",
    ),
]
TrustOption = Annotated[
    Path | None,
    typer.Option(
        "--trust",
        metavar="CA.pem",
        envvar="HANSA_TRUST",
        help="where a proxy inspects TLS: the certificates of its authority; requests are then signed, and bodies "
        "encrypted, between the two nodes",
    ),
]
OidcOption = Annotated[
    Path | None,
    typer.Option("--oidc", metavar="FILE", help="a file that names an OpenID Connect provider, for logging in"),
]
PolicyOption = Annotated[
    Path | None, typer.Option("--policy", help="the policy for what the silo may release; default KIT/policy.yaml")
]
