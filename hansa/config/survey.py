"""The settings of a survey: federated statistics before training (`hansa survey`)."""

from pydantic import Field

from hansa.core.settings import Count, Section


class Survey(Section):
    """What silos report about their data before training, and from how many rows on."""

    floor: Count = Field(default=20, description="Least number of rows (or patients) behind every figure that leaves.")
    labels: bool = Field(default=True, description="Report how many rows have each label, where the task has labels.")
    sketches: bool = Field(
        default=True, description="Send keyed MinHash sketches, for the overlap of vocabularies and near-duplicates."
    )
    similarity: float = Field(
        default=0.8, gt=0.0, le=1.0, description="Estimated Jaccard similarity from which texts are near-duplicates."
    )
    max_documents: Count = Field(default=20_000, description="Documents of a silo that are sketched at most.")
