"""`python -m tests.support.chart`: draws the README's chart, docs/speed.svg, from the figures in docs/benchmarks.md."""

from __future__ import annotations

import re
from collections.abc import Iterator

from demo.host import REPOSITORY

FIGURES, CHART = REPOSITORY / "docs" / "benchmarks.md", REPOSITORY / "docs" / "speed.svg"
LINK = "PCIe 4.0 x16"
TITLE = f"Times as fast as one device, over simulated links ({LINK})"
SHADES = ("#b8c4d6", "#5b8def", "#2347a8")
WIDTH, LEFT, TOP, ROW, BAR, GAP = 760, 150, 64, 74, 18, 2
SCALE = 165  # pixels for 1

Row = tuple[str, float, float]  # a model, and how many times as fast two and four devices are


def rows_of(text: str) -> list[Row]:
    """The figures of the page's two tables over this link, the fastest exact plan of each model."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith(f"| {LINK} |")]
    tokens, unet = lines[0][1:], lines[1][1:]
    bold = [float(found) for cell in tokens for found in re.findall(r"\*\*([\d.]+)\*\*", cell)]
    names = ("Flux", "Wan (video)", "Z-Image", "PixArt, guided")
    found = [(name, bold[2 * place], bold[2 * place + 1]) for place, name in enumerate(names)]
    two, four = (float(cell.strip("*")) for cell in unet[-2:])
    return [*found, ("SDXL, guided", two, four)]


def draw(rows: list[Row]) -> str:
    height = TOP + ROW * len(rows) + 12
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" font-family="Helvetica, Arial, sans-serif" font-size="14">',
            f"<title>{TITLE}</title>",
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#fff"/>',
            f'<text x="16" y="26" font-size="16" font-weight="bold" fill="#222">{TITLE}</text>',
            *key(),
            *(line for place, row in enumerate(rows) for line in bars(TOP + ROW * place, row)),
            "</svg>\n",
        )
    )


def key() -> Iterator[str]:
    for place, (shade, words) in enumerate(zip(SHADES, ("one device", "two", "four"), strict=True)):
        x = LEFT + 110 * place
        yield f'<rect x="{x}" y="38" width="12" height="12" rx="2" fill="{shade}"/>'
        yield f'<text x="{x + 18}" y="49" fill="#444">{words}</text>'


def bars(top: int, row: Row) -> Iterator[str]:
    name, *factors = row
    yield f'<text x="{LEFT - 12}" y="{top + 34}" text-anchor="end" fill="#222">{name}</text>'
    for place, (factor, shade) in enumerate(zip((1.0, *factors), SHADES, strict=True)):
        y, length = top + (BAR + GAP) * place, round(SCALE * factor)
        yield f'<rect x="{LEFT}" y="{y}" width="{length}" height="{BAR}" rx="2" fill="{shade}"/>'
        yield f'<text x="{LEFT + length + 8}" y="{y + 14}" fill="#222">{factor:.1f}</text>'


if __name__ == "__main__":
    CHART.write_text(draw(rows_of(FIGURES.read_text(encoding="utf-8"))), encoding="utf-8")
