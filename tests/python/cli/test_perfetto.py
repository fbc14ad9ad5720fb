# SPDX-License-Identifier: Apache-2.0
"""Perfetto itself reads the traces that are written."""

import json

import browser
import perfetto

pytestmark = browser.needed

SPANS = """select s.name, ts, s.dur, process.name, thread.name, extract_arg(s.arg_set_id, 'args.bytes')
from slice s join thread_track t on s.track_id = t.id join thread using (utid) join process using (upid)
order by s.id"""
ERRORS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def test_perfetto_reads_every_span_of_a_trace(shoal, tiny):
    result = shoal("train", tiny, "--profiling.enable_profiling=true")
    assert result.returncode == 0, result.stderr
    trace = tiny.parent / "out" / "trace.json"
    events = json.loads(trace.read_text())["traceEvents"]
    names = {
        (event["name"], event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M"
    }
    wanted = [
        (
            event["name"],
            round(event["ts"] * 1000),
            round(event["dur"] * 1000),
            names["process_name", event["pid"], event["tid"]],
            names["thread_name", event["pid"], event["tid"]],
            event.get("args", {}).get("bytes"),
        )
        for event in events
        if event["ph"] == "X"
    ]
    spans, errors = perfetto.ask(trace, SPANS, ERRORS)
    assert errors == []
    assert len(spans) > 100
    assert sorted(map(tuple, spans), key=str) == sorted(wanted, key=str)


def test_perfetto_says_what_is_wrong_with_a_trace(tmp_path):
    trace = tmp_path / "trace.json"
    overlapping = [
        {"ph": "X", "name": name, "pid": 0, "tid": 0, "ts": ts, "dur": 5} for name, ts in [("a", 1), ("b", 3)]
    ]
    trace.write_text(json.dumps({"traceEvents": overlapping}))
    spans, errors = perfetto.ask(trace, SPANS, ERRORS)
    assert [name for name, *_ in spans] == ["a"]
    assert errors == [["slice_drop_overlapping_complete_event", 1]]
