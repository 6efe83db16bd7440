"""`make sbom`: a bill of materials of the installed environment, and a check of its licences.

    build/sbom.json        CycloneDX, by cyclonedx-py: every installed package with its version and licence
    build/licences.json    package, version and licence, by pip-licenses

The check fails if a package has no known licence, or one that [tool.hansa.licences] in pyproject.toml does not allow.
Both need no network.
"""

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Write both files and check the licences; exit code 1 with one sentence if one is not allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="the folder for the files")
    parser.add_argument("--pyproject", type=Path, default=ROOT / "pyproject.toml", help="the file with the allow-list")
    parser.add_argument("--validate", action="store_true", help="validate the file against the CycloneDX schema")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    packages = licences()
    (options.out / "licences.json").write_text(json.dumps(packages, indent=1) + "\n", encoding="utf-8")
    write_sbom(options.out / "sbom.json", options.validate)
    rules = tomllib.loads(options.pyproject.read_text(encoding="utf-8")).get("tool", {}).get("hansa", {})
    allowed = rules.get("licences", {})
    found = refused(packages, set(allowed.get("allow", ())), allowed.get("reviewed", {}))
    if found:
        more = f" (and {len(found) - 1} other packages)" if len(found) > 1 else ""
        sys.exit(
            f"failed: {found[0]}{more}; replace the package, or add the licence to [tool.hansa.licences] in "
            f"{options.pyproject.name} after a review"
        )
    print(f"{len(packages)} packages, all licences allowed; the bill of materials is in {options.out / 'sbom.json'}")


def licences() -> list[dict[str, str]]:
    """Name, version and licence of every installed package."""
    command = [tool("pip-licenses"), "--python", sys.executable, "--format=json", "--with-system", "--from=mixed"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [{key.lower(): one[key] for key in ("Name", "Version", "License")} for one in json.loads(shown)]


def write_sbom(file: Path, validate: bool) -> None:
    """Write the CycloneDX file of the environment that runs this script."""
    command = [tool("cyclonedx-py"), "environment", "--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library"]
    command += [
        "--validate" if validate else "--no-validate",
        "--output-reproducible",
        "--of",
        "JSON",
        "-o",
        str(file),
        sys.executable,
    ]
    subprocess.run(command, check=True, capture_output=True)


def tool(name: str) -> str:
    """The path of a program of this environment; ends with one sentence if it is not installed."""
    file = Path(sys.executable).with_name(name)
    if not file.exists():
        sys.exit(f"failed: {name} is not installed; install the packages of the extra 'dev'")
    return str(file)


def refused(packages: list[dict[str, str]], allowed: set[str], reviewed: dict[str, str]) -> list[str]:
    """What is wrong with the licences; ``reviewed``: package → the licence that a person has found."""
    wrong = []
    for package in packages:
        name, licence = package["name"], reviewed.get(package["name"], package["license"])
        if licence.strip().upper() in ("", "UNKNOWN"):
            wrong.append(f"the licence of {name} {package['version']} is not known")
        elif not is_allowed(licence, allowed):
            wrong.append(f"{name} {package['version']} has the licence '{licence}', which is not allowed")
    return wrong


def is_allowed(licence: str, allowed: set[str]) -> bool:
    """Whether an SPDX expression is allowed: every part that is joined by AND, one of those joined by OR."""
    if licence in allowed:
        return True
    parts = re.split(r"\s+AND\s+|;\s*", licence.replace("(", " ").replace(")", " ") if " OR " in licence else licence)
    return all(any(option.strip() in allowed for option in re.split(r"\s+OR\s+", part)) for part in parts)


if __name__ == "__main__":
    main()
