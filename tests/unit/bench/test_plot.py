"""Figures: what is given is in the file, what is missing is not, and equal data make equal files."""

from __future__ import annotations

from pathlib import Path

from bench.plot import Series, bars, lines


def draw_lines(folder: Path) -> str:
    series = [
        Series("measured", [1.0, 2.0, None], [(0.5, 1.5), (1.5, 2.5), None]),
        Series("formula", [1.0, 2.0, 3.0], dashed=True),
    ]
    path = lines("x", [1, 2, 4], series, title="T", x_label="streams", y_label="tokens/s", x_log=True, folder=folder)
    return path.read_text()


def test_lines_hold_labels_title_and_a_band(tmp_path: Path) -> None:
    text = draw_lines(tmp_path)
    assert (tmp_path / "bench-x.svg").exists()
    for word in ("measured", "formula", "streams", "tokens/s"):
        assert word in text
    assert "FillBetweenPolyCollection" in text or "PolyCollection" in text


def test_equal_data_make_equal_files(tmp_path: Path) -> None:
    assert draw_lines(tmp_path / "a") == draw_lines(tmp_path / "b")


def test_a_bar_that_was_not_measured_is_left_out(tmp_path: Path) -> None:
    def patches(values: list[float | None]) -> int:
        series = [Series("one", values), Series("two", [1.0, 1.0])]
        return (
            bars("y", ["a", "b"], series, title="T", y_label="ratio", folder=tmp_path).read_text().count('id="patch_')
        )

    assert patches([1.0, 2.0]) == patches([None, 2.0]) + 1
