"""The checks of tools/ pass on this tree, and bite on a tree with a fault in it."""

import re

import pytest


def tree(folder, path, text):
    """A source tree of one file."""
    (folder / path).parent.mkdir(parents=True)
    (folder / path).write_text(text)
    return folder


@pytest.mark.parametrize("tool", ["check_layers.py", "check_conventions.py"])
def test_this_tree_passes(run, tool):
    result = run(f"tools/{tool}")
    assert (result.returncode, result.stdout) == (0, "")


def test_an_include_upwards_is_named(run, tmp_path):
    result = run(
        "tools/check_layers.py", tree(tmp_path, "shoal/ir/bad.h", '\n#include "shoal/train/trainer.h"\n')
    )
    assert (result.returncode, result.stdout) == (1, "shoal/ir/bad.h:2: ir may not include train\n")


@pytest.mark.parametrize("header", ["ATen/ATen.h", "c10/core/Layout.h", "torch/torch.h"])
def test_a_core_module_sees_no_torch(run, tmp_path, header):
    result = run("tools/check_layers.py", tree(tmp_path, "shoal/ir/bad.cpp", f"#include <{header}>\n"))
    assert (result.returncode, result.stdout) == (1, "shoal/ir/bad.cpp:1: ir is torch-free\n")


def test_a_torch_module_may_include_what_is_below_it(run, tmp_path):
    text = '#include <ATen/ATen.h>\n#include "shoal/ir/graph.h"\n'
    assert run("tools/check_layers.py", tree(tmp_path, "shoal/capture/good.cpp", text)).returncode == 0


def test_a_module_that_is_in_no_table_is_named(run, tmp_path):
    result = run("tools/check_layers.py", tree(tmp_path, "shoal/utils/all.h", ""))
    assert result.returncode == 1
    assert result.stdout.startswith("shoal/utils: not in the table")


@pytest.mark.parametrize(
    ("path", "line", "fault"),
    [
        ("shoal/ir/a_test.cpp", "std::this_thread::sleep_for(1s);", "no sleeping in a test"),
        ("shoal/ir/a.cpp", 'std::getenv("HOME");', "environment variables are read in cli and train"),
        ("shoal/ir/a.cpp", "std::shared_ptr<Graph> graph;", "no shared_ptr: say who owns it"),
        ("shoal/simulate/a.cpp", "if (plan.recompute) {", "what plays programs names no rewrite"),
        ("shoal/ir/a.cpp", "using namespace std;", "no using namespace but in tests and main"),
    ],
)
def test_a_convention_that_is_broken_is_named(run, tmp_path, path, line, fault):
    tree(tmp_path, path, f"// SPDX-License-Identifier: Apache-2.0\n{line}\n")
    result = run("tools/check_conventions.py", tmp_path)
    assert result.returncode == 1
    assert result.stdout.endswith(f":2: {fault}\n")


def test_a_file_without_licence_is_named(run, tmp_path):
    result = run("tools/check_conventions.py", tree(tmp_path, "shoal/ir/a.cpp", "int a;\n"))
    assert (result.returncode, result.stdout) == (1, "shoal/ir/a.cpp:1: the first line is the licence's\n")


def test_links_of_documents_lead_somewhere(root):
    for document in [*root.glob("*.md"), *root.glob("docs/**/*.md")]:
        for link in re.findall(
            r"\]\((?!https?:)([^)#]+)", re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
        ):
            assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_the_code_in_readme_is_what_its_file_says(run):
    result = run("tools/update_readme.py", "--check")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("code", "check"),
    [
        ("int NumRanks() { return 1; }", "readability-identifier-naming"),
        ("int* none = 0;", "modernize-use-nullptr"),
        ("int count = 0;", "cppcoreguidelines-avoid-non-const-global-variables"),
    ],
)
def test_clang_tidy_bites(run, tmp_path, code, check):
    (tmp_path / "bad.cpp").write_text(f"{code}\n")
    result = run("tools/tidy.sh", tmp_path / "bad.cpp")
    assert result.returncode != 0
    assert f"[{check}" in result.stdout


def test_pictures_in_comments_survive_formatting(run):
    """One that is wider than a line, and lines that read like the end of the one before."""
    picture = (
        "// Two columns:\n//\n"
        "//   before                                   after"
        + " "
        * 60
        + "a remark that goes over the edge of a line\n"
        "//   %f = pack([%a, %b])                      %g = unpack(%f)\n"
        "//   words of another line, which is short\n"
        "//     and an indented one\n"
        "int x;\n"
    )
    result = run(".venv/bin/clang-format", "--assume-filename=shoal/ir/picture.h", input=picture)
    assert (result.returncode, result.stdout) == (0, picture)


@pytest.mark.parametrize(
    ("path", "header"),
    [
        ("shoal/ir/long.cpp", "// SPDX-License-Identifier: Apache-2.0\n{}\n#include <string>\n"),
        ("tests/python/long.py", "#!/usr/bin/env python3\n# SPDX\n{}\nimport re\n"),
        ("tests/python/doc.py", '"""What it is.\n\n{}\n"""\nimport re\n'),
    ],
)
def test_a_file_above_400_lines_says_why(run, tmp_path, path, header):
    comment = "//" if path.endswith(".cpp") else "" if '{}\n"' in header else "#"
    reason = f"{comment} Above 400 lines: one table."
    code = "x = 1\n" * 400
    file = tree(tmp_path, path, header.format(reason) + code) / path
    assert run("tools/check_conventions.py", tmp_path).returncode == 0
    file.write_text(header.format(comment) + code + f"{comment or '#'} Above 400 lines: too late to say.\n")
    result = run("tools/check_conventions.py", tmp_path)
    assert result.returncode == 1
    assert re.search(rf"^{path}:1: 40\d lines: split it, or say in its header ", result.stdout)
    file.write_text("\n".join(file.read_text().splitlines()[:400]))
    assert run("tools/check_conventions.py", tmp_path).returncode == 0
