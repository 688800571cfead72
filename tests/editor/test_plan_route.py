"""What is said of a plan before it is queued is what happens when it runs; too few devices are no reason not to."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from demo.host import ComfyHost, PromptError
from demo.workflow import api_prompt
from tests.conftest import EXTRA_ARGS, own_base_in
from tests.support.editor.examples import FOLDER
from tests.support.host import graphs
from tests.support.host.graphs import TINY_MODELS, Job, latents, ranks, runs, status
from tests.support.host.stock_prompts import write_cases

KSAMPLER = {"type": "KSampler", "cfg": 2.0}
PARALLEL = {"type": "ParallelDiT_Sampler", "cfg": 2.0}
PICTURES = [
    {"type": "KSampler", "picture": picture}
    for picture in ({"width": 64}, {"width": 64, "height": 0}, {"width": 64, "height": 64, "depth": 1}, [64, 64])
]
FLUX, UNET = "longcat-image.safetensors", "sd15.safetensors"
DEMO = "demo: coloured shapes (64×64)"
SINGLE = {"PARALLELDIT_RANKS": "1", "PARALLELDIT_CPU_RANKS": "1", **TINY_MODELS}


@pytest.fixture(scope="module", autouse=True)
def files(comfyui: Path, models: Path) -> None:
    write_cases(comfyui, models, [Path(name).stem for name in (FLUX, UNET)])


def ask(host: ComfyHost, body: Any) -> dict[str, Any]:
    """The route's answer. body: JSON, or bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return json.loads(graphs.ask(host, "/paralleldit/plan", data, headers={"Content-Type": "application/json"}))


def about(plan: dict[str, Any], *samplers: dict[str, Any], model: str = "tiny-dit") -> dict[str, Any]:
    """A question about a manual plan, or an automatic one with {}, for one model."""
    values = {"mode": "manual" if plan else "auto", **plan}
    return {"values": values, "files": {"model_name": model}, "samplers": list(samplers)}


def keys(answer: dict[str, Any], part: str = "remarks") -> list[str]:
    return [remark["key"] for remark in answer[part]]


def test_a_plan_is_told_rank_by_rank_with_the_blocks_and_heads_of_the_model(host: ComfyHost) -> None:
    gone = {"lossy": "allowed", "compare": "once", "sparse": "radial"}  # of a former page
    answer = ask(host, about({"cfg": 2, "pipefusion": 2, "ulysses": 2, **gone}, PARALLEL))
    assert (answer["error"], keys(answer, "note"), answer["world"]) == ("", ["lossy_patches"], 8)
    assert [rank["branch"] for rank in answer["ranks"]] == ["cond"] * 4 + ["uncond"] * 4
    first, last = answer["ranks"][0], answer["ranks"][-1]
    assert first["blocks"][0] == 0 and last["blocks"][0] == first["blocks"][1] + 1
    assert first["heads"][0] == 0 and last["heads"][0] == first["heads"][1] + 1
    assert first["tokens"] == [[0.0, 0.25], [0.5, 0.75]], "of each of the two patches the first half"


@pytest.mark.parametrize(
    ("samplers", "branches"),
    [
        ([PARALLEL], ["cond", "uncond"]),
        ([KSAMPLER], ["uncond", "cond"]),
        ([{**KSAMPLER, "cfg": None}], ["uncond", "cond"]),
        ([{**PARALLEL, "cfg": 1.0}], [None, None]),
        ([PARALLEL, KSAMPLER], [None, None]),
    ],
    ids=["loop", "step", "guidance unknown", "no guidance", "both"],
)
def test_the_halves_of_a_guided_step_are_told_by_name_where_their_order_is_certain(
    samplers: list[dict], branches: list[str | None], host: ComfyHost
) -> None:
    answer = ask(host, about({"cfg": 2}, *samplers))
    assert [rank["branch"] for rank in answer["ranks"]] == branches


def test_auto_says_what_it_chose_and_why(host: ComfyHost) -> None:
    answer = ask(host, about({}, KSAMPLER))
    assert answer["plan"] == "cfg=2"
    assert keys(answer) == ["auto_cpu", "guidance_first", "images_first"]
    assert "(cfg=2)" in answer["remarks"][1]["text"]
    assert "no_branches" in keys(ask(host, about({}, {**KSAMPLER, "cfg": 1})))


def test_samplings_of_unknown_guidance_are_planned_as_guided(host: ComfyHost) -> None:
    for samplers in [], [{**KSAMPLER, "cfg": None}], [KSAMPLER, {**KSAMPLER, "cfg": 1}]:
        answer = ask(host, about({}, *samplers, model=FLUX))
        assert (answer["plan"], answer["world"]) == ("cfg=2", 2)
        assert keys(answer) == ["auto_cpu", "guidance_first", "counted_guided", "images_first"]
        assert answer["note"] == [] and answer["memory"] is not None


def test_what_a_step_is_predicted_to_take_is_told_before_the_run(host: ComfyHost) -> None:
    """On links that cost nothing: cond and uncond apart, or else the tokens; and a plan by hand beside the best."""
    picture = {"picture": {"width": 512, "height": 384}}
    for cfg, best in ((2.0, "cfg=2"), (1.0, "ulysses=2")):
        answer = ask(host, about({}, {**KSAMPLER, "cfg": cfg, **picture}, model=FLUX))
        told = answer["predicted"]
        assert (answer["plan"], told["best"][0]["plan"], told["plan"]["plan"]) == (best, best, best)
        assert told["is_measured"] and not told["best"][0]["is_alone"] and len(told["best"]) == 3
        seconds = [each["seconds"] for each in told["best"]]
        assert seconds == sorted(seconds) and 0 < seconds[0] < 100 and told["best"][0]["bytes"] > 1e5
        for each in told["best"]:
            values = {**each["values"], "speeds": ", ".join(map(str, each["values"]["speeds"]))}
            assert ask(host, about(values))["plan"] == each["plan"], "what Compare plans gives a node"
    answer = ask(host, about({"dp": 2}, {**KSAMPLER, "cfg": 1.0, **picture}, model=FLUX))
    assert answer["predicted"]["plan"]["seconds"] > answer["predicted"]["best"][0]["seconds"]
    assert ask(host, about({}, KSAMPLER, model=FLUX))["predicted"] is None


def test_a_run_is_predicted_as_its_node_says_before(host: ComfyHost) -> None:
    picture = {"width": 64, "height": 64, "batch_size": 1}
    told = ask(host, about({"cfg": 2}, {"type": "KSampler", "cfg": 3.0, "picture": picture}, model=DEMO))["predicted"]
    with urllib.request.urlopen(f"{host.url}/object_info", timeout=60) as answer:
        host.run(api_prompt(json.loads((FOLDER / "demo.json").read_text()), json.load(answer)))
    run = runs(host)[0]
    expected = told["plan"]["seconds"], told["one_device"]["seconds"]
    assert (run["predicted"], run["alone"]) == pytest.approx(expected, rel=0.2), "its rows share the read weights"


def test_auto_is_offered_in_place_of_a_plan_that_is_slower_than_one_device(host: ComfyHost) -> None:
    """Two stages of a pipeline wait for each other where an image has few tokens for its patches."""
    sampler = {**KSAMPLER, "cfg": 1.0, "picture": {"width": 64, "height": 64}}
    for plan, offers in (
        ({"pipefusion": 2, "patches": 2}, [{"plan": "", "values": None}]),
        ({"ulysses": 2}, []),
        ({}, []),
    ):
        answer = ask(host, about(plan, sampler, model=FLUX))
        assert answer["offers"] == offers, answer["predicted"]


@pytest.mark.parametrize(
    ("job", "plan", "widgets"),
    [
        (Job("tiny-dit"), {"ulysses": 5}, ["ulysses"]),
        (Job("tiny-dit", scheduler="model's own"), {"pipefusion": 8}, ["pipefusion"]),
        (Job("tiny-dit"), {"weights": "shared"}, ["weights"]),
    ],
    ids=["heads", "more stages than blocks", "nobody to share weights with"],
)
def test_an_error_is_told_in_the_words_that_the_run_ends_with(
    job: Job, plan: dict, widgets: list[str], host: ComfyHost
) -> None:
    answer = ask(host, about(plan, PARALLEL if job.scheduler else KSAMPLER))
    assert answer["widgets"] == widgets
    with pytest.raises(PromptError) as caught:
        host.run(job.under(plan).prompt())
    assert answer["error"] and answer["error"] in caught.value.message
    assert caught.value.exception_type == "paralleldit.PlanError", "the class's name, without a path"


def test_without_a_file_what_can_be_said_is_said(host: ComfyHost) -> None:
    answer = ask(host, {"values": {"mode": "manual", "cfg": 2}})
    assert (answer["world"], answer["ranks"][0]["heads"], keys(answer)) == (2, None, ["unchecked"])
    answer = ask(host, {"values": {"mode": "auto"}})
    assert (answer["plan"], answer["world"], keys(answer)) == ("", 2, ["auto_cpu", "needs_model"])


def test_a_model_that_is_not_there_is_named_and_is_no_fault_of_the_plan(host: ComfyHost) -> None:
    question = about({"cfg": 2}, model="no-such-model")
    answer = ask(host, question)
    assert (answer["error"], answer["unknown"], keys(answer)) == ("", [], ["unchecked_file"])
    assert answer["missing"] == [{"model": "no-such-model", "folder": "diffusion_models"}]
    answer = ask(host, {**question, "files": {"ckpt_name": "no.safetensors", "lora_name": "nor-this.safetensors"}})
    assert answer["missing"] == [{"model": "no.safetensors", "folder": "checkpoints"}]


def test_of_a_loaders_files_the_one_in_a_folder_of_models_counts(host: ComfyHost, models: Path) -> None:
    """Files of other folders are no models, names do not leave the folders, and a pickle is not read."""
    others, name = {"vae_name": "other.safetensors"}, FLUX
    answer = ask(host, {**about({}, KSAMPLER), "files": {**others, "unet_name": name}})
    assert (answer["plan"], answer["missing"]) == ("cfg=2", [])
    in_vae, pickle = models / "models" / "vae" / "other.safetensors", models / "models" / "checkpoints" / "old.ckpt"
    for path in in_vae, pickle:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"no model")
    try:
        for files in others, {"unet_name": "../vae/other.safetensors"}, {"unet_name": str(in_vae)}, {}:
            answer = ask(host, {**about({}, KSAMPLER), "files": files})
            assert (answer["plan"], answer["unknown"]) == ("", []) and keys(answer)[-1] in ("needs_model", "needs_file")
        answer = ask(host, {**about({}, KSAMPLER), "files": {"ckpt_name": pickle.name}})
        assert "old.ckpt is a pickle checkpoint" in answer["unknown"][0] and keys(answer)[-1] == "needs_model"
    finally:
        in_vae.unlink()
        pickle.unlink()


def test_the_chosen_dtype_counts(host: ComfyHost) -> None:
    question = about({"ulysses": 2}, KSAMPLER, model=FLUX)
    (own,), (fp8,) = (
        ask(host, {**question, "weight_dtype": dtype})["memory"]["kept"] for dtype in ("another pack's", "fp8_e4m3fn")
    )
    assert fp8 < 0.6 * own


def test_a_model_that_has_changed_is_looked_at_again(host: ComfyHost, models: Path) -> None:
    folder = models / "models" / "diffusers" / "tiny-dit-changed"
    shutil.copytree(folder.with_name("tiny-dit"), folder)
    question = about({"ulysses": 5}, model=folder.name)
    assert "is more than the model's 4 heads" in ask(host, question)["error"]
    path = folder / "transformer" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_attention_heads": 8, "attention_head_dim": 8}))
    assert ask(host, question)["error"] == ""


@pytest.mark.parametrize(
    "body",
    [
        b"no JSON",
        b"[]",
        {},
        {"values": {"mode": "both"}},
        {"values": {"mode": "manual", "cfg": {}}},
        {"values": {"mode": "auto"}, "samplers": ["KSampler"]},
        {"values": {"mode": "auto"}, "samplers": [KSAMPLER] * 100},
        {"values": {"mode": "auto"}, "files": {"unet_name": 3}},
        {"values": {"mode": "auto"}, "files": {str(number): "a" for number in range(100)}},
        {"values": {"mode": "auto"}, "group": "1"},
        *({"values": {"mode": "auto"}, "samplers": [bad]} for bad in PICTURES),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_what_is_no_question_is_refused_with_a_sentence(body: Any, host: ComfyHost) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(host, body)
    assert caught.value.code == 400
    assert caught.value.read().decode().startswith("This is not a question about a plan: ")


def test_a_question_without_end_is_refused(host: ComfyHost) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(host, b" " * (1 << 17))
    assert caught.value.code == 413


@pytest.mark.parametrize("value", [0, "2", 1.5, 10**30])
def test_a_degree_that_cannot_be_is_an_error_in_the_plans_own_words(value: Any, host: ComfyHost) -> None:
    answer = ask(host, about({"cfg": value}))
    assert answer["error"].startswith(f"cfg={value!r} does not work") and answer["widgets"] == ["cfg"]


@pytest.fixture(scope="module")
def single_host(comfyui: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyHost]:
    """A ComfyUI that may start one rank."""
    base = own_base_in(tmp_path_factory.mktemp("single"), models)
    with ComfyHost(comfyui, base, extra_args=EXTRA_ARGS, env=SINGLE) as host:
        yield host


def test_where_there_is_one_device_a_plan_for_four_runs_on_it_and_says_so(single_host: ComfyHost) -> None:
    job, looped = Job("tiny-dit", seed=71), Job("tiny-dit", seed=72, scheduler="model's own")
    alone = [latents(single_host, each.under({"cfg": 1}).prompt()) for each in (job, looped)]
    assert status(single_host)["note"] == ""
    assert torch.equal(latents(single_host, job.under({"cfg": 2, "ulysses": 2}).prompt()), alone[0])
    note = status(single_host)["note"]
    assert "The plan cfg=2 × ulysses=2 needs 4" in note and "The image is the same" in note
    assert torch.equal(latents(single_host, looped.under({"cfg": 2, "pipefusion": 2}).prompt()), alone[1])
    assert "The image lacks the plan's small errors" in status(single_host)["note"]
    assert torch.equal(latents(single_host, job.under({"attention": "flash"}).prompt()), alone[0])
    assert status(single_host)["note"] == "flash attention needs a GPU. The CPU uses its own."
    assert len(ranks(single_host)) == 1
    assert note in single_host.log.read_text()
    answer = ask(single_host, about({"cfg": 2, "ulysses": 2}, KSAMPLER))
    assert (answer["world"], keys(answer, "note")) == (1, ["few_cores", "same_image", "use_auto"])
    assert keys(ask(single_host, about({}, KSAMPLER))) == ["auto_one"]
    with pytest.raises(PromptError, match="ulysses=5 is more than"):
        single_host.run(job.under({"ulysses": 5}).prompt())
