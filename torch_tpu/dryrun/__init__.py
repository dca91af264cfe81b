"""Compilation for TPUs that are not there: memory, cost and errors before one is rented."""

from torch_tpu.dryrun.worker import Result, Worker, WorkerCrash, compile_for

__all__ = ["Result", "Worker", "WorkerCrash", "compile_for"]
