"""Bulk jobs: a saved model over many files, on one process, several, or a cluster, into a folder of parts."""

from energate.jobs.folder import Status
from energate.jobs.running import Finished, apply_files, job_status
from energate.jobs.scorer import Scorer

__all__ = ["Finished", "Scorer", "Status", "apply_files", "job_status"]
