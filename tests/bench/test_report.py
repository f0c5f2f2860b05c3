import io
import re
import struct
import sys
from html.parser import HTMLParser

import pytest
from rich.console import Console

from tests.bench.given import measured, point
from thinwire.bench import display
from thinwire.bench.main import write
from thinwire.bench.report import write_report
from thinwire.bench.sweeps import find_sweeps

POINTS = [measured(point(num_turns=2, link_mbit=link)) for link in (None, 100.0, 50.0)] + [
    measured(point(num_turns=2, link_mbit=100.0, num_workers=2, batch_size=8))
]


def size_of_png(path):
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", data[16:24])


class Page(HTMLParser):
    """What a page links to, and whether its elements are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.sources = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            self.sources.append(dict(attributes)["src"])
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_points_that_differ_in_one_setting_are_a_sweep():
    sweeps = find_sweeps(POINTS)
    assert [(sweep.axis, sweep.places) for sweep in sweeps] == [
        ("link_mbit", ["50", "100", "unshaped"]),
        ("batch_size", ["4", "8"]),
    ]
    assert find_sweeps(POINTS[:1]) == []


def test_the_report_has_a_page_that_shows_all_its_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    page, *pictures = write_report(POINTS, tmp_path / "new" / "folder", "A <heading>", "about & so on")
    assert len(pictures) == 2 + 2 * len(POINTS)
    assert all(width > 500 and height > 150 for width, height in map(size_of_png, pictures))
    text = page.read_text()
    parsed = Page(text)
    assert parsed.open == []
    assert sorted(parsed.sources) == sorted(picture.name for picture in pictures)
    assert "<h1>A &lt;heading&gt;</h1>" in text
    assert "about &amp; so on" in text
    assert text.count("<tr><td>fp16</td>") == 2 + len(POINTS)
    assert re.search(r"<td>fp16</td><td>2500</td><td>1.60</td><td>750</td><td>300</td><td>100</td><td>1100</td>", text)


def test_without_matplotlib_there_is_a_page_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    out = io.StringIO()
    write(POINTS, tmp_path, Console(file=out, width=200), heading="x")
    assert "pip install 'thinwire[report]'" in out.getvalue()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.html", "result.json"]
    assert Page((tmp_path / "index.html").read_text()).sources == []


def test_the_table_fits_a_terminal():
    figures = POINTS[1]["methods"]
    with_memory = POINTS[1] | {
        "methods": {name: figures[name] | {"memory_growth_bytes": 1234e6} for name in figures}
        | {"topk(ratio=0.001, bucket_mb=25)": figures["fp16"]}
    }
    out = io.StringIO()
    Console(file=out, width=80).print(display.table(with_memory))
    rows = {line.split()[0]: line.split() for line in out.getvalue().splitlines() if line.strip()}
    assert rows["fp16"] == ["fp16", "2500", "1.60", "750", "300", "100", "1100", "250", "0.41", "1234", "2.100"]
    assert rows["compute"][1:] == ["1000", "4.00", "750", "–", "–", "–", "250", "–", "1234", "–"]
    assert "lm, 0.2 M parameters, batch 4, 2 workers, 100 Mbit/s links" in out.getvalue()
