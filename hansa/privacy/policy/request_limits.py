"""Which requests the approved settings imply: a silo answers these and no others.

The settings say how many rounds there are, when the model is scored, on which split and on what share of it. A request
for another round, for scores of the training data, or for scores that the run does not need, asks for a release that
was not approved.
"""

from hansa.config.asynchrony import most_trainings
from hansa.config.federation import Federation
from hansa.config.method import build_method
from hansa.config.nodes import repeats
from hansa.config.tree import federated_vocabulary
from hansa.core.messages import (
    PARTS,
    AdvertiseKeys,
    CollectVocabulary,
    Evaluate,
    Personalise,
    Request,
    RevealShares,
    ShareKnowledge,
    ShareSecrets,
    Train,
)
from hansa.core.survey_messages import OfferSurveyKey, SealSurveyKey, TakeSurvey
from hansa.privacy.secure_aggregation.client import EVALUATIONS as MASKED_EVALUATIONS

EVALUATED = ("valid", "test")  # splits whose scores may leave
PERSONAL_MODELS = ("personalised", "nearby")  # their names: hansa.client.personalisation
NO_SKETCHES = "the settings have no sketches (survey.sketches)"
NO_MASKED_SCORES = "the settings mask no scores (secure_aggregation.metrics)"


class RequestLimits:
    """The requests that a federation's settings imply for one of its nodes."""

    def __init__(self, federation: Federation, node: str) -> None:
        self._federation = federation
        self._repeats = repeats(federation.silos).get(node, 1)
        self._method = build_method(federation)
        self._most = most_trainings(federation, node, federation.rounds)
        masking = federation.secure_aggregation
        self._masks_scores = masking is not None and masking.metrics

    def objection(self, request: Request) -> str:
        """Why the settings do not imply a request; empty if they do."""
        surveys = isinstance(request, OfferSurveyKey | SealSurveyKey | TakeSurvey)
        if surveys != (self._federation.kind == "survey"):
            return "the settings have no survey" if surveys else "the settings have a survey, and nothing beside it"
        match request:
            case CollectVocabulary():
                return self._vocabulary(request)
            case TakeSurvey():
                return self._survey(request)
            case OfferSurveyKey() | SealSurveyKey():
                return "" if self._federation.surveyed.sketches else NO_SKETCHES
            case AdvertiseKeys() | ShareSecrets() | RevealShares() if request.scores:
                return self._masked_evaluation(request.round, request.scores)
            case Train():
                return self._round(request.round) or self._extra(request)
            case ShareKnowledge() | AdvertiseKeys() | ShareSecrets() | RevealShares():
                return self._round(request.round)
            case Evaluate():
                return self._evaluation(request)
            case Personalise():
                return self._personal(request)
            case _:
                return ""

    def evaluations(self) -> int:
        """How many rounds are scored in a run, the start included."""
        rounds, every = self._federation.rounds, self._federation.evaluate.every
        return 1 + rounds // every + bool(rounds % every)

    def _vocabulary(self, request: CollectVocabulary) -> str:
        settings = self._federation
        if request.min_count and not federated_vocabulary(settings):
            return "the settings build no vocabulary from counts of words"
        if request.min_count and request.min_count < settings.tokenizer.min_count:
            return (
                f"it asks for words that {request.min_count} rows have, and the settings have "
                f"{settings.tokenizer.min_count}"
            )
        return ""

    def _survey(self, request: TakeSurvey) -> str:
        settings = self._federation.surveyed
        if request.floor < settings.floor:
            return f"it asks for figures of {request.floor} rows, and the settings have {settings.floor} (survey.floor)"
        if request.labels and not settings.labels:
            return "the settings report no labels (survey.labels)"
        return NO_SKETCHES if request.sealed and not settings.sketches else ""

    def _round(self, number: int) -> str:
        return "" if 1 <= number <= self._most else f"it is for round {number}, and the settings have {self._most}"

    def _extra(self, request: Train) -> str:
        """Why a request to train has something that the method does not use; empty if it has nothing of the kind."""
        method, tree = self._method, self._method.hierarchy is not None
        unused = {
            "reference": request.reference,  # other batches of the same round: a second update
            "schedule": request.schedule is not None and not tree,
            "subtree": request.subtree is not None and not tree,
            "knowledge": request.knowledge is not None and method.exchange is None,
            "shared_state": request.shared_state is not None and method.shared_state is None,
            "moved": request.moved is not None or bool(request.held),  # a difference is a whole model by now
            "capacity": bool(request.capacity) and not method.upload.both_ways,
        }
        found = next((name for name, asked in unused.items() if asked), "")
        return f"it has '{found}', which method '{method.name}' does not use at a silo" if found else ""

    def _own_models(self, request: Evaluate) -> str:
        """Why the scores of a silo's own model are not asked for; empty if they are, or the shared model's are.

        The sum over all groups that ``by_node`` gives, less the groups that are large enough to leave, is the sum of
        the small ones.
        """
        if request.by_node and self._method.hierarchy is None:
            return "it asks for scores by node, and the nodes have no models of their own"
        if request.by_node and request.model.layout.names:
            return "it asks for scores by node of a model that it sends, and every node scores its own"
        if request.own and not self._method.upload.keeps_local:
            return "it asks for scores of the silo's own model, and the silo keeps none"
        return ""

    def _evaluation(self, request: Evaluate) -> str:
        settings = self._federation.evaluate
        if request.split not in EVALUATED:
            return f"it asks for scores of the {request.split[:20]} data; only validation and test data are scored"
        if problem := self._scored(request.round) or self._own_models(request):
            return problem
        if (request.masking is not None) != self._masks_scores:
            return "the settings have scores leave under masks" if self._masks_scores else NO_MASKED_SCORES
        last = request.round == self._federation.rounds * self._repeats
        if request.parts not in (1, PARTS) or (request.parts > 1 and (request.split, request.share) != ("test", 1.0)):
            return f"it asks for scores of {request.parts} parts, which the settings do not have"
        if request.share != settings.share and not (last and request.share == 1.0):
            return f"it asks for scores of a share of {request.share:g} of the data, and the settings have another"
        return ""

    def _masked_evaluation(self, round: int, scores: str) -> str:
        if not self._masks_scores:
            return NO_MASKED_SCORES
        if scores not in MASKED_EVALUATIONS:
            return f"it asks for a masked sum of '{scores[:20]}'; only scores of validation and test data are summed"
        return self._scored(round)

    def _scored(self, round: int) -> str:
        """Why no model is scored after a round; empty if one is."""
        rounds = self._federation.rounds
        number, rest = divmod(round, self._repeats)
        if rest or not 0 <= number <= rounds or (number % self._federation.evaluate.every and number != rounds):
            return f"the settings score no model after round {round}"
        return ""

    def _personal(self, request: Personalise) -> str:
        settings = self._federation.personal
        if settings is None:
            return "the settings have no personal models"
        if request.round != self._federation.rounds:
            return f"it is for round {request.round}, and personal models follow the last round"
        if request.share and not settings.nearby:
            return "it asks for the update of a personal model, and the settings compare none"
        stretches = ((0, True), (1, False)) if settings.nearby else ((0, False),)
        if (request.leg, request.share) not in stretches or request.label not in PERSONAL_MODELS:
            return "it asks for another personal model than those that the settings have"
        return ""
