"""Translating in length-sorted batches, against the plain `generate` of transformers.

Same model, beam and rule for the largest length; batches of the peer are as the samples come. The model is trained just
enough to end sentences; both are measured in processor time, on one thread.
"""

import tempfile
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from _figures import Figures, best_of
from numpy.typing import NDArray

from hansa import templates
from hansa.client.host import SiloHost
from hansa.config.file import read
from hansa.core.seeds import stream
from hansa.data.examples import Examples
from hansa.runs.inference import load
from hansa.runs.run import run
from hansa.tasks.base import Vocabulary, as_tensors
from hansa.tasks.translate import padded, translations

SIZE = 64


def plain(model: Any, held: Examples, indices: NDArray[np.int64], vocabulary: Vocabulary, beams: int) -> list[str]:
    found: list[str] = []
    for start in range(0, len(indices), SIZE):
        some = indices[start : start + SIZE]
        begin = held.offsets[some]
        ids, mask = padded(held.ids, begin, begin + held.labels[some], vocabulary.pad)
        inputs = as_tensors(input_ids=ids, attention_mask=mask)
        options = {
            "num_beams": beams,
            "do_sample": False,
            "max_new_tokens": min(vocabulary.max_length, 2 * ids.shape[1] + 8),
        }
        written = model.generate(**inputs, early_stopping=beams > 1, **options)
        found += vocabulary.tokenizer.batch_decode(written, skip_special_tokens=True)
    return found


def main() -> None:
    torch.set_num_threads(1)
    figures = Figures.from_arguments()
    with tempfile.TemporaryDirectory() as folder:
        file = templates.new("translation", Path(folder) / "data")
        settings = read(
            file, ["rounds=1", f"train.steps={2 if figures.smoke else 60}", "train.schedule=constant", "task.beams=1"]
        )
        outcome = run(settings, Path(folder) / "run", workers=0)
        runtime, model = load(outcome.folder)
        held = [SiloHost(runtime).silo(name).resident.examples("train") for name in ("news", "menus")]
        news, menus = held
        joined = Examples(
            np.concatenate([news.ids, menus.ids]),
            np.concatenate([news.offsets, menus.offsets[1:] + len(news.ids)]),
            np.concatenate([news.labels, menus.labels]),
            np.zeros(len(news) + len(menus), np.int32),
            ("all",),
            news.tags[:0],
        )
        chosen = stream(0, "decode").permutation(len(joined))[: 8 if figures.smoke else 384]
        with torch.inference_mode():
            for beams, name in ((1, "greedy"), (4, "beam_4")):
                theirs = best_of(2, partial(plain, model, joined, chosen, runtime.vocabulary, beams), process_time)
                ours = best_of(
                    2, partial(translations, model, joined, chosen, runtime.vocabulary, beams, SIZE), process_time
                )
                print(f"{name}: {len(chosen) / ours:.0f} sentences a second, plain {len(chosen) / theirs:.0f}")
                what = f"translating in length-sorted batches against plain `generate`, {name.replace('_', ' ')}"
                figures.add(f"decode_{name}_vs_generate", what, theirs / ours, "ratio", ">=", 0.9)
    figures.end()


if __name__ == "__main__":
    main()
