# SPDX-License-Identifier: Apache-2.0
"""shoal plan --picture: the page as a browser has it."""

import pathlib

import browser
import pytest

PAGE = pathlib.Path(__file__).with_name("picture.html")
TENSOR = "--parallelism.tensor_parallel_degree=2"
SHARD = "--parallelism.data_parallel_shard_degree=2"


@pytest.fixture
def pictured(shoal, tiny, tmp_path):
    """pictured("-n", 2, …) -> what the report says, and what a browser has of the page."""

    def call(*words):
        picture = tmp_path / "layouts.html"
        result = shoal("plan", tiny, *words, f"--picture={picture}")
        assert result.returncode == 0, result.stderr
        files = {"/": PAGE.read_bytes(), "/picture": picture.read_bytes()}
        found = browser.answer_of(files, tmp_path)
        assert "error" not in found, found
        return result.stdout, found

    return call


@browser.needed
@pytest.mark.parametrize(
    "words", [["-n", 2, TENSOR], ["-n", 4, TENSOR, SHARD], ["-n", 2], ["-n", 1]], ids=str
)
def test_a_browser_shows_every_layer_and_message_and_loads_nothing(pictured, words):
    report, page = pictured(*words)
    assert page["title"].startswith("gpt2 on ")
    assert (page["loaded"], page["scripts"], page["outside"], page["broken"]) == ([], 0, [], 0)
    assert not any(figure["overlaps"] for figure in page["figures"])
    rows = report.partition("parameters, as they are")[2].partition("collectives of a step")[0]
    paths = [row.split()[0] for row in rows.splitlines() if row.startswith("  ")]
    modules = {path if path != "(the" else "(the model)" for path in paths}
    for module in modules:
        owner = module if module in page["cards"] else module.rpartition(".")[0]
        assert owner in page["cards"], module
    assert len(page["figures"]) == len(paths)
    sent = report.partition("collectives of a step")[2].partition("  in all ")[0]
    assert len(page["messages"]) == sent.count("\n") - 1


@browser.needed
def test_parts_have_the_colours_of_their_ranks(pictured):
    _, page = pictured("-n", 4, TENSOR, SHARD)
    states = [state for figure in page["figures"] for state in figure["states"]]
    assert states
    for state in states:
        parts = state["layout"].count("S(")
        assert len(state["colours"]) == 2**parts, state
        assert len(state["ranks"]) == 2**parts, state
        assert state["striped"] == ("P(sum)" in state["layout"])
    kept = [figure for figure in page["figures"] if len(figure["states"]) == 2]
    assert kept  # ZeRO-3's parts are gathered for use
    assert all("shard=S(" in figure["states"][0]["layout"] for figure in kept)


def test_a_page_that_cannot_be_written_is_named(shoal, tiny):
    result = shoal("plan", tiny, "-n", 2, "--picture=/no/such/a.html")
    assert (result.returncode, result.stderr) == (
        1,
        "shoal: --picture: /no/such/a.html cannot be written: No such file or directory\n",
    )
