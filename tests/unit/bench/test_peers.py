"""The table of peers says who was not there."""

from __future__ import annotations

from bench.peers import OURS, measure, table


def timed(speed):
    return lambda prompt, temperature, tokens: (tokens, tokens / speed)


def test_ratios_are_of_our_speed_to_theirs():
    row = measure({OURS: timed(60.0), "llama.cpp, plain": timed(40.0)}, "chat", 0.0, 5, 16)
    assert set(row["ratios"]) == {"llama.cpp, plain"}
    assert abs(row["ratios"]["llama.cpp, plain"]["median"] - 1.5) < 1e-9


def test_a_peer_that_is_not_installed_has_a_row_that_says_so():
    with_it = measure({OURS: timed(60.0), "llama.cpp, plain": timed(40.0)}, "chat", 0.0, 2, 16)
    without = measure({OURS: timed(60.0), "transformers, plain": timed(20.0)}, "chat", 1.0, 2, 16)
    cells = table([with_it, {**without, "backend": "transformers"}]).rows
    assert ["chat, 1", "llama.cpp", "not installed", ""] in cells
    assert sum(row[2] == "not installed" for row in cells) == 1


def test_rows_say_which_backend_the_target_had():
    row = measure({OURS: timed(60.0), "llama.cpp, plain": timed(40.0)}, "chat", 0.0, 2, 16)
    assert table([{**row, "backend": "llamacpp"}]).rows[0][0] == "chat, 0, target by llama.cpp"
