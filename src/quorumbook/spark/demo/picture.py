"""The demo's picture: delays by carrier and hour of the day, as an SVG; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quorumbook.spark.svg import svg_text

_CELL_W, _CELL_H = 40, 26
_LEFT, _TOP, _BOTTOM = 190, 76, 56
#: A few flights say nothing: they get no cell.
_FEWEST = 20
_SCALE_MINUTES = 45.0
_CALM, _BAD = (247, 245, 240), (178, 34, 52)


def heatmap(
    means: Mapping[tuple[str, int], tuple[int, float]], names: Mapping[str, str], note: str
) -> str:
    """Return the picture.

    Args:
        means: For carrier and hour, how many flights left and their mean delay in minutes.
        names: What carriers are called.
        note: A line below it.
    """
    means = {key: found for key, found in means.items() if found[0] >= _FEWEST}
    hours = sorted({hour for _, hour in means})
    carriers = _by_delay(means)
    width = _LEFT + _CELL_W * len(hours) + 30
    height = _TOP + _CELL_H * len(carriers) + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        svg_text(20, 28, "How late flights left New York in 2013, in minutes", size=17, weight=600),
        svg_text(20, 48, "by carrier, worst first, and planned hour of departure", fill="#666"),
    ]
    for column, hour in enumerate(hours):
        x = _LEFT + _CELL_W * column + _CELL_W // 2
        parts.append(svg_text(x, _TOP - 8, f"{hour}", anchor="middle", fill="#666"))
    for row, carrier in enumerate(carriers):
        y = _TOP + _CELL_H * row
        parts.append(svg_text(20, y + 17, names.get(carrier, carrier)))
        for column, hour in enumerate(hours):
            parts += _cell(_LEFT + _CELL_W * column, y, means.get((carrier, hour)))
    parts.append(svg_text(20, height - 20, note, fill="#666"))
    parts.append("</svg>\n")
    return "\n".join(parts)


def _by_delay(means: Mapping[tuple[str, int], tuple[int, float]]) -> Sequence[str]:
    flights: dict[str, int] = {}
    minutes: dict[str, float] = {}
    for (carrier, _), (count, mean) in means.items():
        flights[carrier] = flights.get(carrier, 0) + count
        minutes[carrier] = minutes.get(carrier, 0.0) + count * mean
    return sorted(flights, key=lambda carrier: -minutes[carrier] / max(flights[carrier], 1))


def _cell(x: int, y: int, found: tuple[int, float] | None) -> list[str]:
    if found is None:
        return []
    mean = found[1]
    share = min(max(mean / _SCALE_MINUTES, 0.0), 1.0)
    colour = "#" + "".join(
        f"{round(low + (high - low) * share):02x}" for low, high in zip(_CALM, _BAD, strict=True)
    )
    return [
        f'<rect x="{x + 1}" y="{y + 1}" width="{_CELL_W - 2}" height="{_CELL_H - 2}" rx="3"'
        f' fill="{colour}"/>',
        svg_text(
            x + _CELL_W // 2, y + 17, f"{round(mean)}",
            anchor="middle", fill="#fff" if share > 0.55 else "#222",
        ),
    ]  # fmt: skip
