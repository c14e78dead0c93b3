"""From folders of labelled images, uncut, to Parquet files that trainers read."""

from data_prep.ingest.job import IngestResult, ingest_images
from data_prep.ingest.settings import IngestSettings

__all__ = ["IngestResult", "IngestSettings", "ingest_images"]
