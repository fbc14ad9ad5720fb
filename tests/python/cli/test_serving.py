# SPDX-License-Identifier: Apache-2.0
"""shoal ps export of a run, and shoal ps score: what is served is what was trained."""

import gzip
import json
import math
import re

import pytest

HELD_OUT = 300


@pytest.fixture(scope="module")
def samples(shoal, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clicks")
    assert shoal("data", "generate", folder, "--samples=2000").returncode == 0
    return folder


def train(shoal, samples, recipe, folder, *options):
    words = ["train", f"recipes/{recipe}.toml", "--dataset.name=criteo", f"--dataset.path={samples}"]
    words += [f"--dataset.held_out={HELD_OUT}", "--training.local_batch_size=50", "--training.steps=20"]
    words += ["--validation.freq=20", "--validation.steps=100", "--checkpoint.enable=true"]
    result = shoal(*words, f"--job.dump_folder={folder}", *options)
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return lines[-1]


def scores(shoal, served, *files):
    result = shoal("ps", "score", served, *files)
    assert result.returncode == 0, result.stderr
    said = re.fullmatch(r"(\d+) samples, AUC (\S+), log loss (\S+)\n", result.stderr)
    return [float(line) for line in result.stdout.splitlines()], int(said[1]), float(said[2]), float(said[3])


@pytest.mark.parametrize(
    ("recipe", "lookups", "options"),
    [
        ("deepfm", 1, ["-n", "2", "--ps.servers=2"]),
        ("deepfm", 1, ["--training.dtype=float64"]),
        ("deepfm", 4, ["--tables.1.parameters=deep.*.weight"]),
        ("wide_deep", 2, ["--ps.save_deltas=3", "--checkpoint.interval=5"]),
        ("dlrm_clicks", 26, ["-n", "2", "--ps.servers=1"]),
    ],
    ids=["two servers", "float64", "matrices too", "deltas", "a table a field"],
)
def test_what_is_served_scores_as_the_run_validates(shoal, samples, tmp_path, recipe, lookups, options):
    wanted = train(shoal, samples, recipe, tmp_path / "run", *options)
    lines = (samples / "day_0_part_0.tsv").read_text().splitlines(keepends=True)[-HELD_OUT:]
    held_out = tmp_path / "held_out.tsv.gz"
    held_out.write_bytes(gzip.compress("".join(lines).encode()))
    found = []
    for batch in (64, 301):
        served = tmp_path / f"serve-{batch}"
        result = shoal("ps", "export", tmp_path / "run", served, f"--batch={batch}")
        assert result.returncode == 0, result.stderr
        assert f": step 20, {lookups} lookups, " in result.stdout
        each, count, auc, log_loss = scores(shoal, served, held_out)
        assert count == len(each) == HELD_OUT
        assert auc == pytest.approx(wanted["validation_auc"], abs=1e-6)
        assert log_loss == pytest.approx(wanted["validation_loss"], abs=2e-6)
        labels = [line[0] == "1" for line in lines]
        by_hand = -sum(math.log(p if label else 1 - p) for p, label in zip(each, labels, strict=True))
        assert log_loss == pytest.approx(by_hand / HELD_OUT, abs=2e-6)
        found.append(each)
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_what_cannot_be_served_is_refused_by_name(shoal, samples, tiny, tmp_path):
    def refused(*words):
        result = shoal("ps", *words)
        assert result.returncode != 0
        return result.stderr

    (tmp_path / "none").mkdir()
    assert "holds no whole checkpoint, and is no saved table" in refused(
        "export", tmp_path / "none", tmp_path / "to"
    )
    text = shoal("train", tiny, "--checkpoint.enable=true", f"--job.dump_folder={tmp_path / 'text'}")
    assert text.returncode == 0, text.stderr
    assert "none of its parameters is in tables" in refused("export", tmp_path / "text", tmp_path / "to")
    train(shoal, samples, "deepfm", tmp_path / "run")
    served = tmp_path / "serve"
    assert "--batch is 0, wanted at least 1" in refused("export", tmp_path / "run", served, "--batch=0")
    assert "is the save itself" in refused("export", tmp_path / "run", tmp_path / "run")
    assert shoal("ps", "export", tmp_path / "run", served).returncode == 0
    bad = tmp_path / "bad.tsv"
    bad.write_text("1\t2\n")
    assert "bad.tsv:1" in refused("score", served, bad)
    assert "absent.tsv: No such file" in refused("score", served, tmp_path / "absent.tsv")
    by_score = refused("export", tmp_path / "run", served, "--min-score=1")
    assert "a base by score wants scored = true" in by_score
    assert "serving.json: No such file" in refused("score", served, bad)  # an export that did not end is none
    assert shoal("ps", "export", tmp_path / "run", served).returncode == 0
    rows = served / "rows.weight.0"
    whole = rows.read_bytes()
    rows.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    assert "rows.weight.0" in refused("score", served, bad)
    rows.write_bytes(whole)
    about = served / "serving.json"
    about.write_text(about.read_text().replace('"version": 1', '"version": 2'))
    assert "serving.json: is of version 2, this shoal reads 1" in refused("score", served, bad)
    about.write_text("{}")
    assert "serving.json: was not written by shoal ps export" in refused("score", served, bad)
    about.unlink()
    assert "serving.json" in refused("score", served, bad)
