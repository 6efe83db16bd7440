"""How many samples are behind what a silo releases: its policy has a least number (`hansa.privacy.policy.guard`)."""

import numpy as np

from hansa.client.evaluation import least_shown, scored, writer
from hansa.client.personalisation import personal_training
from hansa.client.resident import REFERENCE_ROUNDS, ResidentSilo
from hansa.core.messages import Evaluate, Personalise, Request, Train
from hansa.privacy.dp.units import UnitMechanism
from hansa.privacy.policy.guard import Behind


def samples_behind(resident: ResidentSilo, request: Request) -> Behind:
    """How many samples the reply to a request would stand for; the silo's policy has a least number."""
    federation = resident.runtime.federation
    match request:
        case Train():
            held = resident.examples("train")
            if isinstance(resident.runtime.private.get(resident.name), UnitMechanism):
                # Every patient takes part with some probability; who does is secret, also from the count.
                return Behind(held.rows_behind(), len(np.unique(held.units)))
            training = federation.train
            if training.samples.adapt is not None:  # at least so many
                fewest = training.samples.scaled(training.samples.adapt.least)
                training = training.model_copy(update={"samples": fewest})
            drawn = resident.drawn(request.round + REFERENCE_ROUNDS * request.reference, training)
            return Behind(held.rows_behind(drawn))
        case Personalise() if request.share and federation.personal is not None:
            training = personal_training(federation, federation.personal)
            return Behind(resident.examples("train").rows_behind(resident.drawn(request.round + 1, training)))
        case Evaluate():
            held, parts = resident.examples(request.split), 1 if request.by_node else request.parts
            asked = (held, federation.seed, request.share, parts, writer(resident.runtime.task, request.decode))
            counts = scored(*asked)
            if request.by_node or request.masking is not None:
                return Behind(groups={resident.name: sum(counts.values())} if request.by_node else counts)
            last = request.round == federation.rounds * resident.runtime.repeats.get(resident.name, 1)
            return Behind(groups=least_shown(*asked, both=last))
        case Personalise():
            splits = {split: scored(resident.examples(split), federation.seed) for split in ("valid", "test")}
            return Behind(groups={f"{g} ({split})": n for split, found in splits.items() for g, n in found.items()})
        case _:
            return Behind()
