# SPDX-License-Identifier: Apache-2.0
"""The page of the C++ interface is what the public headers say, and nothing in them goes without a word."""

import shutil
import sys

import pytest

HEADER = """
// SPDX-License-Identifier: Apache-2.0
// Boxes.
#pragma once

#include <functional>
#include <vector>

#include "shoal/elsewhere.h"

namespace shoal {

class Later;

// Settings of several: `colour`, of what is painted.

// A box; holds things.
class Box : public Thing {
 public:
  explicit Box(int width) : width_{width} {}
  ~Box();
  Box(Box&&) noexcept;
  int width() const { return width_; }  // in metres
  int area(int unit) const;
  int height() const;

  // Of both.
  template <class Other>
  bool fits(const Other& other) const {
    if (other.width() > width_) {
      return false;  // "}" is no end
    }
    return true;
  }
  bool is_empty() const;
  friend bool operator==(const Box&, const Box&) = default;

 private:
  int width_ = 0;
};

enum class Colour { Red, Green };  // of a box

struct Paint {  // and how much of it
  Colour colour = Colour::Red;
  double much = 0, litres = 0;
  std::function<void(int)> done = {};  // called when it is dry,
                                       // by any thread
  int coats = 1;
};

inline int unsaid(std::vector<int> of = {}) { return static_cast<int>(of.size()); }
int count(const Box& box);  // of things

}  // namespace shoal

// Throws.
#define SHOAL_BOX(condition, ...) (condition)
"""

PAGE = """
### shoal/box.h

```cpp
// Boxes.

// In namespace shoal.

// Settings of several: `colour`, of what is painted.

// A box; holds things.
class Box : public Thing {
  explicit Box(int width);
  ~Box();
  Box(Box&&) noexcept;
  int width() const;  // in metres
  int area(int unit) const;
  int height() const;

  // Of both.
  template <class Other>
  bool fits(const Other& other) const;
  bool is_empty() const;
};

enum class Colour { Red, Green };  // of a box

struct Paint {  // and how much of it
  Colour colour = Colour::Red;
  double much = 0, litres = 0;
  std::function<void(int)> done = {};  // called when it is dry,
                                       // by any thread
  int coats = 1;
};

inline int unsaid(std::vector<int> of = {});
int count(const Box& box);  // of things

// Throws.
#define SHOAL_BOX(condition, ...)
```
"""


@pytest.fixture(scope="module")
def tools(request):
    """cpp_interface and cpp_declarations."""
    sys.path.insert(0, str(request.config.rootpath / "tools"))
    import cpp_declarations
    import cpp_interface

    yield cpp_interface, cpp_declarations
    sys.path.pop(0)


@pytest.fixture
def box(tools, tmp_path):
    """A tree of two headers, one of them public, and what is read of it."""
    (tmp_path / "shoal/ir").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "shoal/box.h").write_text(HEADER.lstrip())
    (tmp_path / "shoal/elsewhere.h").write_text("#pragma once\nnamespace shoal {\nstruct Thing {};\n}\n")
    (tmp_path / "shoal/shoal.h").write_text('#include "shoal/elsewhere.h"\n')
    (tmp_path / "shoal/ir/own_ops.cpp").write_text('{"shoal::pack"}\n')
    (tmp_path / "README.md").write_text("`Box::width()`, `shoal::count` and `shoal::pack`.\n")
    return tmp_path, tools[1].read(tmp_path, ["shoal/box.h"], set())


def test_bodies_and_what_is_private_are_not_on_the_page(tools, box):
    _, found = box
    assert tools[0].section("shoal/box.h", *found["shoal/box.h"]) == PAGE


def test_what_nothing_is_said_of_is_named(tools, box):
    _, found = box
    gaps = [fault.split()[1] for fault in tools[0].faults_of("shoal/box.h", *found["shoal/box.h"])]
    named = ["Box::Box", "Box::area", "Box::height", "Paint::coats", "unsaid"]
    assert gaps == [f"shoal::{name}" for name in named]


def test_a_type_from_a_header_that_is_not_public_is_named(tools, box):
    root, found = box
    (root / "shoal/box.h").write_text(HEADER.lstrip().replace("count(const Box&", "count(const Thing&"))
    found = tools[1].read(root, ["shoal/box.h"], set())
    faults = [fault.split(": ", 1)[1] for fault in tools[0].strangers_of(root, found)]
    assert faults == [
        "shoal/elsewhere.h is not public",
        "shoal::count names shoal::Thing, and shoal/elsewhere.h is not public",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("`Box::depth()` is new.", "Box::depth is in no public header"),
        ("`shoal::sum` counts.", "shoal::sum is in no public header"),
        ("See `ir/depths.h`.", "there is no ir/depths.h"),
        ("```cpp\npaint({.colour = Colour::Red, .depth = 1});\n```", "depth is a field of no public type"),
    ],
)
def test_a_document_that_names_what_there_is_not_is_named(tools, box, text, fault):
    root, found = box
    assert list(tools[0].unknown_in(root, found)) == []
    (root / "docs/boxes.md").write_text(text)
    assert [each.split(": ", 1)[1] for each in tools[0].unknown_in(root, found)] == [fault]


def test_the_page_is_what_the_headers_say_and_they_have_no_gap(run):
    done = run(sys.executable, "tools/cpp_interface.py", "--check")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_a_function_that_loses_its_comment_is_named_and_so_is_the_page(run, root, tmp_path):
    for folder in ("shoal", "docs", "models"):
        shutil.copytree(root / folder, tmp_path / folder)
    shutil.copy(root / "README.md", tmp_path)
    header = tmp_path / "shoal/comm/hosts.h"
    comment = "// The same of known identities, by rank.\n"
    assert comment in header.read_text()
    header.write_text(header.read_text().replace(comment, "\n"))
    done = run(sys.executable, "tools/cpp_interface.py", "--check", tmp_path)
    page, gap = done.stdout.splitlines()
    assert page.startswith("docs/cpp.md: not what the headers say; run ")
    assert gap.startswith("shoal/comm/hosts.h:") and gap.endswith("::first_ranks_of_hosts has no comment")
    assert done.returncode == 1


def test_the_page_has_what_a_trainer_takes_and_gives(root):
    page = (root / "docs/cpp.md").read_text()
    for told in ["StepResult step(const Batch& batch);", "struct TrainerOptions {", "struct AdamW {"]:
        assert told in page
    assert "std::unique_ptr<State> state_;" not in page
