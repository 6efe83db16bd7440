"""Scaled sign compression as a plug-in: a compressor of your own.

Karimireddy et al. (2019), Error Feedback Fixes SignSGD and other Gradient Compression Schemes, Algorithm 1.

    C(x) = (‖x‖₁/d)·sign(x)        for each block of d = 256 values

Hansa adds what a compressor loses to the silo's next update (error feedback, ``upload.feedback``), so that a compressor
only has to encode. Signs travel as 4-bit integers with one float32 scale per block: about an eighth of the bytes.
Deviations: blocks instead of whole vectors; zero has sign zero.

In a federation file:

    plugins: [examples/sign_compressor.py]
    upload: sign
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch.nn.functional import pad

from hansa.core.compression import COMPRESSORS, Compressor, EncodedTensors, Kind, OutgoingUpdate
from hansa.core.encoding import BLOCK, EncodedTensor
from hansa.core.settings import Section


@dataclass(frozen=True)
class ScaledSign:
    """Writes values as signs, with the mean magnitude of each block as its scale."""

    kind: ClassVar[Kind] = "numbers"  # it decides how numbers are written, so it comes last in a chain
    keeps_local: ClassVar[bool] = False
    both_ways: ClassVar[bool] = False

    def compress(self, tensors: EncodedTensors, update: OutgoingUpdate) -> EncodedTensors:
        """Encode every tensor that is sent."""
        return {name: self._signs(tensor) for name, tensor in tensors.items()}

    def _signs(self, tensor: EncodedTensor) -> EncodedTensor:
        values = tensor.values
        sums = pad(values.abs(), (0, -len(values) % BLOCK)).view(-1, BLOCK).sum(dim=1)
        counts = pad(torch.ones(len(values)), (0, -len(values) % BLOCK)).view(-1, BLOCK).sum(dim=1)
        return replace(tensor, values=values.sign().to(torch.int8), scales=sums / counts, bits=4)


@COMPRESSORS.register("sign")
class Sign(Section):
    """Scaled sign (Karimireddy et al., 2019): an eighth of the bytes."""

    def build(self) -> Compressor:
        """The compressor."""
        return ScaledSign()
