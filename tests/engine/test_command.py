"""The command `python -m parallel_backend`, and the package that pip installs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from demo.host import REPOSITORY
from parallel_backend.__main__ import describe_fields, main, parse_arguments
from parallel_backend.command import drawing
from parallel_backend.errors import RequestError
from parallel_backend.plan import ParallelPlan
from tests.support.cases.library_cases import save_dit, sd3_with_encoders, stable_diffusion_with_encoder
from tests.support.ranks.pool import RankPool

TOLERANCE = 1e-5
ONE_LEVEL = 1  # of 255: what rounding to pixels can make of a smaller difference
PROMPTS, SEEDS = ("a red cat", "two dogs"), (1, 5)
CALL = {"num_inference_steps": 3, "guidance_scale": 3.0, "height": 32, "width": 48, "max_sequence_length": 16}
CPU = torch.device("cpu")
OPTIONS = (
    "--steps=3", "--guidance=3", "--height=32", "--width=48", "--argument=max_sequence_length=16", "--device=cpu"
)  # fmt: skip


class Told(NamedTuple):
    code: int
    printed: str
    errors: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("command") / "sd3"
    sd3_with_encoders().save_pretrained(path)
    return path


@pytest.fixture
def on_ranks(ranks: RankPool, tmp_path: Path) -> Callable[..., list[Told]]:
    """Runs the command on two ranks."""

    def run(*arguments: str) -> list[Told]:
        ranks.run(2, "library.command_ranks", str(tmp_path), *arguments)
        return [Told(**json.loads((tmp_path / f"told.{rank}.json").read_text())) for rank in range(2)]

    return run


def plain(prompt: str, seed: int) -> np.ndarray:
    """The pixels that the pipeline draws in one process, from 0 to 255."""
    generator = torch.Generator().manual_seed(seed)
    (image,) = sd3_with_encoders()(prompt, generator=generator, output_type="np", **CALL).images
    return 255 * image


def test_the_command_draws_each_prompt_with_each_seed_as_one_process_does(
    on_ranks: Callable[..., list[Told]], folder: Path, tmp_path: Path
) -> None:
    prompts, output = tmp_path / "prompts.txt", tmp_path / "out.png"
    prompts.write_text(f"{PROMPTS[1]}\n\n")
    seeds = ("--seeds", *map(str, SEEDS))
    measured = ("--batch=3", "--repeat=2", "--compare", f"--output={output}")
    plan = ("--cfg=2", "--weights=shared", "--vae", "--prompt", PROMPTS[0], f"--prompt-file={prompts}")
    first, second = on_ranks(str(folder), *plan, *seeds, *OPTIONS, *measured)
    assert first.code == second.code == 0 and second.printed == ""
    expected = [plain(prompt, seed) for prompt in PROMPTS for seed in SEEDS]
    assert max(np.abs(one - other).max() for one in expected for other in expected) > 5 * ONE_LEVEL
    for number, picture in enumerate(expected, 1):
        assert picture.std() > 5 * ONE_LEVEL
        got = np.asarray(Image.open(tmp_path / f"out-{number}.png"), dtype=float)
        assert got.shape == picture.shape and np.abs(got - picture).max() <= ONE_LEVEL
    assert re.search(
        r"4 pictures with cfg=2 × shared weights: [\d.]+ s \(median\), first run [\d.]+ s with the warm-up",
        first.printed,
    )
    assert re.search(r"peak memory by rank: \d+\.\d\d, \d+\.\d\d GiB", first.printed)
    assert re.search(r"one device: .*; the plan is [\d.]+ times as fast", first.printed)
    errors = re.findall(r"picture \d: relative error ([\d.e+-]+), PSNR ([\d.]+|inf) dB", first.printed)
    assert len(errors) == 4 and all(float(error) <= TOLERANCE and float(noise) > 90 for error, noise in errors)


def test_the_command_draws_with_a_unet(on_ranks: Callable[..., list[Told]], tmp_path: Path) -> None:
    stable_diffusion_with_encoder().save_pretrained(tmp_path / "sd")
    sizes = ("--steps=2", "--height=104", "--width=72", "--device=cpu")
    first, second = on_ranks(str(tmp_path / "sd"), "--prompt", PROMPTS[0], "--ulysses=2", "--vae", "--compare", *sizes)
    assert first.code == second.code == 0, first.errors
    (error,) = re.findall(r"picture 1: relative error ([\d.e+-]+)", first.printed)
    assert float(error) <= TOLERANCE


def test_a_plan_for_other_ranks_is_refused_with_cause_and_advice(
    on_ranks: Callable[..., list[Told]], folder: Path
) -> None:
    first, second = on_ranks(str(folder), "--prompt", PROMPTS[0], "--ulysses=4", "--device=cpu")
    assert first.code == second.code == 2 and first.errors == second.errors
    cause, advice = first.errors.strip().split("\n\n")
    assert "is for a world size of 4, and torchrun started 2" in cause and "--nproc-per-node=4" in advice


@pytest.mark.parametrize(
    ("arguments", "cause", "advice"),
    [
        (["--ulysses=0"], "ulysses=0 does not work", "Use a whole number from 1"),
        (["--ring=two"], "ring='two' does not work", "Use a whole number from 1"),
        (["--weights=somewhere"], "no weights='somewhere'", "auto, whole, shared, host"),
        (["--speeds=1,fast", "--dp=2"], "speeds='1,fast' does not work", "a positive number for each rank"),
        (["--exchange-dtype=int4", "--ring=2"], "exchange_dtype=int4 sends differences", "exchange_dtype=model"),
        (["--argument=strength"], "names no argument", "NAME=VALUE"),
        (["--prompt-file=missing.txt"], "missing.txt cannot be read", ""),
        (["--output=picture.txt"], "cannot be saved as picture.txt", ".png"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_request_is_told_the_cause_and_the_advice(
    arguments: list[str], cause: str, advice: str, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main([str(folder), "--prompt", PROMPTS[0], "--device=cpu", *arguments]) == 2
    told, _, advised = capsys.readouterr().err.partition("\n\n")
    assert cause in told and advice in advised


def test_a_request_without_prompt_folder_or_class_is_refused(folder: Path, tmp_path: Path) -> None:
    assert main([str(folder)]) == 2
    with pytest.raises(RequestError, match=r"model_index.json cannot be read"):
        drawing.load_pipeline(tmp_path, torch.float32, True)
    with pytest.raises(RequestError, match="shapes-dit has no VAE"):
        drawing.load_pipeline(REPOSITORY / "demo" / "shapes-dit", torch.float32, True)
    pipeline = drawing.load_pipeline(save_dit(tmp_path / "dit"), torch.float32, True)
    assert drawing.arguments_of(pipeline, ["207"], {})["class_labels"] == [207]
    with pytest.raises(RequestError, match="'a cat' is none"):
        drawing.arguments_of(pipeline, ["a cat"], {})
    with pytest.raises(RequestError, match="DiTPipeline takes no strength"):
        drawing.arguments_of(pipeline, ["207"], {"strength": 1})


def test_the_help_lists_every_field_of_the_plan_in_the_plans_own_words(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    described = describe_fields()
    assert [*described] == [field.name for field in fields(ParallelPlan)] and all(described.values())
    for name, text in described.items():
        assert f"--{name.replace('_', '-')} {name.upper()} " in shown
        assert text.split(".")[0].partition("-")[0] in shown  # argparse may break a line at a hyphen
    assert "stages that split the blocks" in shown and "One of auto, whole, shared, host. Default: auto." in shown


def test_the_options_left_out_make_the_plan_of_one_rank() -> None:
    options = parse_arguments(["folder"])
    assert (
        ParallelPlan(**{field.name: getattr(options, field.name) for field in fields(ParallelPlan)}) == ParallelPlan()
    )
    assert parse_arguments(["folder", "--speeds=1,0.5"]).speeds == (1.0, 0.5)


def test_several_pictures_are_numbered_and_a_video_moves(tmp_path: Path) -> None:
    picture = np.linspace(0, 1, 4 * 6 * 3).reshape(4, 6, 3)
    assert [path.name for path in drawing.save([picture, picture], tmp_path / "out.png", 8)] == [
        "out-1.png",
        "out-2.png",
    ]
    (path,) = drawing.save([np.stack([picture, 1 - picture])], tmp_path / "out.gif", 8)
    with Image.open(path) as video:
        assert video.size == (6, 4) and getattr(video, "n_frames", 1) == 2


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an empty venv into which pip has installed this folder, without network."""
    root = tmp_path_factory.mktemp("package")
    hidden = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info", "measured", "*.safetensors")
    shutil.copytree(REPOSITORY, root / "source", ignore=hidden)
    offline = ("--no-deps", "--no-index", "--disable-pip-version-check", "--quiet")
    pip = [sys.executable, "-m", "pip"]
    build = ["wheel", "--no-build-isolation", *offline, "-w", str(root), str(root / "source")]
    venv.create(root / "venv", symlinks=True)
    python = root / "venv" / "bin" / "python"
    for command in ([*pip, *build], [*pip, "--python", str(python), "install", *offline]):
        wheels = [] if command[3] == "wheel" else [str(next(root.glob("*.whl")))]
        run = subprocess.run([*command, *wheels], cwd=root, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
    return python


def run_installed(python: Path, *arguments: str) -> str:
    """What Python prints, outside of the repository and without its path."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    run = subprocess.run(
        [str(python), *arguments], cwd=python.parents[2], env=kept, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-6000:]
    return run.stdout


def test_pip_installs_the_engine_and_its_command_alone(installed: Path) -> None:
    wheel = next(installed.parents[2].glob("*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"parallel_backend"}
    sources = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "parallel_backend").rglob("*.py")}
    assert sources == {name for name in names if name.endswith(".py")}
    code = "import parallel_backend; print(parallel_backend.__file__, parallel_backend.ParallelPlan(ulysses=2))"
    path, plan = run_installed(installed, "-c", code).split()
    assert Path(path).is_relative_to(installed.parents[1]) and plan == "ulysses=2"
    assert "--exchange-dtype" in run_installed(installed, "-m", "parallel_backend", "--help")
