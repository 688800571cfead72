"""The pages name files, functions and commands that are there; the README stays short, in both languages."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from PIL import Image

import dev
from demo.host import REPOSITORY
from parallel_backend.plan import ParallelPlan
from tests.support import chart

README, CHINESE = "README.md", "README.zh.md"
SEEDS = "tests/README.md"
PAGES = (
    README,
    CHINESE,
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "tests/README.md",
    "parallel_backend/models/README.md",
    *sorted(path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "docs").glob("**/*.md")),
)
DEVELOPERS = tuple(page for page in PAGES if page.startswith("docs/dev/"))
# Folders that pages name files relative to, beside their own and the repository's.
ROOMS = ("", "worker", "parallel_backend", "nodes", "tests", "tests/support")
MOST_WORDS, MOST_WORDS_OF_A_DEVELOPERS_PAGE = 1200, 1500
DIAGRAM = re.compile(r"^```mermaid\n.*?^```$", flags=re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r"^!\[.+\]\(.+\.svg\)$", flags=re.MULTILINE)
BLOCK = re.compile(r"^```(?:\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!http)([^)]+)\)")
DEV = re.compile(r"python3 dev\.py (\w+)")
# Of `python -m parallel_backend`, which makes them of the plan's fields.
PLAN_OPTIONS = {f"--{field.name.replace('_', '-')}" for field in fields(ParallelPlan)}
MODULE = re.compile(r"-m ((?:tests|worker|parallel_backend|demo)[\w.]*)([^`\n]*)")


def text_of(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


def named_files(page: str) -> list[str]:
    """What a page has in backticks or as a link, and ends as a file of the repository does."""
    text = text_of(page)
    quoted = re.findall(r"`([\w./{},-]+/[\w.-]+\.(?:py|js|md|json|css|mjs|ini|txt))(?:::\w+)?`", text)
    linked = [link.partition("#")[0] for link in LINK.findall(text)]
    return sorted({name for name in (*quoted, *linked) if name})


def is_there(name: str, page: str) -> bool:
    places = [REPOSITORY / page / "..", *(REPOSITORY / room for room in ROOMS)]
    return any((place / name).resolve().exists() for place in places)


def headings(page: str) -> list[str]:
    return re.findall(r"^#+ (.*)$", BLOCK.sub("", text_of(page)), flags=re.MULTILINE)


def anchors(page: str) -> set[str]:
    """As GitHub makes them of headings."""
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings(page)}


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    missing = [name for name in named_files(page) if not is_there(name, page) and "FAMILY" not in name]
    assert not missing, f"{page} names {', '.join(missing)}"


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_is_there(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text_of(page))
    assert named or page != SEEDS
    missing = [name for path, name in named if f"def {name}(" not in text_of(path)]
    assert not missing, f"{page} names {', '.join(missing)}"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: str) -> None:
    for link in LINK.findall(text_of(page)):
        path, _, anchor = link.partition("#")
        target = (REPOSITORY / page / ".." / path).resolve() if path else REPOSITORY / page
        assert target.exists(), f"{page} links to {link}"
        assert not anchor or anchor in anchors(target.relative_to(REPOSITORY).as_posix()), f"{page} links to {link}"


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_there_with_its_options(page: str) -> None:
    text = text_of(page)
    for name, arguments in MODULE.findall(text):
        path = REPOSITORY / name.rstrip(".").replace(".", "/")
        sources = [source for source in (path.with_suffix(".py"), path / "__main__.py") if source.exists()]
        assert sources, f"{page} runs {name}"
        for option in re.findall(r" (--[\w-]+)", arguments.partition(" -- ")[0]):
            source = sources[0].read_text() + ('"--write"' if "show_table(" in sources[0].read_text() else "")
            known = f'"{option}"' in source or name == "parallel_backend" and option in PLAN_OPTIONS
            assert known, f"{page} runs {name} with {option}"
    unknown = set(DEV.findall(text)) - set(DEV.findall(dev.__doc__))
    assert not unknown, f"{page} runs dev.py {', '.join(unknown)}"


def test_what_is_not_there_is_found() -> None:
    assert not is_there("worker/host/sessions.py", "docs/dev/01-overview.md")
    assert is_there("host/session.py", "docs/dev/01-overview.md")
    assert "the-nodes" in anchors("docs/editor.md") and "the-knots" not in anchors("docs/editor.md")


def test_the_readme_is_read_in_a_few_minutes() -> None:
    """Tables and code count."""
    assert len(text_of(README).split()) <= MOST_WORDS


@pytest.mark.parametrize("page", DEVELOPERS)
def test_a_developers_page_is_short_has_a_picture_and_first_says_what_it_is_for(page: str) -> None:
    text = text_of(page)
    title, _, first = text.splitlines()[:3]
    assert len(text.split()) <= MOST_WORDS_OF_A_DEVELOPERS_PAGE
    assert DIAGRAM.search(text) or PICTURE.search(text)
    assert title.startswith(f"# {DEVELOPERS.index(page) + 1}. ") and first.startswith("This page ")


def test_the_first_screen_has_a_film_and_a_chart_of_the_figures_in_the_docs() -> None:
    film = REPOSITORY / "web" / "docs" / "film.webp"
    with Image.open(film) as shown:
        assert shown.format == "WEBP" and getattr(shown, "n_frames", 1) > 5
    assert film.stat().st_size <= 2 << 20
    made = chart.draw(chart.rows_of(text_of("docs/benchmarks.md")))
    assert chart.CHART.read_text(encoding="utf-8") == made, "run python -m tests.support.chart"
    assert "simulated links" in made
    for page in (README, CHINESE):
        assert re.findall(r"!\[.*\]\((.+)\)", text_of(page)) == ["web/docs/film.webp", "docs/speed.svg"]


def test_the_chinese_readme_says_as_much() -> None:
    """The same sections, tables, commands, pictures and links, in the same order."""
    english, chinese = text_of(README), text_of(CHINESE)
    assert len(headings(CHINESE)) == len(headings(README))
    assert BLOCK.findall(chinese) == BLOCK.findall(english)
    assert LINK.findall(chinese)[1:] == LINK.findall(english)[1:]
    assert LINK.findall(chinese)[0] == README and LINK.findall(english)[0] == CHINESE
    assert shape_of_tables(chinese) == shape_of_tables(english)
    assert len(re.findall(r"^- ", chinese, flags=re.MULTILINE)) == len(re.findall(r"^- ", english, flags=re.MULTILINE))
    assert re.findall(r"[×/]\d[\d.]*", chinese) == re.findall(r"[×/]\d[\d.]*", english)


def shape_of_tables(text: str) -> list[int]:
    """The cells of each row."""
    return [line.count("|") for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("page", [README, CHINESE])
def test_the_readme_asks_for_what_the_pack_asks_for(page: str) -> None:
    text = text_of(page)
    project, requirements = text_of("pyproject.toml"), text_of("requirements.txt")
    for pattern, source in (
        (r'requires-comfyui = ">=([\d.]+)"', project),
        (r'requires-python = ">=([\d.]+)"', project),
        (r'Repository = "(.+)"', project),
        (r'name = "(\w+)"', project),
        (r"torch>=([\d.]+)", requirements),
    ):
        assert re.search(pattern, source)[1] in text, pattern
    newest = re.search(r"(?:tested up to |测试到)0\.(\d+)", text)[1]
    assert int(newest) >= int(dev.RELEASE.split(".")[1]), "the gate's is newer"
    assert f"tested with ComfyUI 0.27 to 0.{newest}." in " ".join(text_of("docs/models.md").split())
