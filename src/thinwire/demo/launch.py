"""Starts the workers of the demo's job."""

from collections.abc import Callable

from thinwire.demo.job import Job
from thinwire.jobs.events import Event
from thinwire.jobs.launch import run_workers
from thinwire.lab import LinkShape


def run_job(
    job: Job,
    *,
    num_workers: int,
    shape: LinkShape | None,
    on_event: Callable[[Event], None],
    timeout_seconds: float | None = None,
) -> None:
    """Run a job to its end, as :func:`thinwire.jobs.launch.run_workers` says."""
    run_workers(
        "thinwire.demo.worker",
        job.to_json(),
        num_workers=num_workers,
        shape=shape,
        on_event=on_event,
        timeout_seconds=timeout_seconds,
    )
