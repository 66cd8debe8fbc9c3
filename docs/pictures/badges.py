"""The README's badges: two small pictures, so that no page of it asks another site for one."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
BADGES = {"python": ("Python", "3.10–3.13", "#0a6cbd"), "licence": ("licence", "Apache 2.0, CC BY 4.0", "#2c7a3d")}
WIDE = 6.6  # pixels a letter


def badge(left: str, right: str, colour: str) -> str:
    """Two words, side by side.

    Example:
        >>> badge("licence", "MIT", "#000").count("<text")
        2
    """
    a, b = (round(len(text) * WIDE + 14) for text in (left, right))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{a + b}" height="20" role="img"><title>{left}: {right}</title>'
        f'<rect width="{a + b}" height="20" rx="3" fill="#555"/>'
        f'<rect x="{a}" width="{b}" height="20" rx="3" fill="{colour}"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{a / 2}" y="14">{left}</text><text x="{a + b / 2}" y="14">{right}</text></g></svg>\n'
    )


if __name__ == "__main__":
    for name, words in BADGES.items():
        (HERE / f"badge-{name}.svg").write_text(badge(*words), encoding="utf-8")
