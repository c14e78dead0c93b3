"""From labelled images as they are published to Parquet that trainers read.

Readers, pixels and sums are pure; `stages` runs them on executors, `job` is the whole road.
"""

from data_prep.ingest.job import ingest_images
from data_prep.ingest.settings import IngestSettings

__all__ = ["IngestSettings", "ingest_images"]
