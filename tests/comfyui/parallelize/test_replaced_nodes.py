"""Nodes and values that are gone: a saved workflow or prompt with them draws, with what takes their place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from demo.host import ComfyHost
from tests.support.host.graphs import Job, ask, find_node, latents, refusal, runs
from tests.support.host.stock_prompts import prompt, write_cases

MODEL = "longcat-image"
GONE = {
    "ParallelDiT_LoadDiffusionModel": "UNETLoader",
    "ParallelDiT_LoadCheckpoint": "CheckpointLoaderSimple",
    "ParallelDiT_Plan": "ParallelDiT_Parallelize",
    "ParallelDiT_VAEDecode": "VAEDecode",
    "ParallelDiT_VAEEncode": "VAEEncode",
}


def test_an_old_prompt_draws_what_the_stock_loader_draws(host: ComfyHost, comfyui: Path, models: Path) -> None:
    """As the editor exports it, with titles."""
    write_cases(comfyui, models, [MODEL])
    stock, old = prompt(MODEL), prompt(MODEL)
    file = {"model_name": f"{MODEL}.safetensors", "dtype": "default", "group": 1, "plan": ["plan", 0]}
    find_node(old, "UNETLoader").update({"class_type": "ParallelDiT_LoadDiffusionModel", "inputs": file})
    old["plan"] = {"class_type": "ParallelDiT_Plan", "inputs": {"mode": "manual", "ulysses": 2}}
    exported = {key: {**node, "_meta": {"title": key}} for key, node in old.items()}
    assert torch.equal(latents(host, exported), latents(host, stock))


def test_the_editor_is_told_of_nodes_and_inputs_that_are_there(host: ComfyHost) -> None:
    told = json.loads(ask(host, "/node_replacements"))
    offered = {name: each for name, (each, *_) in told.items() if name in GONE}
    assert {name: each["new_node_id"] for name, each in offered.items()} == GONE
    known = host.object_info()
    for each in offered.values():
        inputs = known[each["new_node_id"]]["input"]["required"]
        assert {one["new_id"] for one in each["input_mapping"] or ()} <= inputs.keys()


JOB = Job("shapes-dit", "red heart", width=64, height=64, steps=2, seed=7, plan={"ring": 2})
FORMER = (replace(JOB, seed=8, plan=None), replace(JOB, seed=9, scheduler="model's own"))


def sent_as(exchange_dtype: str) -> dict:
    """The job's prompt with this value."""
    prompt = JOB.prompt()
    (plan,) = (each["inputs"] for each in prompt.values() if "mode" in each["inputs"])
    plan["exchange_dtype"] = exchange_dtype
    return prompt


@pytest.mark.parametrize("former", ["int8", "fp8"])
def test_a_former_format_of_the_exchange_runs_exactly(former: str, host: ComfyHost) -> None:
    assert torch.equal(latents(host, sent_as(former)), latents(host, JOB.prompt()))


@pytest.mark.parametrize("job", FORMER, ids=["auto", "manual"])
def test_inputs_that_are_gone_change_nothing(job: Job, host: ComfyHost) -> None:
    """They asked for a lossy plan and a comparison, whose pictures a linked VAE decoded."""
    asked = {**job.prompt(), "vae": {"class_type": "VAELoader", "inputs": {"vae_name": "pixel_space"}}}
    former = {
        "ParallelDiT_Parallelize": {"lossy": "allowed", "compare": "once"},
        "ParallelDiT_Sampler": {"compare": "once", "vae": ["vae", 0]},
    }
    for node in asked.values():
        node["inputs"] |= former.get(node["class_type"], {})
    before = runs(host)[:1]
    assert torch.equal(latents(host, asked), latents(host, job.prompt()))
    first, second, *rest = runs(host)
    assert first["plans"] == second["plans"] and rest[:1] == before, "each has run once"


def test_a_format_that_never_was_is_refused(host: ComfyHost) -> None:
    assert "There is no exchange_dtype='int3' in a plan." in refusal(host, sent_as("int3"), JOB)
