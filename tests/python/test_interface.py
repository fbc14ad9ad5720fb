# SPDX-License-Identifier: Apache-2.0
"""The page of the C++ interface has all that headers declare for all, and something is said of each."""

import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("interface", ROOT / "tools" / "interface.py")
interface = importlib.util.module_from_spec(SPEC)
sys.modules["interface"] = interface
SPEC.loader.exec_module(interface)

HEADER = """
#include <string>

namespace shoal {

class Elsewhere;

// A box; holds things.
class Box : public Thing {
 public:
  explicit Box(int width) : width_(width) {}
  ~Box();
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

 private:
  int width_ = 0;
};

enum class Colour { Red, Green };  // of a box

struct Paint {
  Colour colour = Colour::Red;
  std::function<void(int)> done = {};
};

inline int unsaid(std::vector<int> of = {}) { return static_cast<int>(of.size()); }
int count(const Box& box);  // of things

}  // namespace shoal
"""

PAGE = """
// A box; holds things.
class Box : public Thing {
  explicit Box(int width);
  ~Box();
  int width() const;  // in metres
  int area(int unit) const;
  int height() const;

  // Of both.
  template <class Other>
  bool fits(const Other& other) const;
  bool is_empty() const;
};

enum class Colour { Red, Green };  // of a box

struct Paint {
  Colour colour = Colour::Red;
  std::function<void(int)> done = {};
};

inline int unsaid(std::vector<int> of = {});
int count(const Box& box);  // of things
"""


def test_bodies_and_what_is_private_are_not_on_the_page():
    assert interface.page_of(interface.declarations(HEADER)) == PAGE.strip()


def test_what_nothing_is_said_of_is_named():
    declared = interface.declarations(HEADER)
    assert list(interface.gaps_of(declared, "file")) == ["Box::area", "Paint", "unsaid"]
    assert list(interface.gaps_of(declared, "paint")) == ["Box::area", "unsaid"]


def test_the_interface_has_no_gap(run):
    done = run(sys.executable, "tools/interface.py", "--gaps")
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_page_has_what_a_trainer_takes_and_gives(run):
    page = run(sys.executable, "tools/interface.py").stdout
    for told in ["StepResult step(const Batch& batch);", "struct TrainerOptions {", "struct AdamW {"]:
        assert told in page
    assert "std::unique_ptr<State> state_;" not in page
