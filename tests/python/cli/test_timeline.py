# SPDX-License-Identifier: Apache-2.0
"""Ranks x time as a page, with memory below: of shoal simulate, and of steps that were trained."""

import json
import re

import browser
import pytest
from test_simulate import GPT, ONE_HOST


def lanes_of(page):
    return json.loads(re.search(r"const lanes = (\[.*?\]);\n</script>", page.read_text(), re.S)[1])


@pytest.mark.parametrize(
    "more", [[], ["--training.global_batch_size=32"], ["--parallelism.pipeline_parallel_degree=2"]]
)
def test_memory_below_the_timeline_is_at_most_what_is_said(shoal, tmp_path, more):
    cluster, page = tmp_path / "a.toml", tmp_path / "a.html"
    cluster.write_text(ONE_HOST.format(overlaps="true"))
    words = ["simulate", *GPT, "-n", "2", f"--cluster={cluster}", f"--timeline={page}", *more]
    result = shoal(*words)
    assert result.returncode == 0, result.stderr
    number, unit = re.search(r"memory at most ([\d.]+)(KiB|MiB|GiB) of", result.stdout).groups()
    said = float(number) * 1024 ** (["KiB", "MiB", "GiB"].index(unit) + 1)
    lanes = [lane for lane in lanes_of(page) if lane["stream"] == "memory"]
    assert lanes
    for lane in lanes:
        assert lane["most"] == max(bytes for _, bytes in lane["memory"])
    most = max(lane["most"] for lane in lanes)
    assert 0.7 * said < most <= 1.01 * said  # what a kernel takes and gives back is not drawn


# Opens /timeline, points at the first lane of memory, and posts what is there.
POINTING = """<!doctype html>
<iframe style="width: 1000px; height: 700px; border: 0"></iframe>
<script>
const frame = document.querySelector("iframe");
const post = answer => fetch("/answers", {method: "POST", body: JSON.stringify(answer)});
onerror = message => post({error: message});
frame.onload = () => {
  if (!frame.srcdoc) return;
  const view = frame.contentWindow, page = frame.contentDocument, canvas = page.querySelector("canvas");
  const lanes = view.eval("lanes"), lane = lanes.find(lane => lane.memory);
  const box = canvas.getBoundingClientRect();
  const ratio = canvas.width / box.width, low = Math.round((lane.top + lane.height - 1.5) * ratio);
  const pixels = canvas.getContext("2d").getImageData(0, low, canvas.width, 1).data;
  let filled = 0;
  for (let i = 0; i < pixels.length; i += 4) filled += pixels[i] === 0x8f && pixels[i + 2] === 0xc4;
  const at = {clientX: box.left + 600, clientY: box.top + lane.top + 5};
  canvas.dispatchEvent(new view.MouseEvent("mousemove", at));
  post({filled: filled / ratio, tip: page.getElementById("tip").textContent,
        streams: lanes.map(lane => [lane.stream, lane.what]),
        loaded: view.performance.getEntriesByType("resource").length});
};
fetch("/timeline").then(answer => answer.text()).then(text => frame.srcdoc = text);
</script>"""


@browser.needed
def test_a_browser_draws_a_step_and_below_it_the_one_that_is_simulated(shoal, tiny, tmp_path):
    cluster, page = tmp_path / "a.toml", tmp_path / "a.html"
    cluster.write_text(ONE_HOST.format(overlaps="true").replace("devices = 4", "devices = 1"))
    steps = ["--training.steps=20", "--validation.freq=0", f"--profiling.timeline={page}"]
    result = shoal("train", tiny, *steps, f"--profiling.cluster={cluster}")
    assert result.returncode == 0, result.stderr
    assert f"timeline: {page}\n" in result.stdout
    files = {"/": POINTING.encode(), "/timeline": page.read_bytes()}
    found = browser.answer_of(files, tmp_path)
    assert found["streams"] == [
        ["compute", "measured"],
        ["trainer", "measured"],
        ["memory", "measured"],
        ["compute", "simulated"],
        ["memory", "simulated"],
    ]
    assert found["filled"] > 200 and found["loaded"] == 0
    assert re.fullmatch(
        r"[\d.]+ [KM]iB of [\d.]+ [KM]iB at most\nfrom .* on\nrank 0, memory, measured", found["tip"]
    )
    measured, simulated = (lane["most"] for lane in lanes_of(page) if lane["stream"] == "memory")
    assert 0.5 < measured / simulated < 2
    result = shoal("train", tiny, *steps[:2], "--profiling.timeline=/no/such/a.html")
    assert result.returncode == 1 and "cannot write /no/such/a.html" in result.stderr
    assert "step:" not in result.stdout
