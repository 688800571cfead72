"""The notes of the example workflows: where each file is and how large, what two cards need, and how to run; twice, in
English and in Chinese."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.support.templates.examples import Example, File

GIB = 1 << 30


class Phrases(NamedTuple):
    """What all notes say, in one language. Of `where`, by how blocks are fetched."""

    language: str
    title: str
    heading: str
    made_of: str
    files: str
    two_cards: str
    where: Mapping[str, str]
    no_room: str
    of_picture: str
    of_video: str
    computed: str
    encoder: str
    run: str
    licence: str


EN = Phrases(
    "en",
    "Files and cards",
    "## {} on all GPUs",
    "This is ComfyUI's template *{}*, with **Parallelize Model** behind the loader of the model. All other nodes are "
    "stock.",
    "| File | in models/ | Size |",
    "| Two cards of | Plan of *auto* | Weights on each | A step needs, too |",
    {"shared": "; the cards keep half of {} of {} blocks each", "host": "; {} of {} blocks come from RAM"},
    "; the rest is kept in RAM",
    "{width} × {height}",
    "{length} frames of {width} × {height}",
    "This is for {}, with 64 GiB of free RAM. The pack computes it from the model's published shapes and ComfyUI's "
    "estimate of a step. It is not measured on GPUs.",
    "The text encoder ({}) uses the first card before the model does. If both do not fit, they take turns.",
    "Press **Run**. The workers start with the first run and stay up. *auto* uses all GPUs. To choose the degrees "
    "yourself, set **Parallelize Model** to *manual*.",
    "Licence of the model: {}",
)
ZH = Phrases(
    "zh",
    "文件与显卡",
    "## 用所有 GPU 运行 {}",
    "这是 ComfyUI 的模板 *{}*，在模型加载器之后加上了 **Parallelize Model**。其余都是自带节点。",
    "| 文件 | 放在 models/ 下 | 大小 |",
    "| 两张显卡，每张 | *auto* 的方案 | 每张存放的权重 | 每步另需 |",
    {"shared": "；{1} 个块中的 {0} 个由两张卡各存一半", "host": "；{1} 个块中的 {0} 个从内存取来"},
    "；其余放在内存中",
    "{width} × {height}",
    "{length} 帧 {width} × {height}",
    "以上针对 {}，假定有 64 GiB 空闲内存。由本扩展按模型公布的形状和 ComfyUI 对一步的估计算出，并非在 GPU 上实测。",
    "文本编码器（{}）先于模型使用第一张显卡。两者放不下时轮流使用。",
    "点击**运行**即可。工作进程随第一次运行启动，之后一直保留。*auto* 使用所有 GPU。要自选并行度，"
    "请在 **Parallelize Model** 中选 *manual*。",
    "模型许可证：{}",
)


def note(example: Example, cards: Mapping[str, Any], phrases: Phrases) -> str:
    """The text of a note. cards: `two_cards.figures` by GiB of a card."""
    parts = [phrases.heading.format(example.title)]
    if example.base:
        parts.append(phrases.made_of.format(example.base))
    if example.files:
        parts += [table(phrases.files, map(file_row, example.files)), *about_cards(example, cards, phrases)]
    parts += [phrases.run, getattr(example.tips, phrases.language)]
    if example.licence:
        parts.append(phrases.licence.format(getattr(example.licence, phrases.language)))
    return "\n\n".join(parts)


def about_cards(example: Example, cards: Mapping[str, Any], phrases: Phrases) -> list[str]:
    assert example.sampled
    size = phrases.of_video if example.sampled.length > 1 else phrases.of_picture
    counted = example.counted or {phrases.language: size.format(**example.sampled._asdict())}
    said = counted[phrases.language] if isinstance(counted, dict) else getattr(counted, phrases.language)
    rows = [card_row(gigabytes, found, phrases) for gigabytes, found in cards.items()]
    parts = [table(phrases.two_cards, rows), phrases.computed.format(said)]
    encoders = [file for file in example.files if file.folder == "text_encoders"]
    if encoders:
        parts.append(phrases.encoder.format(amount(max(file.gb for file in encoders))))
    return parts


def table(heading: str, rows: Sequence[str] | Any) -> str:
    return "\n".join([heading, "|---" * (heading.count("|") - 1) + "|", *rows])


def file_row(file: File) -> str:
    return f"| {f'[{file.name}]({file.url})' if file.url else file.name} | {file.folder} | {amount(file.gb)} |"


def card_row(gibibytes: str, found: Mapping[str, Any], phrases: Phrases) -> str:
    kept = in_gib(found["kept"])
    if found["blocks"]:
        way, *counts = found["blocks"]
        kept += phrases.where[way].format(*counts)
    elif not found["fits"]:
        kept += phrases.no_room
    working = in_gib(found["working"])
    return f"| {gibibytes} GiB | {found['plan']} | {kept} | {working} |"


def in_gib(count: int) -> str:
    """As Parallelize Model tells of memory."""
    return f"{count / GIB:.1f} GiB"


def amount(gigabytes: float) -> str:
    """ "23.8 GB", "335 MB": three digits, as sizes of downloads are told."""
    if gigabytes < 1:
        return f"{1000 * gigabytes:.0f} MB"
    return f"{gigabytes:.1f} GB" if gigabytes >= 10 else f"{gigabytes:.2f} GB"
