"""From labelled images, as they are published, to Parquet files that trainers read.

Readers, pixels and sums are pure; `stages` runs them on executors; `job` runs the whole ingest.
"""

from data_prep.ingest.job import IngestResult, ingest_images
from data_prep.ingest.settings import IngestSettings

__all__ = ["IngestResult", "IngestSettings", "ingest_images"]
