"""Runs programs that use ComfyUI's code without its server, each in a fork of one process that has imported ComfyUI.

`python -m tests.support.programs COMFYUI PROGRAM ARGUMENTS...` runs one in its own process. PROGRAM: a module, whose
`main` it is, or MODULE:FUNCTION.
`python -m tests.support.programs COMFYUI` is the process that forks. A line on stdin is a job, as JSON: program,
arguments, environment, folder. In a fork, the function gets COMFYUI and the arguments; the folder has its stdin, and
gets its stdout and stderr. A line with its exit code is the answer. The end of stdin ends all. What a function returns
is printed as JSON.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from demo.host import REPOSITORY
from tests.support.host.mounted import import_comfyui
from tests.support.ranks.leaving import end
from worker.launch.imports import pause_garbage_collector

SECONDS = 600  # for a program
SAID_CHARACTERS = 4000
OF_CUDA = "cuda"  # a thread's name begins with it
STANDARD = {0: ("stdin", os.O_RDONLY), 1: ("stdout", os.O_WRONLY | os.O_CREAT), 2: ("stderr", os.O_WRONLY | os.O_CREAT)}


def run_program(comfyui: Path, program: str, *arguments: object, given: Any = None) -> Any:
    """What a program returns, without the seconds of its imports.

    given: its stdin, as JSON. ComfyUI has the argument --cpu alone. Raises AssertionError with what it said if it
    fails.
    """
    process = forking_process(comfyui)
    assert process.stdin and process.stdout
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "stdin").write_text(json.dumps(given))
        asked = [str(comfyui), *map(str, arguments)]
        job = {"program": program, "arguments": asked, "environment": dict(os.environ), "folder": folder}
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, "what forks the programs has ended; its error is in pytest's own output"
        said = Path(folder, "stderr").read_text()[-SAID_CHARACTERS:]
        assert json.loads(answer) == 0, f"{program} ended with {answer}\n{said}"
        return json.loads(Path(folder, "stdout").read_text().splitlines()[-1])


def run_apart(comfyui: Path, program: str, *arguments: object, **variables: str) -> Any:
    """What a program returns that has a process of its own, with these environment variables. Raises
    AssertionError with what it said if it fails."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.programs", str(comfyui), program, *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=1.5 * SECONDS,
    )
    assert run.returncode == 0, run.stderr[-SAID_CHARACTERS:]
    return json.loads(run.stdout.splitlines()[-1])


@functools.cache
def forking_process(comfyui: Path) -> subprocess.Popen[str]:
    """Started by its first job; ends with this process, which closes its stdin."""
    command = [sys.executable, "-m", "tests.support.programs", str(comfyui)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # a process with threads cannot be forked
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def named(program: str) -> Callable[..., Any]:
    module, _, function = program.partition(":")
    return getattr(importlib.import_module(module), function or "main")


def be_program(job: dict) -> None:
    """In a fork: runs the job's program, and never returns."""
    code = 1
    try:
        signal.alarm(SECONDS)  # which ends it
        for standard, (name, flags) in STANDARD.items():
            os.dup2(os.open(Path(job["folder"], name), flags, 0o600), standard)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 (the process's own has a buffer of the jobs' pipe)
        os.environ.clear()
        os.environ.update(job["environment"])
        print(json.dumps(named(job["program"])(*job["arguments"])))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def fork_programs(comfyui: str) -> None:
    import_comfyui(comfyui)
    with pause_garbage_collector():
        importlib.import_module("server")  # of ComfyUI, which the pack's nodes import
    sys.path.remove(comfyui)  # a program puts it there when it has imported its own modules
    # On a machine with GPUs, an import starts CUDA's own thread, which no program here asks for anything.
    names = sorted(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))
    threads = [name for name in names if not name.startswith(OF_CUDA)]
    assert len(threads) <= 1, f"threads {threads}: a fork would have one of them alone, and the others' locks"
    while line := sys.stdin.readline():
        pid = os.fork()
        if not pid:
            be_program(json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
    os._exit(0)  # without the seconds that it takes to tear torch down


def main(comfyui: str, program: str = "", *arguments: str) -> None:
    if program:
        print(json.dumps(named(program)(comfyui, *arguments)))
        end()
    else:
        fork_programs(comfyui)


if __name__ == "__main__":
    main(*sys.argv[1:])
