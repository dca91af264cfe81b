"""Runs a piece of Python in a process of its own, where a test needs a fresh one."""

import os
import subprocess
import sys
import textwrap


def run_python(code: str, *, timeout: float = 100, **environment: str) -> str:
    """Run `code` and return what it printed; it must succeed and print nothing to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout
