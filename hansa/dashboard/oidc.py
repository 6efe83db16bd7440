"""Logging in with an OpenID Connect provider: authorization code flow with PKCE, by Authlib.

    issuer: https://login.example.org
    address: https://hansa.example.org          # of the dashboard; the provider knows ADDRESS/login/oidc/done
    client_id: hansa
    client_secret_file: /etc/hansa/oidc-secret  # or none, for a public client
    claim: groups                               # a text or a list of texts in the ID token
    roles: {hansa-readers: reader, hansa-leads: approver}
    runs: {hansa-readers: ["clinics*"]}         # patterns of run names; none: all runs
    label: Log in with the hospital's account

A person without any of these values is refused. Of several roles the highest counts, and the runs of all of them.
"""

import logging
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from authlib.integrations.starlette_client import OAuth
from fastapi import FastAPI, HTTPException, Request
from pydantic import Field, ValidationError, field_validator
from starlette.responses import Response

from hansa.core.errors import UserError, printable
from hansa.core.settings import Section
from hansa.dashboard.accounts import Account, Role
from hansa.dashboard.site import Site

log = logging.getLogger("hansa.dashboard")
LOOPBACK = re.compile(r"https://|http://(127\.0\.0\.1|localhost|\[::1\])(:|/|$)")
DONE = "/login/oidc/done"
UNREACHABLE = "The login provider cannot be reached, or it refused the login. Try again, or ask its administrator."


class OidcSettings(Section):
    """The file of `hansa dashboard --oidc` and `hansa serve --oidc`."""

    issuer: str
    address: str
    client_id: str
    client_secret_file: str | None = None
    claim: str = "groups"
    roles: dict[str, str]
    runs: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    label: str = "Log in with your organisation's account"

    @field_validator("issuer", "address")
    @classmethod
    def _encrypted(cls, value: str) -> str:
        if not LOOPBACK.match(value) or not urlsplit(value).hostname:
            raise ValueError("it must begin with https://")
        return value.rstrip("/")

    @field_validator("roles")
    @classmethod
    def _known(cls, value: dict[str, str]) -> dict[str, str]:
        if unknown := sorted(set(value.values()) - {role.name for role in Role}):
            raise ValueError(f"'{unknown[0]}' is not a role; known are: {', '.join(role.name for role in Role)}")
        return value

    @staticmethod
    def read(file: Path) -> "OidcSettings":
        """The settings in a YAML file; raises `UserError` if it cannot be used."""
        try:
            return OidcSettings.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "it"
            raise UserError(f"{file}: {place}: {first['msg']}; the dashboard's guide has an example") from None
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise UserError(f"{file} cannot be read ({type(error).__name__}); give a YAML file with 'issuer'") from None

    def account(self, claims: dict[str, Any]) -> Account | None:
        """The account of a person with these claims; None if none of the claim's values has a role."""
        given = claims.get(self.claim)
        values = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        held = [value for value in values if isinstance(value, str) and value in self.roles]
        subject = claims.get("sub")
        if not held or not isinstance(subject, str) or not subject:
            return None
        runs = tuple(dict.fromkeys(run for value in held for run in self.runs.get(value, ("*",))))
        # A local account cannot have a colon in its name.
        return Account(f"oidc:{printable(subject, 100)}", max(Role[self.roles[value]] for value in held), runs)


def add_oidc(app: FastAPI, site: Site, settings: OidcSettings) -> None:
    """Add the routes of the login to a site.

    Raises `UserError` if the secret cannot be read, or if the settings have an address that the site does not have.
    """
    if site.secure and not settings.address.startswith("https://"):
        raise UserError(
            f"the settings of the OpenID Connect provider have the address {settings.address}, and these pages are "
            "reached by HTTPS alone: write it with https://"
        )
    oauth = OAuth()
    client = oauth.register(
        "provider",
        client_id=settings.client_id,
        client_secret=_secret(settings),
        server_metadata_url=f"{settings.issuer}/.well-known/openid-configuration",
        client_kwargs={"scope": "openid", "code_challenge_method": "S256", "timeout": 10.0},
    )

    async def begin(request: Request) -> Response:
        """Redirect the browser to the provider's login page; `HTTPException` 502 if the provider cannot be reached."""
        try:
            response: Response = await client.authorize_redirect(request, settings.address + DONE)
        except Exception as error:  # of the library, or of whichever HTTP client it uses
            raise _failed(502, error) from None
        return response

    async def done(request: Request) -> Response:
        """Log in the account that the provider's claims describe.

        Raises `HTTPException` 403 if the provider's answer is not valid or gives the person no role.
        """
        try:
            token = await client.authorize_access_token(request)  # checks state, PKCE, signature, nonce, audience
        except Exception as error:  # whatever it is, this person has not shown who they are
            raise _failed(403, error) from None
        account = settings.account(dict(token.get("userinfo") or {}))
        if account is None:
            raise HTTPException(403, "Your organisation knows you, but gave you no role in this dashboard.")
        return site.log_in(request, account, lambda: account)

    app.get("/login/oidc", name="oidc_begin")(begin)
    app.get(DONE, name="oidc_done")(done)
    site.buttons[settings.label] = "/login/oidc"


def _failed(status: int, error: Exception) -> HTTPException:
    log.warning("a login with the provider failed: %s", type(error).__name__)
    return HTTPException(status, UNREACHABLE)


def _secret(settings: OidcSettings) -> str | None:
    if settings.client_secret_file is None:
        return None
    try:
        return Path(settings.client_secret_file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError(
            f"{settings.client_secret_file} cannot be read ({error.strerror}); it must hold the client's secret"
        ) from None
