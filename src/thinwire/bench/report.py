"""The report: a folder with ``index.html``, the pictures that it shows, and the figures."""

from html import escape
from pathlib import Path
from typing import Any

from thinwire.bench import charts
from thinwire.bench.display import COLUMNS, title
from thinwire.bench.result import DEFINITIONS
from thinwire.bench.sweeps import AXES, Sweep, find_sweeps

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; font-size: 14px; }
th, td { padding: 3px 10px; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; font-family: monospace; }
img { max-width: 100%; }
dt { font-weight: bold; } dd { margin: 0 0 .5em 1.5em; }
footer { color: #777; font-size: 13px; margin-top: 3em; }
"""


def write_report(points: list[dict[str, Any]], folder: Path, heading: str, about: str = "") -> list[Path]:
    """Write a report of some measured points; returns the files, the page first.

    Args:
        points: as :func:`thinwire.bench.point.measure` returns them; one or more.
        folder: where to; made if missing.
        heading: of the page.
        about: a sentence under it.

    Raises:
        ModuleNotFoundError: without matplotlib; the page has been written then, without pictures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "index.html"
    sweeps = find_sweeps(points)
    page.write_text(_page(points, sweeps, heading, about, with_pictures=False))
    pictures = []
    for sweep in sweeps:
        pictures.append(folder / _sweep_picture(sweep))
        charts.draw_sweep(sweep, pictures[-1])
    for point in points:
        pictures += [folder / f"breakdown-{point['name']}.png", folder / f"losses-{point['name']}.png"]
        charts.draw_breakdown(point, pictures[-2])
        charts.draw_losses(point, pictures[-1])
    page.write_text(_page(points, sweeps, heading, about, with_pictures=True))
    return [page, *pictures]


def _sweep_picture(sweep: Sweep) -> str:
    return f"sweep-{sweep.name}.png"


def _page(points: list[dict[str, Any]], sweeps: list[Sweep], heading: str, about: str, *, with_pictures: bool) -> str:
    def picture(file: str, says: str) -> str:
        return f'<p><img src="{escape(file)}" alt="{escape(says)}"></p>\n' if with_pictures else ""

    body = [f"<h1>{escape(heading)}</h1>\n<p>{escape(about)}</p>\n"]
    for sweep in sweeps:
        body.append(f"<h2>{escape(_sweep_title(sweep))}</h2>\n")
        body.append(picture(_sweep_picture(sweep), _sweep_title(sweep)))
        body.append(_speedups(sweep))
    for point in points:
        body.append(f'<h2 id="{escape(point["name"])}">{escape(title(point))}</h2>\n')
        body.append(picture(f"breakdown-{point['name']}.png", "what a step of every method consists of"))
        body.append(_table(point))
        body.append(picture(f"losses-{point['name']}.png", "training loss against steps and time"))
        body.append(_circumstances(point))
    body.append("<h2>What the figures mean</h2>\n<dl>\n")
    body += [f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>\n" for name, text in DEFINITIONS.items()]
    body.append("</dl>\n")
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f"<title>{escape(heading)}</title>\n<style>{_STYLE}</style></head>\n<body>\n{''.join(body)}</body>\n</html>\n"
    )


def _sweep_title(sweep: Sweep) -> str:
    settings = sweep.points[0]["settings"]
    fixed = {"workers": f"{settings['workers']} workers", "batch_size": f"batch {settings['batch_size']}"}
    words = [text for axis, text in fixed.items() if axis != sweep.axis and settings[axis] is not None]
    if sweep.axis != "link_mbit" and settings["link_mbit"] is not None:
        words.append(f"{settings['link_mbit']:g} Mbit/s")
    return f"{settings['model']} by {AXES[sweep.axis]}: {', '.join(words)}"


def _rows(head: list[str], rows: list[list[str]]) -> str:
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>\n"]
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows]
    return f"<table>\n{''.join(lines)}</table>\n"


def _table(point: dict[str, Any]) -> str:
    rows = [[name, *(column.cell(figures) for column in COLUMNS)] for name, figures in point["methods"].items()]
    return _rows(["method", *(column.name for column in COLUMNS)], rows)


def _speedups(sweep: Sweep) -> str:
    """Step times, with the speed relative to ssgd, of every method at every place."""

    def cell(figures: dict[str, Any]) -> str:
        speedup = f" ({figures['speedup']:.2f} ×)" if "speedup" in figures else ""
        return f"{figures['step_seconds']:.3f} s{speedup}"

    methods = sweep.points[0]["methods"]
    rows = [[name, *(cell(point["methods"][name]) for point in sweep.points)] for name in methods]
    return _rows([AXES[sweep.axis], *sweep.places], rows)


def _circumstances(point: dict[str, Any]) -> str:
    settings, versions = point["settings"], point["versions"]
    words = [
        f"{settings['steps']} steps of each method, in turns of {settings['steps_per_turn']}",
        f"{settings['optimizer']}, learning rate {settings['learning_rate']:g}, seed {settings['seed']}",
        f"network: {settings['network']}",
        point["cpu"],
        ", ".join(f"{name} {version}" for name, version in versions.items()),
        point["date"],
    ]
    return f"<p><small>{escape('; '.join(words))}</small></p>\n"
